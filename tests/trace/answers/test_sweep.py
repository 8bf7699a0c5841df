"""sweep: plans over shapes, every threshold that bisection meets, and why it is one."""

import io
import json
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import ggml_py as ggml
from ggml_py import trace
from ggml_py.export import to_terminal
from ggml_py.scheduler import capture
from ggml_py.trace import reference, sweep
from ggml_py.trace.answers import sweep as thresholds


@pytest.fixture(scope="module")
def factory():
    """make(supports)(n, k): a plan of ops on gpu0 and the CPU, whose shapes follow n and k."""
    with ExitStack() as stack:
        device = ggml.sim_device("gpu0")
        stack.callback(device.close)
        backends = [stack.enter_context(d.init()) for d in (device, ggml.device("CPU"))]
        scheduler = stack.enter_context(ggml.Scheduler(backends))
        contexts = [stack.enter_context(ggml.Context()) for _ in backends]
        weights = [w.new_tensor("f32", 64, 64, name=f"w{i}") for i, w in enumerate(contexts)]
        for context, backend in zip(contexts, backends, strict=True):
            context.alloc(backend, usage="weights")

        def make(supports=None):
            device.configure(supports=supports)

            def build(n=1, k=1, host=False, extra=False):
                with ggml.Context() as c:
                    x = c.new_tensor("f32", 64, n, name="inp")
                    x.set_input()
                    h = c.mul_mat(weights[host], x)
                    h.name = "h"
                    wide = c.relu(c.repeat_4d(h, 64, n, k, 1))
                    wide.name = "wide"
                    out = c.scale(wide, 2.0)
                    out.name = "out"
                    if extra:
                        out = c.neg(out)
                    graph = c.new_graph()
                    graph.build_forward_expand(out)
                    return scheduler.plan(graph)

            return build

        yield make


def limits(**most):
    """Supports an op up to that many of its elements ne[1] * ne[2]."""
    return lambda t: t.op.name not in most or t.ne[1] * t.ne[2] <= most[t.op.name]


def edges(found):
    return [(t.axis, t.before, t.after, t.at) for t in found.thresholds]


def test_it_is_a_function_beside_modules():
    assert trace.sweep is sweep is thresholds.sweep
    assert trace.Sweep is thresholds.Sweep
    assert trace.capture is capture and trace.reference is reference
    with pytest.raises(AttributeError, match="no attribute 'swep'"):
        trace.swep  # noqa: B018


def test_a_threshold_has_the_node_and_the_reason(factory):
    found = sweep(factory(limits(UNARY=100)), n=[1, 1000])
    assert edges(found) == [("n", 100, 101, {})]
    (threshold,) = found.thresholds
    assert [(m.name, m.op, m.before, m.after, m.decides) for m in threshold.moved] == [
        ("wide", "RELU", "gpu0", "CPU", True)
    ]
    assert threshold.reason == (
        "gpu0 does not support it with its result f32 [64, 101] instead of f32 [64, 100], "
        "src[0] 'node_1' f32 [64, 101] instead of f32 [64, 100]"
    )
    assert threshold.totals_before.n_splits < threshold.totals_after.n_splits
    assert [p.shape for p in found.points] == [{"n": 1}, {"n": 1000}]
    assert found.points[1].totals == thresholds.totals(factory(limits(UNARY=100))(n=1000))


def test_what_goes_along_says_with_whom(factory):
    """SCALE follows RELU wherever it goes."""
    found = sweep(factory(limits(UNARY=10, SCALE=10)), n=[1, 64])
    (threshold,) = found.thresholds
    assert [m.decides for m in threshold.moved] == [True, True]
    found = sweep(factory(lambda t: t.op.name == "MUL_MAT" and t.ne[1] <= 10), n=[1, 64])
    (threshold,) = found.thresholds
    assert [(m.name, m.decides) for m in threshold.moved] == [("h", True)]


def test_a_batch_large_enough_to_be_offloaded(factory):
    build = factory()
    found = sweep(lambda n: build(n=n, host=True), n=[1, 512])
    assert edges(found) == [("n", 31, 32, {})]
    first, *others = found.thresholds[0].moved
    assert (first.name, first.after, first.cause_after) == ("h", "gpu0", "1.off")
    assert first.reason == (
        "gpu0 wants it with 32 rows instead of 31; its weight is in host memory"
    )
    assert [m.decides for m in others] == [False] * len(others) and others
    assert "spread down" in others[0].reason


def test_several_thresholds_between_two_values(factory):
    found = sweep(factory(limits(UNARY=100, SCALE=333, MUL_MAT=700)), n=[1, 1000])
    assert edges(found) == [("n", 100, 101, {}), ("n", 333, 334, {}), ("n", 700, 701, {})]


def test_two_axes_and_few_builds(factory):
    calls = []
    build = factory(limits(UNARY=100_000))

    def counted(n, k):
        calls.append((n, k))
        return build(n, k)

    found = sweep(counted, k=[1, 1 << 12], n=[1, 1 << 12])
    assert edges(found) == [
        ("k", 24, 25, {"n": 4096}), ("n", 24, 25, {"k": 4096}),
    ]  # fmt: skip
    assert len(calls) == found.n_builds <= 4 + 2 * 12
    calls.clear()
    # The same threshold of other lines is looked for where it was first.
    found = sweep(lambda n, k: counted(n, 1), k=[1, 2, 3, 4], n=[1, 1 << 20], progress=False)
    assert edges(found) == [("n", 100_000, 100_001, {"k": k}) for k in (1, 2, 3, 4)]
    assert len(calls) <= 8 + 20 + 3 * 2
    ((_first, places),) = found.grouped()
    assert places == [{"k": 1}, {"k": 2}, {"k": 3}, {"k": 4}]
    assert str(found).count("100000 → 100001") == 1
    assert ", at k=1 or k=2 or k=3 or k=4" in str(found)


def test_plans_that_were_forgotten_are_built_again(factory, monkeypatch):
    monkeypatch.setattr(thresholds, "_KEPT", 1)
    found = sweep(factory(limits(UNARY=100)), n=[1, 1000])
    assert edges(found) == [("n", 100, 101, {})]


def test_words_and_flags_are_compared_as_they_are(factory):
    build = factory()
    found = sweep(lambda where, n: build(n, host=where == "host"), where=["host", "gpu"], n=1)
    assert edges(found) == [("where", "host", "gpu", {"n": 1})]
    assert {m.name for m in found.thresholds[0].moved} >= {"h"}
    found = sweep(lambda extra: build(extra=extra), extra=[False, True])
    (threshold,) = found.thresholds
    assert (threshold.moved, threshold.n_removed, threshold.n_added) == ((), 0, 1)
    assert threshold.reason == "the graph changes: 0 nodes removed, 1 added"
    assert "n_added" in json.dumps(found.to_dict())


def test_the_same_plan_everywhere(factory):
    found = sweep(factory(), n=np.array([4, 1, 4]), k=7)
    assert found.axes == {"n": (1, 4), "k": (7,)}
    assert (found.thresholds, found.n_builds) == ((), 2)
    assert str(found).splitlines()[-1] == "the plan is the same everywhere"
    assert str(found).splitlines()[0].startswith("n=1, k=7: 1 split, 1 copy (256 B), nodes: ")


def test_shapes_without_a_plan(factory):
    build = factory(limits(UNARY=100))
    found = sweep(lambda n: build(n) if n <= 500 else None, n=[1, 400, 600])
    assert edges(found) == [("n", 100, 101, {})]
    assert found.points[-1].totals is None and "n=600: no plan" in str(found)
    found = sweep(lambda n: build(n) if n in (1, 600) else None, n=[1, 600])
    assert edges(found) == [("n", 1, 600, {})]


def test_it_can_be_written_down(factory):
    found = sweep(factory(limits(UNARY=100)), n=[1, 1000])
    data = json.loads(json.dumps(found.to_dict()))
    assert data["thresholds"][0]["before"] == 100
    assert data["thresholds"][0]["reason"] == found.thresholds[0].reason
    assert data["points"][0]["totals"]["n_splits"] == 1


def test_it_is_shown_in_a_terminal(factory):
    build = factory(limits(UNARY=100))
    found = sweep(lambda n: build(n) if n < 2000 else None, n=[1, 1000, 2000])
    console = Console(width=120, file=io.StringIO())
    to_terminal.show_sweep(found, console)
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("n 100 → 101: 1 node moves, splits 1 → 3")
    assert [line.split() for line in lines[2:5]] == [
        ["1", "1", "1", "256", "B", "4", "0"],
        ["1000", "3", "3", "750.0", "KiB", "3", "1"],
        ["2000"],
    ]
    assert lines[6].startswith("  wide, RELU gpu0 → CPU: gpu0 does not")
    to_terminal.show_sweep(sweep(build, n=1), console)
    assert "the plan is the same everywhere" in console.file.getvalue()


@pytest.mark.parametrize(
    ("axes", "error", "message"),
    [
        ({}, TypeError, "no axes: give values for the arguments of build"),
        ({"n": []}, ValueError, "n: no values, expected at least one"),
        ({"n": [[1]]}, TypeError, r"n: \[1\]: expected integers, or words and flags"),
        ({"n": object()}, TypeError, "n=<object.*expected values for build's argument n"),
        ({"m": [1]}, TypeError, "unexpected keyword argument 'm'"),
    ],
)
def test_axes_that_make_no_sense(factory, axes, error, message):
    with pytest.raises(error, match=message):
        sweep(factory(), **axes)


def test_builds_that_give_no_plan():
    with pytest.raises(TypeError, match=r"build\(n=1\) returned 3: expected a Plan or None"):
        sweep(lambda n: 3, n=[1, 2])
    with pytest.raises(TypeError, match="build: expected a function that returns a Plan, got 1"):
        sweep(1, n=[1])
    with pytest.raises(ZeroDivisionError) as caught:
        sweep(lambda n, k: 1 // (n - 2), n=[2], k=[7])
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["while sweep built the plan for n=2, k=7"]


def test_progress_is_on_stderr(factory, capfd):
    sweep(factory(limits(UNARY=100)), n=[1, 1000], progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "plans" in err
    sweep(factory(limits(UNARY=100)), n=[1, 1000])
    assert capfd.readouterr() == ("", "")


def test_it_works_where_the_native_module_is_blocked(factory, tmp_path):
    build = factory(limits(UNARY=100))
    for n in range(98, 104):
        build(n).to_json(tmp_path / f"{n}.json")
    program = (
        "import sys; sys.modules['ggml_py._ggml'] = None\n"
        "import ggml_py\n"
        "from ggml_py.trace import sweep\n"
        f"found = sweep(lambda n: ggml_py.Plan.from_json({str(tmp_path)!r} + f'/{{n}}.json'),\n"
        "              n=[98, 103])\n"
        "print(found.thresholds[0].headline())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("n 100 → 101: 1 node moves, splits 1 → 3"), done.stderr


@pytest.mark.thorough("long")
@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["UNARY", "SCALE", "MUL_MAT"]), st.integers(0, 40)),
    st.lists(st.integers(1, 40), min_size=2, max_size=4, unique=True),
)
def test_bisection_finds_what_looking_everywhere_finds(factory, most, values):
    build = factory(limits(**most))
    found = sweep(build, n=values)
    everywhere = {n: thresholds.signature(build(n)) for n in range(1, 41)}
    values = sorted(values)
    expected = [
        (n, n + 1) for n in range(values[0], values[-1]) if everywhere[n] != everywhere[n + 1]
    ]
    assert [(t.before, t.after) for t in found.thresholds] == expected
    for t in found.thresholds:
        assert t.moved[0].decides

"""Plans: the contract's names, the causes, passes, and plans as files."""

import gc
import json
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import ggml_py as ggml
from ggml_py.scheduler import capture
from ggml_py.trace import reference
from ggml_py.trace.answers.passes import PASS_NAMES
from ggml_py.trace.record import collection_paused
from ggml_py.variants.rebuild import node_of

from ..support import graphs

UNKNOWN = "because an older ggml_py recorded only nodes"


def test_splits(mlp):
    first = mlp.splits[1]
    assert (first.index, first.backend, first.start, first.end) == (1, "CPU", 1, 2)
    assert [n.op for n in first.nodes] == ["UNARY"]
    assert first.inputs == ()  # BLAS and CPU share host memory
    assert (mlp.n_splits, mlp.copy_bytes, mlp.n_inputs) == (3, 0, 0)
    assert [(s.start, s.end) for s in mlp.splits] == [(0, 1), (1, 2), (2, 3)]


def test_nodes(mlp):
    node = mlp.node("h")
    assert node == mlp.node(0) == mlp.find("h*")[0]
    assert (node.index, node.id, node.name, node.op, node.type) == (0, 0, "h", "MUL_MAT", "f32")
    assert (node.ne, node.backend, node.split, node.nbytes) == ((128, 48, 1, 1), "BLAS", 0, 24576)
    assert [s.name for s in node.srcs] == ["up", "inp"]
    assert node.view_src is None
    compute = ("compute",) * hasattr(ggml.enums.TensorFlag, "COMPUTE")  # since 0.9.7
    assert mlp.node("out").flags == ("output", *compute)
    assert mlp.node("inp").flags == ("input",)


def test_a_repeated_name_means_the_last_and_an_unknown_one_suggests(mlp, plans):
    with pytest.raises(KeyError, match="no node named 'ou'; similar: out"):
        mlp.node("ou")
    with pytest.raises(KeyError, match=r"nodes 0\.\.2"):
        mlp.node(3)
    unnamed = [n for n in plans["views"].nodes if n.name.endswith("(view)")]
    if unnamed:
        assert plans["views"].node(unnamed[-1].name).index == max(
            n.index for n in plans["views"].nodes if n.name == unnamed[-1].name
        )


def test_tensors_of_two_plans_are_not_the_same(mlp):
    other = replace(mlp)
    assert mlp == other and mlp.node(0) == mlp.node("h")
    assert mlp.node(0) != other.node(0) and len({mlp.node(0), other.node(0), mlp.node("h")}) == 2


def test_nodes_of_a_plan_are_on_record_as_they_are():
    """A cast, which is a source of itself; a copy into a view; a product in place."""
    with ggml.Context() as ctx, ggml.Context() as cache, ggml.device("CPU").init() as cpu:
        k, x = cache.new_tensor("f16", 64, 16, name="k"), ctx.new_tensor("f32", 64, 4, name="x")
        cache.alloc(cpu)
        x.set_input()
        made = [
            ctx.cast(x, "f16"), ctx.cpy(x, ctx.view_2d(k, 64, 4, k.nb[1], 0)),
            ctx.mul_inplace(ctx.sqr(x), x),
        ]  # fmt: skip
        graph = ctx.new_graph()
        graph.build_forward_expand(*made)
        with ggml.Scheduler([cpu]) as scheduler:
            plan = scheduler.plan(graph)
        for node in made:
            there = node_of(next(n for n in plan.nodes if graph.nodes[n.index] == node))
            assert there == node_of(node)


def test_garbage_collection_is_afterwards_as_it_was_before():
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collection_paused():
        assert not gc.isenabled()
        _ = 1 // 0
    assert gc.isenabled()
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_garbage_collection_is_on_after_several_threads_paused_it():
    """With a flag of each thread's own, one switched it off for good: it saw the pause of another,
    which ended before it began its own."""

    def pause():
        for _ in range(20_000):
            with collection_paused():
                pass

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=pause) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gc.isenabled()
    finally:
        sys.setswitchinterval(before)
        gc.enable()


def test_assignments_have_every_tensor(mlp):
    assert set(mlp.assignments) == {t.id for t in mlp.tensors}
    assert mlp.assignments[0] == "BLAS"
    assert mlp.assignments[mlp.node("inp").id] == "CPU"


@pytest.mark.parametrize(
    ("case", "node", "code", "pass_", "witness", "words"),
    [
        ("mlp", "h", "1.wgt0", 1, "up", "follows its weight src[0] 'up'"),
        ("mlp", 1, "3.best", 3, None, "no neighbour's backend supports it"),
        ("mlp", "inp", "1.inp", 1, None, "inputs go to the last backend, CPU"),
        ("mlp", "up", "1.dst", 1, None, "already allocated in CPU memory"),
        ("views", "kq", "3.upg", 3, None, "moved up to BLAS"),
        ("sweeps", "above", "2.sup", 2, "middle", "BLAS supports it and spread up to it"),
        ("sweeps", "below", "2.sup", 2, "middle", "BLAS supports it and spread down to it"),
        ("small_batch", "out", "2.sup", 2, "node_0", "spread down to it from its neighbour"),
    ],
)
def test_causes(plans, case, node, code, pass_, witness, words):
    cause = plans[case].node(node).cause
    assert (cause.code, cause.pass_) == (code, pass_)
    assert (cause.witness.name if cause.witness else None) == witness
    assert words in cause.text
    assert str(cause) == f"{code}: {cause.text}"


def test_an_offloaded_op_follows_from_its_weight(mlp):
    """The same graph, were BLAS a device with memory of its own that wants the op."""
    capture = mlp.capture
    only_cpu = tuple(b._replace(readers=0b10) for b in capture.bufts)
    wanted = (capture.tensors[0]._replace(offload=0b01), *capture.tensors[1:])
    cause = reference.plan(replace(capture, bufts=only_cpu, tensors=wanted)).node(0).cause
    assert (cause.code, cause.pass_, cause.witness.name) == ("1.off", 1, "up")
    assert cause.text.startswith("BLAS offloads it: its weight src[0] 'up' is in host memory")


def test_every_node_and_leaf_has_a_cause(plans):
    for plan in plans.values():
        for t in (*plan.nodes, *plan.leafs):
            assert t.cause.code, t
            assert "another tensor" not in t.cause.text, (t, t.cause)


def test_passes_end_with_the_assignment_and_start_with_pass_1(mlp):
    rows = mlp.passes().splitlines()
    assert rows[0].split() == ["1", "B", "?", "B"]
    assert rows[6].split() == ["4", "B", "C", "B"]
    assert rows[-1] == "B = BLAS, C = CPU"


def test_leafs_are_shown_after_each_pass_too(mlp):
    """A leaf without memory that is no input gets its place in pass 4, the others in pass 1."""
    rows = mlp.passes().splitlines()
    at = rows.index("leafs") + 1
    assert [leaf.name for leaf in mlp.leafs] == ["down", "up", "inp"]
    assert [row.split()[-3:] for row in rows[at : at + 7]] == [["B", "B", "C"]] * 7
    assert rows[at:] and [row[:12].strip() for row in rows[at : at + 7]] == list(PASS_NAMES)
    cpu, blas = ggml.device("CPU").init(), ggml.device("BLAS").init()
    with ggml.Context() as ctx, ggml.Scheduler([blas, cpu]) as sched:
        inp, free = ctx.new_tensor("f32", 64, 48, name="inp"), ctx.new_tensor("f32", 64, 48)
        inp.set_input()
        graph = ctx.new_graph()
        graph.build_forward_expand(ctx.add(ctx.mul_mat(inp, free), ctx.new_tensor("f32", 48)))
        plan = sched.plan(graph)
        assert [leaf.placement.passes for leaf in plan.leafs] == [
            (1,) * 7,  # 1.inp
            (-1,) * 6 + (0,),  # 4.cur
            (-1,) * 6 + (1,),
        ]
        assert [leaf.cause.code for leaf in plan.leafs] == ["1.inp", "4.cur", "4.cur"]
        assert plan == plan.reference and plan.outcome == plan.reference.outcome


def test_a_file_of_the_schema_before_does_not_know_the_passes_of_leafs(mlp, tmp_path):
    """It is read, and says so."""
    data = mlp.to_json()
    data["schema"] = 2
    for row in data["tensors"]:
        if row["kind"] == "leaf":
            row["passes"] = []
    (tmp_path / "old.json").write_text(json.dumps(data))
    old = ggml.Plan.from_json(tmp_path / "old.json")
    nodes, _leafs = mlp.passes().split("\nleafs\n")
    letters = mlp.passes().splitlines()[-1]
    assert old.passes() == f"{nodes}\nleafs: unknown, {UNKNOWN}\n{letters}"
    assert old.text() == mlp.text() and str(old.explain("h")) == str(mlp.explain("h"))
    old.export(tmp_path / "old.html")
    data["tensors"][mlp.leafs[0].id]["passes"] = [0] * 7  # some know it, some do not
    (tmp_path / "old.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"passes of 'up' is \(\), expected 7 backends"):
        ggml.Plan.from_json(tmp_path / "old.json")


def test_headline_counts(mlp):
    assert mlp.headline() == (
        "3 splits, 0 copies (0 B), nodes: BLAS 2 (67%), CPU 1 (33%); "
        "FLOPs: BLAS 100%, CPU 0%; bytes: BLAS 74%, CPU 26%"
    )


def test_a_plan_survives_its_file(plans, tmp_path):
    for name, plan in plans.items():
        path = tmp_path / f"{name}.json"
        plan.to_json(path)
        again = ggml.Plan.from_json(path)
        assert again == plan
        assert again.text() == plan.text()
        assert [str(n.cause) for n in again.nodes] == [str(n.cause) for n in plan.nodes]
    assert plans["mlp"] != plans["views"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not written by"),
        ('{"kind": "ggml_py plan", "schema": 99}', "schema 99"),
        ('{"kind": "ggml_py plan", "schema": 1}', "schema 1; this ggml_py reads 2"),
        ('{"kind": "ggml_py plan", "schema": 2}', "damaged"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        ggml.Plan.from_json(path)


def test_plans_are_read_where_the_native_module_is_blocked(mlp, tmp_path):
    mlp.to_json(tmp_path / "p.json")
    program = (
        "import sys; sys.modules['ggml_py._ggml'] = None\n"
        "import ggml_py\n"
        f"plan = ggml_py.Plan.from_json({str(tmp_path / 'p.json')!r})\n"
        "print(plan.headline()); print(plan.text()); print(plan.passes())\n"
        "try: ggml_py.devices\n"
        "except ggml_py.NotBuiltError as e: print('blocked:', e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert mlp.headline() in done.stdout
    assert mlp.text() in done.stdout
    assert "blocked: the native module" in done.stdout


def test_json_is_plain(mlp):
    data = json.loads(json.dumps(mlp.to_json()))
    assert (data["schema"], data["n_splits"]) == (6, 3)


def test_a_plan_is_read_when_somebody_looks_and_is_the_same_then(monkeypatch):
    """What it says is copied when it is made: the scheduler, its graph and backends may go."""
    read, seen = capture.read, []
    case = graphs.mlp()
    want = case.scheduler.plan(case.graph)
    text = want.text()
    def noted(records, *more):
        seen.append(records)
        return read(records, *more)

    monkeypatch.setattr(capture, "read", noted)
    plans = [case.scheduler.plan(case.graph) for _ in range(3)]
    case.close()
    assert not seen
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: plans[0].outcome, range(8)))
    assert all(one is plans[0].outcome for one in found) and len(seen) == 1
    assert plans[1].capture is plans[1].capture and plans[1].text() == text and len(seen) == 2
    sent = pickle.loads(pickle.dumps(plans[2]))
    assert sent == want == plans[2] and sent.planner == "native" and type(sent) is ggml.Plan
    assert len(seen) == 3

"""What graphs compute on made-up values under two releases, and how long it takes."""

import math
import time

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.releases import Made, rule_cases
from ggml_py.releases.conditions import condition, rounds_of
from ggml_py.releases.outputs import (
    MIN_ROUNDS,
    P,
    output_error,
    signed_rank_p,
    time_change,
)
from ggml_py.releases.runs import run_changes
from ggml_py.scheduler.as_recorded import AsRecorded
from ggml_py.scheduler.made_up import MadeUp
from ggml_py.scheduler.observed import Observed, Output

from ..support.cli_runs import fails

PLAN = next(case.plan for case in rule_cases())


def made(*outputs, seconds=(), plan=PLAN):
    return Made(plan, "", Observed({}, {}, (), 1, (), "", tuple(outputs), tuple(seconds)))


def output(name, *values):
    return Output(name, "ADD", str(values), values)


# --- the p-value: against counting all signs, and what tables say

@pytest.mark.parametrize("seed", range(12))
def test_p_is_the_share_of_signs(seed):
    rng = np.random.default_rng(seed)
    values = [float(v) for v in rng.integers(-4, 5, 9)]  # with ties, and zeros
    used = [v for v in values if v]
    sizes = sorted(abs(v) for v in used)
    rank = [sizes.index(abs(v)) + (sizes.count(abs(v)) + 1) / 2 for v in used]
    mean = sum(rank) / 2
    far = abs(sum(r for r, v in zip(rank, used, strict=True) if v > 0) - mean)
    n = 0
    for signs in range(1 << len(used)):
        n += abs(sum(r for i, r in enumerate(rank) if signs >> i & 1) - mean) >= far - 1e-9
    assert signed_rank_p(values) == pytest.approx(n / (1 << len(used)))


def test_p_of_the_tables():
    # The critical value for n = 10 and 0.05, two-sided, is 8; for 0.01 it is 3.
    def p_of(w):
        negative = {1: [1], 3: [1, 2], 4: [1, 3], 8: [3, 5], 9: [4, 5]}[w]
        return signed_rank_p([-r if r in negative else r for r in range(1, 11)])

    assert p_of(8) < 0.05 < p_of(9) and p_of(3) < 0.01 < p_of(4)
    assert signed_rank_p([1] * MIN_ROUNDS) < P < signed_rank_p([1] * (MIN_ROUNDS - 1))
    assert signed_rank_p([]) == signed_rank_p([0.0]) == 1.0


# --- outputs

def test_the_output_that_differs_most():
    a = made(output("x", 1.0, 2.0), output("y", 1.0, 1.0), output("x", 5.0))
    b = made(output("x", 1.0, 2.2), output("y", 1.0, 1.0), output("x", 4.0))
    found = output_error(a, b)
    assert (found.name, found.n_different, found.n) == ("x", 2, 3)
    assert found.error == pytest.approx(1 / 16)  # of the second x
    assert output_error(a, a) == ("x", 0.0, 0, 3, "")
    assert output_error(a, made(output("z", 1.0))) is None
    assert output_error(a, Made(None, "none")) is None
    shorter = made(output("x", 1.0))
    assert output_error(a, shorter).error == math.inf


def test_an_error_of_what_is_no_number():
    a, b = made(output("x", math.nan, 1.0)), made(output("x", 1.0, 1.0))
    assert output_error(a, b).error == math.inf
    assert output_error(a, a).error == 0.0


def test_a_small_error_is_not_told_and_a_large_one_is():
    a = made(output("x", 1.0, 1.0))
    assert not run_changes(a, made(output("x", 1.0, 1.005)))
    (told,) = run_changes(a, made(output("x", 1.0, 1.05)))
    assert told.kind == "output" and told.text.startswith("'x' is computed otherwise: error 0.0011")


# --- times

def test_a_time_counts_only_with_its_significance():
    slow = made(seconds=[1.2e-3 + i * 1e-6 for i in range(10)])
    fast = made(seconds=[1e-3 + i * 1e-6 for i in range(10)])
    (told,) = run_changes(fast, slow)
    assert told.text == (
        "a compute takes 1.20 times as long: 1 ms → 1.2 ms (p = 0.002, 10 rounds)"
    )
    noisy = made(seconds=[1e-3 * (1.4 if i % 2 else 0.9) for i in range(10)])
    assert not run_changes(fast, noisy)
    assert time_change(fast, made()) is None
    assert time_change(fast, slow).ratio == pytest.approx(1.2, rel=1e-2)


def test_conditions_beside_the_first_release():
    fast = made(output("x", 1.0), seconds=[1e-3 + i * 1e-6 for i in range(10)])
    slow = made(output("x", 1.1), seconds=[1.2e-3 + i * 1e-6 for i in range(10)])
    assert condition("time > 1.1")(slow, fast) and not condition("time > 1.3")(slow, fast)
    assert condition("time < 1")(fast, slow) and not condition("time > 1.0")(fast, fast)
    assert condition("error > 1e-3")(slow, fast) and not condition("error > .5")(slow, fast)
    assert rounds_of(" time > 1.1") == 10 and rounds_of("error > 1") == rounds_of("") == 0
    seen = slow.observed._replace(seconds=(), untimed="gpu0 is simulated")
    untimed = slow._replace(observed=seen)
    with pytest.raises(ValueError, match="time is not known: gpu0 is simulated"):
        condition("time > 1.1")(untimed, fast)
    with pytest.raises(ValueError, match="error is not known: no plan: no such op"):
        condition("error > 0")(slow, Made(None, "no such op"))


def test_too_few_rounds():
    from ggml_py.releases import compare

    with pytest.raises(ValueError, match="7 rounds: expected at least 8, or none"):
        compare("0.25.3", "0.26.0", [], rounds=7)
    with pytest.raises(ValueError, match="only planned is not timed"):
        compare("0.25.3", "0.26.0", [], rounds=8, observe=False)
    words = ("--upstream", "0.25.3", "--upstream", "0.26.0", "--times", "8", "--plans-only")
    assert "--times computes, --plans-only does not" in fails("compare", *words, code=2)


# --- made-up values

def test_values_are_the_same_again_and_indices_name_rows():
    cpu = ggml.device("CPU")
    with ggml.Context() as ctx, cpu.init() as backend:
        table = ctx.new_tensor("q4_0", 32, 5, name="table")
        cache = ctx.new_tensor("f16", 32, 4, name="cache")
        ids = ctx.new_tensor("i32", 8, name="ids")
        places = ctx.new_tensor("i64", 3, name="places")
        norm = ctx.new_tensor("f32", 32, name="norm")
        iq = ctx.new_tensor("iq2_xxs", 256, 2, name="needs an imatrix")
        rows = ctx.get_rows(table, ids)
        kept = ctx.set_rows(cache, ctx.new_tensor("f32", 32, 3, name="new"), places)
        leafs = [table, cache, ids, places, norm, iq]
        with ctx.alloc(backend) as buffer:
            found = []
            for _ in range(2):
                MadeUp([*leafs, rows, kept]).write()
                found.append([t.get() for t in leafs])
                buffer.clear()
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert found[0][2].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert found[0][3].tolist() == [0, 1, 2]
    assert found[0][4].min() >= 0.5 and found[0][4].max() <= 1.5
    assert np.abs(found[0][5]).max() > 0 and 0 < np.std(found[0][0]) * np.sqrt(32) < 2


def test_a_plan_on_real_devices_is_timed(plan_on_cpu):
    with AsRecorded(plan_on_cpu) as recorded:
        seen = recorded.observe(plan_on_cpu)
        assert recorded.median_seconds(plan_on_cpu) > 0
        assert recorded.observe(plan_on_cpu).outputs == seen.outputs
    assert [output.name for output in seen.outputs][-1] == "result_output"
    assert np.isfinite(seen.outputs[-1].sample).all()


def test_a_plan_on_simulated_devices_is_not_timed():
    with AsRecorded(PLAN) as recorded, pytest.raises(ggml.ArgumentError, match="gpu0 is simulated"):
        recorded.median_seconds(PLAN)


@pytest.fixture
def plan_on_cpu(tmp_path):
    from ggml_py.models import load
    from ggml_py.models.synthetic import LlamaSpec, write_llama

    write_llama(tmp_path / "m.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    with load(tmp_path / "m.gguf", devices=["CPU"]) as model:
        return model.plan(1, 3)


def test_the_p_of_many_rounds_takes_no_time_and_joins_the_exact_one(monkeypatch):
    start = time.perf_counter()
    assert signed_rank_p([(-1) ** i * (i + 1.0) for i in range(5000)]) > 0.9
    assert time.perf_counter() - start < 30
    values = [i - 23.5 for i in range(60)]
    exact = signed_rank_p(values)
    assert P / 3 < exact < 3 * P  # where it decides
    monkeypatch.setattr("ggml_py.releases.outputs._EXACT", 59)
    assert signed_rank_p(values) != exact
    assert signed_rank_p(values) == pytest.approx(exact, rel=0.15)


def test_a_graph_that_ends_in_a_view_has_an_output():
    with ggml.Context() as ctx, ggml.device("CPU").init() as cpu:
        x = ctx.new_tensor("f32", 8, 2, name="x")
        graph = ctx.new_graph()
        graph.build_forward_expand(ctx.reshape_1d(ctx.sqr(x), 16))
        with ggml.Scheduler([cpu]) as scheduler:
            plan = scheduler.plan(graph)
    with AsRecorded(plan) as recorded:
        assert [one.op for one in recorded.observe(plan).outputs] == ["SQR"]


def test_what_differs_outside_of_the_sample_is_named():
    a = made(output("x", 1.0), Output("y", "ADD", "before", (2.0,)))
    b = made(output("x", 1.0), Output("y", "ADD", "after", (2.0,)))
    assert output_error(a, b) == ("y", 0.0, 1, 2, "")


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ((1.0, 2.0), (0.0, 0.0), "all 2 values are 0, and were not"),
        ((1.0, 2.0), (1.0, math.nan), "1 of 2 values are NaN, before 0"),
        ((1.0, math.inf), (1.0, 2.0), "0 of 2 values are infinite, before 1"),
        ((1.0, 2.0), (1.0, 2.0, 3.0), "3 values of a sample, not 2"),
    ],
)
def test_an_error_without_a_number_has_a_reason(was, now, why):
    before, after = made(output("x", *was)), made(output("x", *now))
    found = output_error(before, after)
    assert math.isinf(found.error) and found.why == why
    (change,) = run_changes(before, after)
    assert change.text == f"'x' is computed otherwise: {why}" and "inf," not in change.text
    assert output_error(made(output("x", 1.0)), made(output("x", 2.0))).why == ""

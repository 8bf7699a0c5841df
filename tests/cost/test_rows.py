"""Rows of llama-bench: which graphs they add up, and what they say of what they rest on."""

import json
import math

import pytest

import ggml_py as ggml
from ggml_py import llama
from ggml_py.cost import bench_rows as rows
from ggml_py.cost.analysis import Analysis
from ggml_py.cost.bench_rows import prompt_row
from ggml_py.cost.time_difference import predicted_time
from ggml_py.export.predicted_times import predicted_times
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import ok
from ..support.measured import device, knows_all, machine, sample

K = 64


def plan_of(n):
    """A product with `n` columns on the CPU."""
    with ggml.Context() as weights, ggml.Context() as context:
        w = weights.new_tensor("f32", K, K, name="w")
        weights.alloc("CPU", usage="weights")
        x = context.new_tensor("f32", K, n, name="x")
        x.set_input()
        graph = context.new_graph()
        graph.build_forward_expand(context.mul_mat(w, x))
        return ggml.Scheduler([ggml.device("CPU").init(n_threads=1)]).plan(graph)


@pytest.mark.parametrize("n_prompt, n_batch, n_ubatch, expected", [
    (1200, 300, 256, {256: [0, 300, 600, 900], 44: [256, 556, 856, 1156]}),
    (1200, 2048, 512, {512: [0, 512], 176: [1024]}),
    (700, 600, 256, {256: [0, 256], 88: [512], 100: [600]}),
    (5, 512, 512, {5: [0]}),
])  # fmt: skip
def test_a_prompt_is_cut_as_llama_bench_cuts_it(n_prompt, n_batch, n_ubatch, expected):
    """Into batches, and each of those into graphs."""
    seen, plans = {}, {n: plan_of(n) for n in expected}

    def plan(n, n_past):
        seen.setdefault(n, []).append(n_past)
        return plans[n]

    known = knows_all(plans.values())
    row = prompt_row(plan, known, n_prompt, 0, n_batch, n_ubatch)
    assert seen == expected
    seconds = sum(len(depths) * plans[n].cost(known).seconds for n, depths in expected.items())
    assert row.seconds == pytest.approx(seconds)


def test_time_between_depths_is_a_line_over_the_depths():
    """Not over the number of the graph: a batch's first graph and its last are not as far apart."""
    plans = {}

    def plan(n, n_past):  # takes one second for each token before it
        plans.setdefault(n, plan_of(n))
        return plans[n]

    real = rows.cost_of

    def by_depth(planned, known, n_past):
        cost = real(planned, known, n_past)
        return type(cost)(**{**vars(cost), "seconds": 1.0 + n_past, "following": 1.0 + n_past})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "cost_of", by_depth)
        row = prompt_row(plan, machine(), 700, 0, 260, 100, graphs=2)
    depths = [start for b in (0, 260, 520) for start in range(b, min(b + 260, 700), 100)]
    assert row.seconds == pytest.approx(sum(1.0 + depth for depth in depths))


def test_where_nothing_says_how_slow_it_may_be_there_is_no_lower_rate(tmp_path):
    """A file without the CPU: most of the layers may be there."""
    plan = plan_of(4)
    known = machine(sample("split", (), 1e-6), name="gpu0")
    row = prompt_row(lambda _n, _past: plan, known, 4, 0, 4, 4)
    assert row.n_unknown and row.tokens_per_second_interval[0] == 0.0
    text = json.dumps(row.to_dict(), allow_nan=False)  # JSON has no infinity
    assert json.loads(text)["tokens_per_second_interval"] == [0.0, None]
    assert row.to_dict()["not_measured"] == ["MUL_MAT f32"]
    cost = plan.cost(known)
    assert cost.interval[1] == math.inf and cost.headline().endswith("100% of the work")
    # Nor has any other data, or a page.
    change = predicted_time(plan, plan, known)
    for data in (cost.to_dict(), change.to_dict(), Analysis(cost, 1, 1.0, ()).to_dict()):
        json.dumps(data, allow_nan=False)
    assert predicted_times(cost).compute.startswith("not known: 1 of 1 nodes")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=1, n_embd=64, n_head=2, n_head_kv=1, n_ff=96, n_vocab=96,
                                n_ctx=256, type="f16"))  # fmt: skip
    return path


def test_a_model_larger_than_memory_is_said(model, tmp_path):
    """A mapped file needs none to be loaded, and is then read from the disk for each token."""
    with llama.open(model, n_ctx=80, program="bench", header_only=True) as opened:
        plan = opened.plan(1)
        needed = sum(row.weights + row.cache for row in opened.memory if row.device == "CPU")
        for memory, expected in ((needed // 2, 1), (needed * 2, 0), (0, 0)):
            said = plan.cost(machine(memory=memory)).assumed
            assert sum("reading weights from the disk" in one for one in said) == expected
    machine(more=(device("gpu0"),), memory=1000).save(tmp_path / "m.json")


def test_the_json_says_what_it_rests_on(model, tmp_path):
    with llama.open(model, n_ctx=80, program="bench", header_only=True) as opened:
        known = knows_all([opened.plan(1), opened.plan(8)], memory=1000)
    known.save(tmp_path / "m.json")
    words = ("cost", model, "-d", "CPU", "--machine", tmp_path / "m.json", "-p", 8, "-n", 4)
    data = json.loads(ok(*words, "--json"))
    for row in data["rows"]:
        assert row["not_measured"] == [] and "reading weights from the disk" in row["assumed"][0]
    assert "to verify" in ok(*words)
    # llama-bench would refuse these.
    assert json.loads(ok(*words, "-ctk", "f32", "--json"))["verify"] is None

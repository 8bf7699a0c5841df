"""Advice: each finding where it is true, and a near miss where it is not."""

import json
import random
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.advice import all_findings as advice
from ggml_py.trace.facts import Facts, weight_pattern

from ..support import graphs, random_graphs
from ..support.advice_world import (
    PLACES,
    World,
    attention,
    findings,
    gpu,
    ids,
    names,
    no_quantised_cache,
    only,
)

PAGES = Path(__file__).parents[2] / "docs" / "advice"


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


# --- all of them


@pytest.mark.parametrize("name", graphs.CASES)
def test_plain_graphs_on_blas_and_cpu_need_no_advice(name):
    case = graphs.CASES[name]()
    assert case.scheduler.plan(case.graph).advice(min_bytes=1) == ()
    case.close()


def llama(stack, tmp_path, *devices, n_tokens=1, n_gpu_layers=0, **options):
    from ggml_py.models import load
    from ggml_py.models.synthetic import LlamaSpec, write_llama

    path = tmp_path / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=4, n_vocab=512))
    made = [d if isinstance(d, str) else stack.enter_context(ggml.sim_device(**d)) for d in devices]
    with load(path, devices=made, n_gpu_layers=n_gpu_layers, repack=False, **options) as model:
        return model.plan(n_tokens=n_tokens, n_past=64)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (["CPU"], {"n_tokens": 1}),
        (["CPU"], {"n_tokens": 64}),
        (["BLAS", "CPU"], {"n_tokens": 64}),
        ([gpu(), "CPU"], {"n_tokens": 1, "n_gpu_layers": 99}),
        ([gpu(), "CPU"], {"n_tokens": 64, "n_gpu_layers": 99}),
        ([gpu(), "BLAS", "CPU"], {"n_tokens": 64, "n_gpu_layers": 99}),
        ([gpu(), "CPU"], {"n_tokens": 1, "n_gpu_layers": 2}),
        ([gpu(), "CPU"], {"n_tokens": 64, "n_gpu_layers": 99, "flash_attn": "off"}),
    ],
)
def test_llamas_as_they_should_be_need_no_advice(stack, tmp_path, devices, options):
    plan = llama(stack, tmp_path, *devices, **options)
    swept = [f for f in findings(plan) if f.id == "GP116"]  # of a few bytes, where layers part
    assert [str(f) for f in findings(plan)] == list(map(str, swept))
    assert {f.id for f in plan.advice()} <= PLACES


def test_findings_are_ordered_by_bytes_and_can_be_data(stack, tmp_path):
    def supports(t):
        return t.op.name not in ("GLU", "FLASH_ATTN_EXT")

    device = gpu(supports=supports)
    plan = llama(
        stack, tmp_path, device, "CPU", n_tokens=64, n_gpu_layers=2, flash_attn="on"
    )
    found = plan.advice(min_bytes=1)
    assert len(found) > 2
    assert [(-f.bytes, f.id) for f in found] == sorted((-f.bytes, f.id) for f in found)
    assert sum(f.bytes for f in found if f.id not in PLACES) <= plan.copy_bytes
    for f in found:
        data = f.to_dict()
        assert [plan.tensor(t["id"]).name for t in data["tensors"]] == names(f)
        assert data["page"] == f"docs/advice/{f.id}.md"
        title, *lines = str(f).splitlines()
        assert title.startswith(f"{f.id} {f.title} ({f.severity}")
        told = " ".join(line[4:] for line in lines)
        assert told == f"{f.text} {f.suggestion}" and "  > " in {line[:4] for line in lines}


@pytest.mark.parametrize("seed", range(60))
def test_advice_of_random_graphs_holds_together(stack, seed):
    rng = random.Random(seed)
    world = random_graphs.build(rng, rng.choice((1, 2)), 24)
    stack.callback(world.close)
    for graph in world.graphs:
        world.pin()
        try:
            plan = world.scheduler.plan(graph)
        except (ggml.AbortError, ggml.ArgumentError):  # a graph that ggml cannot place
            continue
        found = plan.advice(min_bytes=1)
        about_copies = [f for f in found if f.id not in ("GP105", "GP106", *PLACES)]
        assert sum(f.bytes for f in about_copies) <= plan.copy_bytes
        assert all(f.tensors for f in found if f.id not in ("GP110", "GP121"))
        assert found == plan.advice(min_bytes=0)
        assert not {"GP102", "GP103", "GP104", "GP109"} & {f.id for f in plan.advice(1 << 40)}


@pytest.mark.parametrize("wrong", [-1, 1.5, "1M", None])
def test_a_number_of_bytes_that_is_none(wrong):
    case = graphs.mlp()
    with pytest.raises(ValueError, match=r"min_bytes=.*expected a whole number"):
        case.scheduler.plan(case.graph).advice(wrong)
    case.close()


def test_every_id_has_a_page_and_every_page_an_id():
    ids = {c.id for c in advice.CHECKS} | {advice.SKIPPED}
    assert {p.stem for p in PAGES.glob("GP*.md")} == ids
    titles = {c.id: c.title for c in advice.CHECKS}
    listed = dict(re.findall(r"^\| \[(GP\d+)\]\(GP\d+\.md\) \| ([^|]+) \|", _readme(), re.M))
    assert set(listed) == ids
    plain = {id: title.partition(" (only with")[0] for id, title in listed.items()}
    assert {id: title for id, title in plain.items() if id in titles} == titles
    for id, title in titles.items():
        assert (PAGES / f"{id}.md").read_text().startswith(f"# {id}: {title}\n")


def _readme():
    return (PAGES / "README.md").read_text()


def test_ids_are_used_once():
    assert len({c.id for c in advice.CHECKS}) == len(advice.CHECKS)


# --- GP101 silent fallback


def test_gp101_flash_attention_on_the_cpu_for_its_cache(stack):  # llama.cpp #12352, #28455, #12624
    w = World(stack, gpu(supports=no_quantised_cache), "CPU")
    plan = w.plan(attention(w, "q8_0"))
    assert plan.node("kqv").backend == "CPU"
    finding = only(plan, "GP101")
    assert names(finding) == ["kqv"]
    # both caches come down, the query too, the result goes up
    caches = 2 * plan.node("k").nbytes
    assert finding.bytes == caches + plan.node("q").nbytes + plan.node("kqv").nbytes
    assert "gpu0 does not support it (sources: f32, q8_0, q8_0)" in finding.text
    assert "1 split instead of 3" in finding.text
    assert "-ctk f16 -ctv f16" in finding.suggestion


def test_gp101_not_for_a_cache_that_the_device_supports(stack):
    w = World(stack, gpu(supports=no_quantised_cache), "CPU")
    assert ids(w.plan(attention(w, "f16"))) == []


def test_gp101_not_for_what_the_caller_pinned(stack):
    w = World(stack, gpu(supports=no_quantised_cache), "CPU")
    out = attention(w, "q8_0")
    kqv = out.src[1].view_src
    assert "GP101" not in ids(w.plan(out, pins=[(kqv, "CPU")]))


def test_gp101_the_same_op_in_many_layers_is_one_finding(stack, tmp_path):
    device = gpu(supports=lambda t: t.op.name != "GLU")
    plan = llama(stack, tmp_path, device, "CPU", n_tokens=8, n_gpu_layers=99)
    finding = only(plan, "GP101")
    assert names(finding) == [f"ffn_swiglu-{il}" for il in range(4)]
    assert "2 splits instead of 10" in finding.text


def test_gp101_a_weight_whose_type_the_device_does_not_multiply(stack):
    """Its memory is the GPU's, so each evaluation fetches it from there."""
    w = World(stack, gpu(supports={"MUL_MAT": ["f16"], "RELU": True}), "CPU")
    h = w.op("mul_mat", w.tensor("a", 64, 64, on="gpu0", type="f16"), w.input("x", 64, 4), name="h")
    t = w.op("mul_mat", w.tensor("b", 64, 64, on="gpu0", type="q4_0"), h, name="t")
    plan = w.plan(w.op("relu", t, name="out"), pins=[])
    assert plan.node("t").backend == "CPU"
    finding = only(plan, "GP101")
    assert names(finding) == ["t"] and "sources: q4_0, f32" in finding.text
    assert finding.bytes == sum(plan.node(n).nbytes for n in ("b", "h", "t"))


def test_gp101_each_of_two_devices_has_its_own(stack):
    kinds = {"MUL_MAT": True}
    w = World(stack, gpu("gpu0", supports=kinds), gpu("gpu1", supports=kinds), "CPU")
    t = w.input("x", 64, 4)
    for i, place in enumerate(("gpu0", "gpu0", "gpu1", "gpu1")):
        t = w.op("mul_mat", w.tensor(f"w{i}", 64, 64, on=place), t, name=f"h{i}")
        t = w.op("relu", t, name=f"relu{i}")
    plan = w.plan(w.op("mul_mat", w.tensor("o", 64, 64, on="gpu1"), t, name="out"))
    found = findings(plan)
    assert [f.id for f in found] == ["GP101", "GP101"]
    assert sorted(names(found[0]) + names(found[1])) == [f"relu{i}" for i in range(4)]
    assert all("because gpu" in f.text for f in found)


# --- GP102, GP103: weights that are copied


def two_weights(w, first, second, n=256, rows=4):
    """A product that follows its first weight; the second is added."""
    a, b = w.tensor("a", n, n, on=first), w.tensor("b", n, rows, on=second)
    product = w.op("mul_mat", a, w.input("x", n, rows), name="product")
    return w.op("add", product, b, name="sum")


def test_gp102_a_weight_that_is_read_elsewhere(stack):
    w = World(stack, gpu(), "CPU")
    a, x = w.tensor("blk.1.a", 256, 512, on="gpu0"), w.input("x", 256, 4)
    b = w.tensor("blk.1.b", 256, 512, on="CPU")
    plan = w.plan(w.op("mul_mat", w.op("add", a, b, name="sum"), x, name="out"))
    finding = only(plan, "GP102")
    assert (names(finding), finding.bytes) == (["blk.1.b"], 256 * 512 * 4)
    assert "kept on CPU and copied to gpu0, where ADD 'sum' reads it (1.wgt0" in finding.text
    assert r"-ot 'blk\.1\.b=gpu0'" in finding.suggestion
    assert ids(plan, finding.bytes) == ["GP102"] and ids(plan, finding.bytes + 1) == []


def test_gp102_not_for_weights_where_they_are_read(stack):
    w = World(stack, gpu(), "CPU")
    assert ids(w.plan(two_weights(w, "gpu0", "gpu0"))) == []


@pytest.mark.parametrize(("rows", "expected"), [(32, ["GP103"]), (31, [])])
def test_gp103_op_offload_from_its_batch_size_on(stack, rows, expected):
    w = World(stack, gpu(), "CPU")
    a = w.tensor("a", 256, 256, on="CPU")
    plan = w.plan(w.op("mul_mat", a, w.input("x", 256, rows), name="product"))
    assert ids(plan) == expected
    for finding in findings(plan):
        assert (names(finding), finding.bytes) == (["a"], 256 * 256 * 4)
        assert "--no-op-offload" in finding.suggestion


def test_gp103_not_without_op_offload(stack):
    w = World(stack, gpu(), "CPU")
    product = w.op("mul_mat", w.tensor("a", 256, 256, on="CPU"), w.input("x", 256, 32), name="p")
    assert ids(w.plan(product, op_offload=False)) == []


# --- what to give llama.cpp

KINDS_OF_WEIGHTS = ("ffn_up", "ffn_down", "attn_q", "attn_output", "out")


@pytest.mark.parametrize("names", [
    ["output.weight"], ["output.weight", "token_embd.weight"], ["blk.1.ffn_up.weight"],
    ["blk.1.ffn_up.weight", "output.weight"], ["blk.0.ffn_up.weight", "blk.1.ffn_up.weight"],
    ["blk.0.ffn_up.weight", "blk.1.ffn_down.weight"],
    [f"blk.{i}.{kind}.weight" for i in (0, 10) for kind in ("ffn_up", "ffn_down", "attn_q", "out")],
])  # fmt: skip
def test_override_tensor_names_these_weights_only(names):
    there = [f"blk.{i}.{kind}.weight" for i in (0, 1, 10) for kind in KINDS_OF_WEIGHTS]
    there += ["output.weight", "token_embd.weight", "output_norm.weight"]
    pattern = weight_pattern(names, set(there).difference(names))
    assert sorted(n for n in there if re.search(pattern, n)) == sorted(names)


def test_override_tensor_of_whole_blocks_is_short():
    names = [f"blk.{i}.{kind}.weight" for i in (0, 10) for kind in KINDS_OF_WEIGHTS]
    assert weight_pattern(names, ["blk.1.out.weight"]) == r"blk\.(0|10)\."
    assert weight_pattern(names[1:], names[:1]).startswith(r"blk\.0\.(attn_output\.weight|")
    assert weight_pattern(names[1:], names[:1]).endswith(r"out\.weight)|blk\.10\.")


def test_tensors_are_named_the_first_and_the_last():
    with ggml.Context() as ctx, ggml.device("CPU").init() as cpu:
        x = ctx.new_tensor("f32", 8, name="x")
        for name in ("a", "b", "same", "same"):
            x = ctx.sqr(x)
            x.name = name
        graph = ctx.new_graph()
        graph.build_forward_expand(x)
        facts = Facts(ggml.Scheduler([cpu]).plan(graph), 0)
    a, b, c, d = facts.capture.tensors[:4]
    assert facts.of([a], "node") == "node 'a'"
    assert facts.of([a, b], "node") == "2 nodes ('a', 'b')"
    assert facts.of([a, b, c], "node") == "3 nodes ('a' to 'same (SQR, node 2)')"
    assert facts.of([d], "SQR node") == "SQR node 'same (SQR, node 3)'"


# --- GP110: the hash set


def chain(w, n):
    t = w.input("x", 4)
    for i in range(n):
        t = w.op("sqr", t, name=f"n{i}")
    return t


@pytest.mark.parametrize(("used", "expected"), [(0.85, []), (0.92, ["GP110"])])
def test_gp110_hash_set(stack, used, expected):  # llama.cpp #28614, #16555
    w = World(stack, "BLAS", "CPU")
    size = w.scheduler(chain(w, 3), graph_size=500).hash_set_size
    plan = w.plan(chain(w, round(used * size)), graph_size=500)
    assert ids(plan) == expected
    for finding in plan.advice():
        taken = plan.outcome.hash_set_used
        assert f"{taken} of the scheduler's {size} slots" in finding.text
        assert "graph_size" in finding.suggestion
        parts = re.findall(r"(\d+) (?:nodes|leaf|other|pins)", finding.text)
        assert sum(map(int, parts)) == taken


# --- GP111, GP112: pins


def test_gp111_a_pin_that_pass_3_moves_on(stack):
    w = World(stack, "BLAS", "CPU")
    a = w.tensor("a", 64, 64, on="CPU")
    h = w.op("mul_mat", a, w.input("x", 64, 48), name="h")
    plan = w.plan(w.op("relu", h, name="out"), pins=[(h, "CPU")])
    assert plan.node("h").backend == "BLAS"
    finding = only(plan, "GP111")
    assert names(finding) == ["h"]
    assert "pinned to CPU, is on BLAS anyway" in finding.text


def test_gp111_not_for_a_pin_that_counts(stack):
    w = World(stack, gpu(), "CPU")
    h = w.op("relu", w.input("x", 64, 48), name="h")
    plan = w.plan(h, pins=[(h, "CPU")])
    assert plan.node("h").backend == "CPU" and ids(plan) == []


def test_gp112_pins_that_a_reset_dropped(stack):  # llama.cpp #17163
    w = World(stack, gpu(), "CPU")
    a = w.tensor("a", 64, 64, on="gpu0")
    h = w.op("mul_mat", a, w.input("x", 64, 8), name="h")
    scheduler = w.scheduler(h)
    scheduler.set_tensor_backend(h, w.backend("CPU"))
    assert "GP112" not in ids(scheduler.plan(w.graph))
    scheduler.reserve(w.graph)
    finding = only(scheduler.plan(w.graph), "GP112")
    assert names(finding) == ["h"] and "1 of 1 is elsewhere now" in finding.text
    scheduler.set_tensor_backend(h, w.backend("CPU"))
    assert "GP112" not in ids(scheduler.plan(w.graph))


def test_advice_of_a_saved_plan_is_the_same_without_the_native_module(stack, tmp_path):
    w = World(stack, gpu(supports=no_quantised_cache), "CPU")
    plan = w.plan(attention(w, "q8_0"))
    plan.to_json(tmp_path / "plan.json")
    program = (
        "import json, sys; sys.modules['ggml_py._ggml'] = None\n"
        "import ggml_py\n"
        "plan = ggml_py.Plan.from_json(sys.argv[1])\n"
        "found = plan.advice()\n"
        "assert all(t.plan is plan for f in found for t in f.tensors)\n"
        "print(json.dumps([f.to_dict() for f in found]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "plan.json"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [f.to_dict() for f in plan.advice()] != []

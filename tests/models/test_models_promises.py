"""What plans of models promise: memory, what-ifs that load the model again, who pinned what.

test_models_placement.py compares the same with libllama.
"""

from __future__ import annotations

import fnmatch
import re

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import ModelError
from ggml_py.llama.loaded_again import regex_of
from ggml_py.llama.programs import with_defaults
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec

from ..support.measured import knows_all

ALL = {"n_gpu_layers": 99, "n_threads": 1}


@pytest.fixture(scope="module")
def path(model_file):
    return model_file(LlamaSpec(n_layer=3, n_vocab=512))


def lacks(*ops):
    return lambda t: t.op.name not in ops


def test_a_plan_says_how_full_the_cache_was(path, tmp_path):
    """Attention is predicted by the tokens in the cache. What-ifs and files keep their number."""
    with load(path, devices=("CPU",), n_ctx=512, n_threads=1) as model:
        plan = model.plan(1, np.int64(100))
        what_if = model.what_if(1, 100, op_offload=False)
    with load(path, devices=("CPU",), n_ctx=512, n_seq_max=2, n_threads=1) as model:
        several = model.plan(2, 100, 2)
    assert several.promise.n_past is None  # whose cells are not together
    plan.to_json(tmp_path / "plan.json")
    for one in (plan, what_if, ggml.Plan.from_json(tmp_path / "plan.json")):
        assert one.promise.n_past == 100
        known = knows_all([one])
        assert one.cost(known).seconds == one.cost(known, n_past=100).seconds
        assert one.cost(known).seconds != one.cost(known, n_past=50).seconds
        assert not any("all cells" in said for said in one.cost(known).assumed)


# --- what-ifs


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
@pytest.mark.parametrize(
    ("changes", "devices", "options"),
    [
        ({"supports": {("gpu0", "RMS_NORM"): False}}, {"supports": lacks("RMS_NORM")}, {}),
        ({"supports": {("gpu0", "MUL_MAT"): False}}, {"supports": lacks("MUL_MAT")}, {}),
        (
            {"supports": {("gpu0", "R*"): False, ("gpu0", "R[OE]*"): True}},
            {"supports": lacks("RMS_NORM", "REPEAT")}, {},
        ),
        ({"op_offload": False}, {}, {"op_offload": False}),
        ({"move_weights": {"blk.1.*": "CPU"}}, {}, {"tensor_overrides": {r"^blk\.1\.": "CPU"}}),
        (
            {"move_weights": {"blk.*": "CPU", "blk.2.ffn_*": "gpu0"}}, {},
            {"tensor_overrides": [(r"^blk\.2\.ffn_", "gpu0"), (r"^blk\.", "CPU")]},
        ),
        ({"drop": ["gpu0"]}, None, {}),
        ({"profiles": {"gpu0": "rtx4090"}}, None, {}),
    ],
)  # fmt: skip
def test_a_what_if_is_a_load_with_such_devices(path, sims, changes, devices, options, graphs):
    gpu = sims("gpu0")
    with load(path, devices=("gpu0",), **ALL, graphs=graphs) as model:
        before = {n: model.plan(n) for n in (1, 64)}
        found = {n: model.what_if(n, **changes) for n in (1, 64)}
        assert {n: model.plan(n) for n in (1, 64)} == before  # nothing stays changed
    for plan in found.values():
        assert plan.promise.whose == "llama.cpp" and plan.promise.assumed
        assert re.search("what if .*llama.cpp's promise", plan.headline())
    if devices is None:
        return
    gpu.configure(**devices)
    with load(path, devices=("gpu0",), **ALL, **options, graphs=graphs) as model:
        for n, plan in found.items():
            assert plan == model.plan(n)
            assert plan.breakdown == model.memory


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
def test_without_a_device_it_is_loaded_on_the_others(path, sims, graphs):
    for name in ("gpu0", "gpu1"):
        sims(name)
    with load(path, devices=("gpu0", "gpu1"), **ALL, graphs=graphs) as model:
        found = model.what_if(drop=["gpu0"])
    with load(path, devices=("gpu1",), **ALL, graphs=graphs) as model:
        assert found == model.plan()


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
def test_other_changes_are_the_schedulers_alone(path, sims, graphs):
    sims("gpu0")
    with load(path, devices=("gpu0",), **ALL, graphs=graphs) as model:
        plan, lacking = model.plan(), {("gpu0", "RMS_NORM"): False}
        for changes in (
            {"pins": {"ffn_out-1": "CPU"}}, {"parallel": True}, {"upstream": "0.24.0"},
            {"supports": {("gpu0", 3): False}}, {"offload": {("gpu0", "MUL_MAT"): 64}},
            {"move_weights": {"cache_k_l1": "CPU"}},
        ):  # fmt: skip
            found = model.what_if(**changes)
            assert found == plan.what_if(**changes)
            assert (found.promise.loader, found.promise.whose) == ("llama.cpp", "scheduler")
        both = model.what_if(supports=lacking, pins={"ffn_out-1": "CPU"})
        assert both == model.what_if(supports=lacking).what_if(pins={"ffn_out-1": "CPU"})
        assert both.promise.reloaded == ("supports:gpu0/RMS_NORM=no",)
        assert both.promise.changes == ("pin:ffn_out-1=CPU",)
        # llama.cpp pins the norms of a device that has them, and no others.
        alone = plan.what_if(supports=lacking)
        assert alone.node("attn_norm-1").record.op == "MUL"
        assert sum(t.pin >= 0 for t in alone.capture.tensors) == 6
        assert sum(t.pin >= 0 for t in model.what_if(supports=lacking).capture.tensors) == 0


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
def test_changes_that_mean_nothing(path, sims, graphs):
    sims("gpu0")
    with load(path, devices=("gpu0",), **ALL, graphs=graphs) as model:
        for changes, error, words in (
            ({"supports": {("gpu0", "TOPK"): False}}, KeyError, "no node or op matches 'TOPK'"),
            ({"supports": {("gpu7", "MUL"): False}}, KeyError, "no backend 'gpu7'"),
            ({"profiles": {"gpu7": "cuda"}}, KeyError, "no backend 'gpu7' in this model; it has"),
            ({"drop": ["CPU"]}, ValueError, "the last backend"),
            ({"supports": {("gpu0", "*"): False, ("CPU", "MUL_MAT"): False}}, ModelError,
             "none of the devices supports MUL_MAT|failed to find a compatible buffer type"),
        ):  # fmt: skip
            with pytest.raises(error, match=words):
                model.what_if(**changes)
        assert model.plan()


# --- memory


def test_memory_is_that_of_the_buffers(path, sims):
    gpu = sims("gpu0", host_buffer=True)
    with load(path, devices=("gpu0",), n_gpu_layers=2, n_threads=1, load_mode="none") as model:
        rows = {row.buft: row for row in model.memory}
        total, free = gpu.memory[1], gpu.memory[0]
        assert rows["gpu0"].weights + rows["gpu0"].cache == total - free
        assert rows["gpu0_Host"].device == "CPU" == rows["CPU"].device  # in host memory
        assert model.plan().breakdown == model.memory
        model.eval([1, 2, 3])
        for name, backend in zip(("gpu0", "gpu0_Host"), model.scheduler.backends, strict=True):
            assert model.scheduler.buffer_size(backend) == rows[name].compute


def test_room_for_logits(path):
    def compute(**options):
        with load(path, n_threads=1, **options) as model:
            return sum(row.compute for row in model.memory)

    assert compute(n_outputs_max=1) < compute(n_outputs_max=128) < compute()
    assert compute(n_outputs_max=512) == compute()
    assert compute(n_ubatch=64) == compute(n_ubatch=64, n_outputs_max=64)
    with load(path, n_threads=1, n_outputs_max=1) as model:  # more than that: buffers grow
        assert model.eval(list(range(64)), all_logits=True).shape == (64, 512)


@pytest.mark.parametrize(
    ("program", "given", "expected"),
    [
        (None, {}, (512, 512, 512, 1, False, 0)),
        ("bench", {}, (512, 2048, 512, 1, False, 0)),
        ("llama-bench", {"n_ctx": 128}, (128, 2048, 512, 1, False, 0)),
        ("server", {}, (0, 2048, 512, 4, True, 4)),
        ("server", {"n_seq_max": 2}, (0, 2048, 512, 2, False, 2)),
        ("server", {"n_seq_max": 2, "kv_unified": True}, (0, 2048, 512, 2, True, 2)),
        ("server", {"n_batch": 3, "n_outputs_max": 0}, (0, 3, 512, 4, True, 0)),
        ("server", {"n_batch": 3}, (0, 3, 512, 4, True, 3)),
        ("cli", {}, (0, 2048, 512, 1, False, 1)),
        ("completion", {}, (0, 2048, 512, 1, False, 0)),
        ("perplexity", {}, (2048, 2048, 512, 4, False, 0)),
        ("perplexity", {"n_ctx": 4096}, (4096, 2048, 512, 1, False, 0)),
    ],
)
def test_what_a_program_asks_for(program, given, expected):
    names = ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "kv_unified", "n_outputs_max")
    asked = dict.fromkeys(names) | {"program": program} | given
    assert tuple(with_defaults(asked)[name] for name in names) == expected


def test_a_program_by_name(path):
    with pytest.raises(ModelError, match=r"program='serve': expected one of 'bench', 'server'"):
        load(path, program="serve")
    with load(path, program="server", n_ctx=1000) as model:
        assert (model.n_seq_max, model.n_ctx, model.n_batch, model.n_ubatch) == (4, 1024, 1000, 512)


def test_a_batch_is_limited_before_the_context_is_padded(path):
    with load(path, n_ctx=100, n_threads=1) as model:
        assert (model.n_ctx, model.n_batch, model.n_ubatch) == (256, 100, 100)


# --- pins


def test_pins_are_told_as_llama_cpps(path, sims, tmp_path):
    sims("gpu0")
    options = {"offload_kqv": False, "flash_attn": "off", **ALL}
    with load(path, devices=("gpu0",), n_gpu_layers=2, n_threads=1) as model:
        few = model.plan(1)
        assert not model.plan(64).capture.pins
    with load(path, devices=("gpu0",), **options) as model:
        plan = model.plan(64)
        graph = model.scheduler
        model.eval([1])
        assert graph is not None
    norm = next(n for n in few.nodes if n.op == "RMS_NORM" and n.record.pin >= 0)
    assert norm.cause.text == (
        "llama.cpp pinned it to CPU (set_tensor_backend): a layer's norms stay on the layer's "
        "device in graphs of fewer than 32 tokens"
    )
    texts = {n.cause.text for n in plan.nodes if n.record.pin >= 0}
    assert {re.sub(r".*: ", "", text) for text in texts} == {
        "a layer's norms stay on the layer's device if all layers are to be on GPUs (-ngl)",
        "the result of attention stays with the cache, which is on the CPU (-nkvo)",
    }
    again = ggml.Plan.from_json(tmp_path / "p.json") if plan.to_json(tmp_path / "p.json") else None
    assert again is not None and again.capture.pins == plan.capture.pins
    assert "llama.cpp pinned it to CPU" in str(few.why_not(norm.index, "gpu0"))
    changed = plan.what_if(pins={plan.nodes[norm.index].id: "CPU"})
    assert changed.nodes[norm.index].cause.text.startswith("the caller pinned it to CPU")


def test_a_pattern_is_a_regular_expression_of_both_languages():
    names = ["blk.1.ffn_up.weight", "blk.10.ffn_up.weight", "output.weight", "a+b", "blk.[1]"]
    for pattern in ("blk.1.*", "blk.?.ffn_up*", "*", "blk.[!1].*", "blk.[0-9]*", "a+b", "blk.[1",
                    "*.weight", "blk.1[0-9].*", ""):  # fmt: skip
        found = [name for name in names if re.search(regex_of(pattern), name)]
        assert found == [name for name in names if fnmatch.fnmatchcase(name, pattern)], pattern

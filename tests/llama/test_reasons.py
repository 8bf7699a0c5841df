"""What llama.cpp did before a graph was planned: pins, fused ops, pipeline, layers, experts."""

import re
import shutil
from math import prod

import pytest

import ggml_py as ggml
from ggml_py import llama
from ggml_py.llama.library import library
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.trace.choice import FUSED, LAYERS, PIPELINE
from ggml_py.trace.expert_cache import expert_cache
from ggml_py.trace.pins import UNKNOWN, llama_pins

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
CARD, OTHER = "sim:reasons0,profile=rtx4090", "sim:reasons1,profile=rtx4090"
MEMORIES = (CARD, OTHER, "CPU")
FLAGS = {
    "all": {"n_gpu_layers": 99},
    "part": {"n_gpu_layers": 1},
    "-nkvo -fa off": {"n_gpu_layers": 99, "offload_kqv": False, "flash_attn": "off"},
    "-ngl 1 -nkvo -fa off": {"n_gpu_layers": 1, "offload_kqv": False, "flash_attn": "off"},
}


@pytest.fixture(scope="module")
def archs(oracle, tmp_path_factory):
    """Small models of all architectures, which upstream's test-llama-archs writes."""
    folder = tmp_path_factory.mktemp("archs")
    oracle.run("test-llama-archs", "-s", 42, "-o", folder)
    yield sorted(folder.glob("*.gguf"))
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model whose heads, of 32, have no attention op on CUDA."""
    path = tmp_path_factory.mktemp("reasons") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=4, n_embd=128, n_head=4, n_head_kv=2, n_ff=256))
    return path


# --- pins


def test_every_place_of_libllama_that_pins_is_known():
    """Whoever finds another here reads it, and gives its pins a reason in trace/pins.py."""
    from vendor import identity, releases

    tree = identity.unpacked(releases.default(), identity.Options().cache, whole=True)
    found = {}
    for folder in ("src", "common"):
        for path in (tree / folder).rglob("*.cpp"):
            text = path.read_text(encoding="utf-8", errors="replace")
            if n := len(re.findall(r"ggml_backend_sched_set_tensor_backend\(", text)):
                found[path.name] = n
    assert found == {"llama-context.cpp": 1, "llama-graph.cpp": 2}


def test_every_pin_of_every_architecture_has_a_reason(archs):
    said, n = set(), 0
    for i, path in enumerate(archs):
        flags = [*FLAGS.items()] * 2
        for name, options in flags[i % 4 : i % 4 + 3 : 2]:  # two of them, other ones in turn
            sizes = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64}
            with llama.open(path, devices=MEMORIES, **options, **sizes) as model:
                for n_tokens in (1, model.n_ubatch):
                    capture = model.plan(n_tokens).capture
                    pinned = {t.id for t in capture.tensors if t.pin >= 0}
                    assert pinned == {pin.tensor for pin in capture.pins}
                    for pin in capture.pins:
                        assert UNKNOWN not in pin.why, (path.stem, name, pin)
                        said.add(pin.why)
                    n += 1
    assert len(archs) > 120 and n > 450
    assert {why.split(" ")[1] for why in said} == {"layer's", "result"} and len(said) == 4


def test_a_pin_that_no_place_makes_is_called_unknown(small):
    with load(small, devices=MEMORIES, n_gpu_layers=2) as model:
        tensors = model.plan(1).capture.tensors
    node = next(t for t in tensors if t.op == "ROPE")
    changed = [t._replace(pin=-1) for t in tensors]
    changed[node.id] = node._replace(pin=0)
    (pin,) = llama_pins(changed, 2, "why", all_known=True)
    assert pin.why == f"{UNKNOWN} ('{node.name}')"
    assert llama_pins(changed, 2, "why", all_known=False) == ()


# --- fused ops


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
@pytest.mark.parametrize("profile, options, says", [
    ("cuda", {}, "does not support FLASH_ATTN_EXT(f32 [32, 1, 4]"),  # heads of 32
    ("metal", {"type_k": "iq4_nl"}, "iq4_nl [32, "),
    ("metal", {}, ""),
    ("cuda", {"flash_attn": "off"}, ""),
    ("cuda", {"flash_attn": "on"}, ""),
])  # fmt: skip
def test_attention_that_a_probe_switched_off(small, graphs, profile, options, says):
    devices = (f"sim:probe_{profile},profile={profile}", "CPU")
    asked = {"n_gpu_layers": 99, "n_ctx": 256, **options}
    with load(small, devices=devices, graphs=graphs, **asked) as model:
        plan = model.plan(1)
    found = [choice for choice in plan.choices if choice.kind == FUSED]
    if not says:
        assert not found
        return
    (choice,) = found
    assert not any(node.op == "FLASH_ATTN_EXT" for node in plan.nodes)
    assert (choice.what, choice.decided, choice.op) == (
        "Flash Attention", "is off", "FLASH_ATTN_EXT",
    )  # fmt: skip
    assert "of layer 0 is on CPU" in choice.why and says in choice.why
    assert choice.flips[-1] == "-fa on uses it without a probe, on CPU in this layer"
    assert str(choice).startswith("llama.cpp: Flash Attention is off: node '")
    (finding,) = [f for f in plan.advice() if f.id == "GP131"]
    assert choice.why in finding.text and choice.flips[0] in finding.suggestion


def test_both_graphs_give_the_same_reason(small):
    found = []
    for graphs in ("ours", "libllama"):
        with load(
            small,
            devices=("sim:probe,profile=cuda", "CPU"),
            n_gpu_layers=99,
            n_ctx=256,
            graphs=graphs,
        ) as model:
            found.append(model.plan(1).choices[0])
    ours, theirs = (choice.why.partition(") of ")[2] for choice in found)
    assert ours == theirs


def test_the_change_that_is_named_flips_the_decision(small):
    devices = ("sim:probe2,profile=metal", "CPU")
    asked = {"devices": devices, "n_gpu_layers": 99, "n_ctx": 256, "graphs": "libllama"}
    with load(small, type_k="iq4_nl", **asked) as model:
        choice = model.plan(1).choices[0]
        assert not model.flash_attn
    said = re.fullmatch(r"-ctk (\w+), which probe2 supports", choice.flips[0])
    with load(small, type_k=said[1], **asked) as model:
        assert model.flash_attn and not model.plan(1).choices
    with load(small, type_k="iq4_nl", flash_attn="on", **asked) as model:
        assert {n.backend for n in model.plan(1).nodes if n.op == "FLASH_ATTN_EXT"} == {"CPU"}


def test_a_probe_leaves_the_model_as_it_was(small):
    devices = ("sim:probe3,profile=cuda", "CPU")
    with llama.open(small, devices=devices, n_gpu_layers=99, n_ctx=256) as model:
        before = model.plan(3, 2).choices, model.plan(3, 2)
        assert model.choices and model.plan(3, 2) == before[1]
        assert not model.flash_attn


# --- pipeline, layers


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
@pytest.mark.parametrize("options, why, flip", [
    ({"n_gpu_layers": 2}, "-ngl 2 leaves layers on the CPU", "-ngl all"),
    ({"offload_kqv": False}, "the cache is on the CPU (-nkvo)", "without -nkvo"),
    ({"cpu_moe": True}, "weights are placed by name", "without them"),
    ({"split_mode": "none"}, None, None),
    ({}, None, None),
])  # fmt: skip
def test_why_there_is_no_pipeline(small, graphs, options, why, flip):
    cards = ("sim:pipe0,profile=cuda", "sim:pipe1,profile=cuda", "CPU")
    asked = {"n_gpu_layers": 99, "n_ctx": 256, "graphs": graphs, "devices": cards, **options}
    with load(small, **asked) as model:
        plan = model.plan(1)
    found = [choice for choice in plan.choices if choice.kind == PIPELINE]
    if plan.settings.n_copies > 1:
        assert not found and why is None
    elif why is None:
        assert options == {"split_mode": "none"}
    else:
        (choice,) = found
        assert why in choice.why and choice.flips == (flip,)
        assert [f.id for f in plan.advice() if f.id == "GP132"] == ["GP132"]


def test_an_accelerator_ends_the_pipeline(small):
    cards = ("sim:pipe0,profile=cuda", "sim:pipe1,profile=cuda", "BLAS", "CPU")
    with llama.open(small, devices=cards, n_gpu_layers=99, n_ctx=256) as model:
        (choice,) = [c for c in model.plan(1).choices if c.kind == PIPELINE]
    assert choice.why == "BLAS has no asynchronous compute or no events"
    assert choice.flips == ("without BLAS",)


def test_layers_that_fit_left_on_the_cpu(small):
    devices = ("sim:fit0,profile=cuda,memory=3M", "CPU")
    fit = llama.Fit(margins=(1 << 20,), n_ctx=256)
    with llama.open(small, devices=devices, fit=fit, flash_attn="off") as model:
        (choice,) = [c for c in model.plan(1).choices if c.kind == LAYERS]
        assert model.fit_arguments in choice.why
        n = int(model.fitted["n_gpu_layers"])
        assert f"put {5 - n} of 5 layers" in choice.decided or n == 0
    with llama.open(small, devices=("sim:fit1,profile=cuda", "CPU"), fit=fit) as model:
        assert not [c for c in model.plan(1).choices if c.kind == LAYERS]


# --- the expert cache


@pytest.fixture(scope="module")
def experts(oracle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    oracle.run("test-llama-archs", "-a", "^qwen3moe$", "-s", 42, "-o", folder)
    (path,) = folder.glob("*.gguf")
    return path


def test_the_expert_cache_is_named_and_counted(experts):
    line = f"llama-server -m {experts} -ngl 99 -ncmoe 99 -c 256 --fit off --moe-cache-mib 4"
    with llama.open_command_line(line, devices=(CARD, "CPU")) as model:
        plan, many = model.plan(2), model.plan(64)
        cache = {row.buft: row.cache for row in model.memory}
    with llama.open_command_line(
        line[: -len(" --moe-cache-mib 4")], devices=(CARD, "CPU")
    ) as model:
        without = {row.buft: row.cache for row in model.memory}
    assert {pin.why for pin in plan.capture.pins if "expert cache" in pin.why}
    assert not [pin for pin in plan.capture.pins if "-nkvo" in pin.why]
    found = expert_cache(plan)
    assert found
    assert [one.layers for one in expert_cache(many)] == [(1,)]  # the last, with one output
    assert sum(one.held for one in found) == cache["reasons0"] - without["reasons0"]
    for one in found:
        slots = [n for n in plan.nodes if n.name in [f"ffn_moe_slots-{i}" for i in one.layers]]
        assert {min(prod(n.ne), one.n_expert) for n in slots} == {one.at_most}
        up = [
            s for node in plan.nodes if node.op == "MUL_MAT_ID" for s in node.srcs[:1]
            if s.name.startswith(f"moe_cache.blk.{one.layers[0]}.")
        ]  # fmt: skip
        assert sum({s.id: s.record.nb[2] for s in up}.values()) == one.expert
        assert one.upload_at_most == len(one.layers) * one.at_most * one.expert
    assert "uploads of 0 to" in plan.headline()
    again = ggml.Plan.to_json(plan)
    expected = [one.to_dict() | {"layers": list(one.layers)} for one in found]
    assert again["expert_cache"] == expected


def test_libllama_tells_its_probes_to_the_thread_that_makes_the_context():
    lib = library(True).lib
    lib.gpl_probes_begin()
    probes = lib.gpl_probes_take()
    assert lib.gpl_probes_n(probes) == 0
    lib.gpl_probes_free(probes)

"""Which weight, which cache, which node is where: as libllama, unmodified, has it.

GPUs are simulated ones, in our process and in libllama's (tests/oracle/llama_place.cpp).
"""

from __future__ import annotations

import re

import pytest

from ggml_py import ModelError
from ggml_py.boundary.ffi import BUILD
from ggml_py.llama.overrides import parse_overrides
from ggml_py.llama.programs import PROGRAMS

from ..support.arch_files import OURS, deeper, load
from ..support.placements import (
    CARD_OPTIONS,
    Theirs,
    asked_by,
    blank,
    memory_of,
    rows_of,
    sims_text,
)

BLAS = next(BUILD["folder"].glob("libggml-blas.*"))
ONE = {"gpu0": {}}
HOST = {"gpu0": {"host_buffer": 1}}
TWO = {"gpu0": {"memory": 4 << 30}, "gpu1": {"memory": 2 << 30}}
SYNC = {"gpu0": {"async": 0, "host_buffer": 1}, "gpu1": {"async": 0}}
IGPU = {"gpu0": {"type": "igpu", "host_buffer": 1}}
EAGER = {"gpu0": {"min_batch": 2}}  # takes ops of small batches although weights are elsewhere
# As sim_device calls them.
_SETTINGS = {"async": "async_", "min_batch": "offload_min_batch", "card": "profile"}


@pytest.fixture
def agree(oracle, sims, arch_file):
    """Checks plans of 1, 31 and 64 tokens to the node, and every byte of weights, cache and compute
    buffers per buffer type."""

    def check(path, devices, **options):
        for name, settings in devices.items():
            sims(name, **{_SETTINGS.get(key, key): value for key, value in settings.items()})
        theirs = Theirs(oracle, path, (1, 31, 64), sims=sims_text(devices), **options)
        blas = ("BLAS",) if options.pop("blas", None) else ()
        if "overrides" in options:
            options["tensor_overrides"] = parse_overrides(options.pop("overrides"))
        with load(path, devices=(*devices, *blas), **options) as model:
            for n_tokens, plan in theirs.plans.items():
                assert blank(model.plan(n_tokens).text()) == blank(plan)
            parallel = "pipeline parallelism enabled" in theirs.log
            assert model.placement.parallel == parallel
            assert memory_of(model) == theirs.memory
        return theirs

    return check


@pytest.mark.parametrize("n_gpu_layers", [1, 2, 99])
@pytest.mark.parametrize("name", OURS)
def test_layers(agree, arch_file, name, n_gpu_layers):
    agree(arch_file(name), ONE, n_gpu_layers=n_gpu_layers)


OPTIONS = {
    "all layers": {"n_gpu_layers": -1},
    "no layers": {"n_gpu_layers": 0},
    "no flash attention": {"n_gpu_layers": 2, "flash_attn": "off"},
    "cache on the CPU": {"n_gpu_layers": 99, "offload_kqv": False},
    "cache and attention on the CPU": {
        "n_gpu_layers": 99, "offload_kqv": False, "flash_attn": "off",
    },
    "no op offload": {"n_gpu_layers": 1, "op_offload": False},
    "networks on the CPU": {"n_gpu_layers": 99, "overrides": r"ffn_=CPU"},
    "the first of two": {"n_gpu_layers": 99, "overrides": r"attn_k=CPU,attn_=gpu0,ffn_up=CPU"},
    "onto the GPU": {"n_gpu_layers": 0, "overrides": r"blk\.1\.=gpu0,output=gpu0"},
    "the input onto the GPU": {"n_gpu_layers": 99, "overrides": r"token_embd=gpu0"},
    "copied": {"n_gpu_layers": 1, "load_mode": "none"},
    "mapped": {"n_gpu_layers": 1, "load_mode": "mmap"},
}  # fmt: skip


@pytest.mark.parametrize("devices", [ONE, HOST, IGPU], ids=["", "host", "igpu"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_options(agree, arch_file, name, option, devices):
    agree(arch_file(name), devices, **OPTIONS[option])


@pytest.mark.parametrize("op_offload", [True, False])
def test_ops_that_a_gpu_takes(agree, arch_file, op_offload):
    agree(arch_file("llama"), EAGER, n_gpu_layers=1, op_offload=op_offload)


@pytest.mark.parametrize("devices", [TWO, SYNC], ids=["async", "sync"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_gpu_layers": 99},
        {"n_gpu_layers": 3},
        {"n_gpu_layers": 99, "tensor_split": (1, 3)},
        {"n_gpu_layers": 99, "tensor_split": (1,)},
        {"n_gpu_layers": 99, "tensor_split": (0, 0)},
        {"n_gpu_layers": 99, "tensor_split": (0, 2.5)},
        {"n_gpu_layers": 99, "split_mode": "none"},
        {"n_gpu_layers": 99, "split_mode": "none", "main_gpu": 1},
        {"n_gpu_layers": 99, "split_mode": "none", "main_gpu": -1},
        {"n_gpu_layers": 99, "offload_kqv": False},
        {"n_gpu_layers": 99, "overrides": "ffn=gpu1"},
    ],
)  # fmt: skip
def test_several_gpus(agree, arch_file, tmp_path, devices, options):
    path = tmp_path / "deeper.gguf"
    deeper(arch_file("gpt-oss"), path, 5, "f16")
    theirs = agree(path, devices, **options)
    if options == {"n_gpu_layers": 99}:  # with events they work on several batches at once
        assert ("pipeline parallelism enabled" in theirs.log) == (devices is TWO)


# What a card has (host memory, alignment, sizes of tensors, what it supports and offloads) makes
# the same plans and the same bytes of both loaders. benchmarks/promises.py has all backends with
# all of OURS.
CARDS = [(card, name) for card in ("rtx4090", "m3max") for name in OURS]
CARDS += [(card, "llama") for card in (
    "p40", "mi300x", "radeon-pro-5500m", "spark", "s4000", "adreno-x1", "arc-a770",
    "vulkan-rx7900xtx", "webgpu-m3max", "ascend-910b", "ascend-310p", "hexagon-v79", "et-soc-1",
)]  # fmt: skip


@pytest.mark.parametrize(("card", "name"), CARDS)
def test_cards(agree, arch_file, name, card):
    agree(arch_file(name), {"gpu0": {"card": card}}, n_gpu_layers=99)


@pytest.mark.parametrize("card", ["rtx4090", "m3max"])
@pytest.mark.parametrize("option", CARD_OPTIONS)
def test_options_on_cards(agree, arch_file, option, card):
    agree(arch_file("llama"), {"gpu0": {"card": card}}, **CARD_OPTIONS[option])


def test_two_cards(agree, arch_file):
    for one, other, n_gpu_layers in (("rtx4090", "p40", 99), ("mi300x", "rtx3060", 2)):
        devices = {"gpu0": {"card": one}, "gpu1": {"card": other}}
        agree(arch_file("llama"), devices, n_gpu_layers=n_gpu_layers)


@pytest.mark.parametrize("no_host", [False, True])
@pytest.mark.parametrize("devices", [ONE, HOST], ids=["", "host"])
@pytest.mark.parametrize("name", ["llama-moe", "qwen3moe"])
def test_experts_on_the_cpu(agree, arch_file, tmp_path, name, devices, no_host):
    """In layouts for the CPU's kernels, unless the GPU has host memory, which comes first."""
    path = tmp_path / "deeper.gguf"
    deeper(arch_file(name), path, 3, "q4_0")
    options = {"n_gpu_layers": 99, "repack": True, "no_host": no_host}
    experts = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    theirs = agree(path, devices, overrides=experts, **options)
    with load(path, devices=("gpu0",), cpu_moe=True, **options) as model:
        placed = memory_of(model)
        plan = model.plan(1)
    assert blank(plan.text()) == blank(theirs.plans[1])
    assert {node.backend for node in plan.nodes if node.op == "MUL_MAT_ID"} == {"CPU"}
    assert placed == theirs.memory
    assert ("CPU_REPACK" in placed) == (no_host or devices is ONE)


def test_experts_of_some_layers_on_the_cpu(oracle, sims, arch_file, tmp_path):
    path = tmp_path / "deeper.gguf"
    deeper(arch_file("llama-moe"), path, 5, "q8_0")
    sims("gpu0")
    for option, pattern in (
        ("n_cpu_moe", r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"),
        ("n_cpu_ffn", r"\.ffn_(up|down|gate)\."),
    ):
        overrides = ",".join(rf"blk\.{il}{pattern}=CPU" for il in range(2))
        theirs = Theirs(
            oracle, path, (1,), sims=sims_text(ONE), n_gpu_layers=99, overrides=overrides
        )
        with load(path, devices=("gpu0",), n_gpu_layers=99, **{option: 2}) as model:
            assert blank(model.plan(1).text()) == blank(theirs.plans[1])
            on_cpu = [name for b, name in model.weights._made if b.name == "CPU"]
        experts = {name for name in on_cpu if "exps.weight" in name}
        assert len(experts) == (6 if option == "n_cpu_moe" else 0)
        with load(path, devices=("gpu0",), n_gpu_layers=99, **{option: 10**9}) as model:
            assert model.plan(1)


@pytest.mark.parametrize("repack", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"n_gpu_layers": 99},  # norms are pinned then, GPU or not
        {"overrides": "attn=CPU"},
        {"load_mode": "none"},
        {"offload_kqv": False, "flash_attn": "off"},
    ],
)
def test_without_a_gpu(agree, arch_file, tmp_path, options, repack):
    """The devices that there are."""
    path = tmp_path / "deeper.gguf"
    deeper(arch_file("llama"), path, 3, "q4_0")
    agree(path, {}, blas=BLAS, repack=repack, **options)


@pytest.mark.parametrize("options", [{}, {"offload_kqv": False}, {"tensor_split": (1, 3)}])
def test_caches_are_where_libllama_has_them(agree, arch_file, tmp_path, options):
    path = tmp_path / "deeper.gguf"
    deeper(arch_file("gpt-oss"), path, 4, "f16")
    agree(path, SYNC, n_gpu_layers=4, **options)


SIZES = {
    "of 1000 tokens": {"n_ctx": 1000, "n_batch": 100, "n_ubatch": 64},
    "of 100 tokens": {"n_ctx": 100},
    "one output": {"n_outputs_max": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
@pytest.mark.parametrize("sizes", SIZES)
def test_sizes_of_contexts(oracle, sims, arch_file, name, sizes):
    """Compute buffers depend on the tokens of a graph and on the logits that are reserved."""
    sims("gpu0")
    options = {"n_gpu_layers": 99, **SIZES[sizes]}
    theirs = Theirs(oracle, arch_file(name), (1,), sims=sims_text(ONE), **options)
    with load(arch_file(name), devices=("gpu0",), **options) as model:
        assert memory_of(model) == theirs.memory


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_programs_ask_for(oracle, sims, arch_file, name, program):
    sims("gpu0")
    path, options = arch_file(name), {"n_gpu_layers": 99}
    with load(path, devices=("gpu0",), program=program, **options) as model:
        n_ctx_train = model.metadata[f"{name}.context_length"]
        asked = asked_by(program, n_ctx_train)
        theirs = Theirs(oracle, path, (1,), sims=sims_text(ONE), **options, **asked)
        assert memory_of(model) == theirs.memory


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
@pytest.mark.parametrize("lacking", ["MUL_MAT", "RMS_NORM", "FLASH_ATTN_EXT", "MUL"])
def test_what_if_a_device_lacked_an_op(oracle, sims, arch_file, name, lacking):
    """The model loaded again is, to the node and the byte, libllama's with such a device."""
    sims("gpu0")
    path, options = arch_file(name), {"n_gpu_layers": 99}
    theirs = Theirs(oracle, path, (1, 64), sims=f"gpu0,no={lacking}", **options)
    with load(path, devices=("gpu0",), **options) as model:
        for n_tokens, plan in theirs.plans.items():
            found = model.what_if(n_tokens, supports={("gpu0", lacking): False})
            assert blank(found.text()) == blank(plan)
            assert found.promise.whose == "llama.cpp"
            assert rows_of(found.breakdown) == theirs.memory
            assert blank(model.plan(n_tokens).text()) != blank(plan)  # the devices are as before


def test_memory_of_a_gpu_that_is_left_out(oracle, sims, arch_file):
    """With -sm none, -ot may still name the others: upstream loads them, and aborts."""
    for name, settings in TWO.items():
        sims(name, **settings)
    options = {"n_gpu_layers": 99, "split_mode": "none"}
    path = arch_file("llama")
    with pytest.raises(AssertionError, match="pre-allocated tensor"):
        Theirs(oracle, path, (1,), sims=sims_text(TWO), overrides="ffn_up=gpu1", **options)
    with pytest.raises(ModelError, match=r"gpu1 memory, which no device .*would abort"):
        load(path, devices=tuple(TWO), tensor_overrides={"ffn_up": "gpu1"}, **options)
    theirs = Theirs(oracle, path, (1,), sims=sims_text(TWO), overrides="nothing=gpu1", **options)
    with load(path, devices=tuple(TWO), tensor_overrides={"nothing": "gpu1"}, **options) as model:
        assert blank(model.plan(1).text()) == blank(theirs.plans[1])
        assert memory_of(model) == theirs.memory


def test_what_the_oracle_was_asked(oracle, arch_file):
    """That its simulated devices are those of the other side, in words of libllama's log."""
    said = Theirs(oracle, arch_file("llama"), (1,), sims=sims_text(TWO), n_gpu_layers=99).log
    assert re.search(r"using device gpu1 .* 2048 MiB free", said)
    assert "offloaded 3/3 layers to GPU" in said

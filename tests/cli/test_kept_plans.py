"""Plans of models that are kept under __plans__: what llama.cpp's placement rules, upstream's
scheduler and the profiles of devices make of it together. Weights stay as they are in the file
(`repack=False`), for what a CPU repacks depends on the CPU."""

import pytest

from ggml_py.checks import (
    assert_max_copy_bytes,
    assert_max_splits,
    assert_no_fallback,
    assert_pins,
)
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec

from ..support.arch_files import LIBLLAMAS, OURS, RECURRENT

pytestmark = pytest.mark.needs(release="default", why="plans change from release to release")
GPU, TWO = ("sim:gpu0,profile=cuda", "CPU"), ("sim:gpu0,profile=cuda", "sim:gpu1,profile=vulkan")


@pytest.fixture(scope="module")
def path(model_file):
    return model_file(LlamaSpec(6, n_embd=256, n_head=4, n_head_kv=2, n_ff=192, n_vocab=300))


def plan(path, devices, n_tokens, **options):
    with load(path, devices, n_threads=1, repack=False, **options) as model:
        return model.plan(n_tokens=n_tokens)


@pytest.mark.parametrize("n_tokens", [1, 64])
def test_blas_and_cpu(path, plan_snapshot, n_tokens):
    plan_snapshot(plan(path, ("BLAS", "CPU"), n_tokens))


@pytest.mark.parametrize("n_tokens", [1, 64])
def test_all_on_the_gpu(path, plan_snapshot, n_tokens):
    kept = plan(path, GPU, n_tokens, n_gpu_layers=99)
    plan_snapshot(kept)
    assert_no_fallback(kept)
    assert_max_splits(kept, 2)


@pytest.mark.parametrize("n_tokens", [1, 64])
def test_three_layers_on_the_gpu(path, plan_snapshot, n_tokens):
    plan_snapshot(plan(path, GPU, n_tokens, n_gpu_layers=3))


def test_heads_that_the_gpu_has_no_attention_for(model_file, plan_snapshot):
    small = model_file(LlamaSpec(6, n_embd=128, n_head=4, n_head_kv=2, n_ff=192, n_vocab=300))
    plan_snapshot(plan(small, GPU, 64, n_gpu_layers=99, flash_attn="on"))


def test_two_gpus(path, plan_snapshot):
    kept = plan(path, TWO, 64, n_gpu_layers=99)
    plan_snapshot(kept)
    assert_no_fallback(kept)


@pytest.mark.parametrize(
    "name", [*OURS, *(pytest.param(n, marks=pytest.mark.thorough("programs")) for n in LIBLLAMAS)]
)
def test_each_architecture_on_the_gpu(arch_file, plan_snapshot, name):
    kept = plan(arch_file(name), GPU, 1, n_gpu_layers=99)
    plan_snapshot(kept)
    if name == "mamba":  # CUDA scans a multiple of 128 heads, this file has fewer
        off = {n.op for n in kept.nodes if n.backend == "CPU" and n.op != "VIEW"}
        assert off == {"GET_ROWS", "SSM_SCAN"}
        return
    assert_no_fallback(kept)
    assert_max_splits(kept, 2)
    assert_max_copy_bytes(kept, 5000)  # a token's embedding, what else is an input of a token
    state = "cache_r_l*" if name in RECURRENT else "cache_k_l*"
    assert_pins(kept, {"result_output": "gpu0", state: "gpu0", "inp_tokens": "CPU"})

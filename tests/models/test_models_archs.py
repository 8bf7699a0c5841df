"""Every architecture against upstream's libllama: the same graph, the same bits, the same tokens.

The files are upstream's own: `test-llama-archs` writes one per architecture, with random tensors
and with every tensor that its graph can take. Without `--all` they are ours (arch_headers.py).
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from ggml_py import ModelError, models
from ggml_py.checks import assert_max_splits, assert_pins

from ..support import arch_headers
from ..support.arch_files import ARCHS, LIBLLAMAS, OURS, PROMPTS, SEEDS, check, deeper, load
from ..support.oracle_programs import node_lines
from ..support.stopped_models import stopped_after

WINDOWS = ("gpt-oss",)  # have layers that see the last tokens only
OPTIONS = {
    "plain": {"flash_attn": "off"},
    "flash": {"flash_attn": "on"},
    "q8_0": {"flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
    "q8_0-f16": {"flash_attn": "off", "type_k": "q8_0"},
}
CASES = [
    (name, options) for name in OURS for options in OPTIONS
]  # fmt: skip


def test_all_are_tested():
    assert {name.removesuffix("-moe") for name in OURS} == set(models.ARCHS)


@pytest.mark.parametrize("name", OURS)
def test_files_of_ours_are_like_upstreams(oracle, arch_file, tmp_path, name):
    """Tests use ours where upstream's programs are not built: the header is the same, as it is and
    as a model reads it."""
    assert arch_headers.header_of(arch_file(name)) == arch_headers.headers()[name]
    arch_headers.write(tmp_path / "ours.gguf", name, 0)
    with load(tmp_path / "ours.gguf") as ours, load(arch_file(name)) as theirs:
        assert ours.hparams == theirs.hparams


@pytest.mark.parametrize("n_prompt", PROMPTS)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_logits_are_libllamas(oracle, arch_file, tmp_path, name, options, n_prompt):
    check(oracle, arch_file(name), PROMPTS[n_prompt], tmp_path, **OPTIONS[options])


@pytest.mark.parametrize("options", ["plain", "q8_0"])
@pytest.mark.parametrize("name", LIBLLAMAS)
def test_all_others_are_libllamas_own(oracle, arch_file, tmp_path, name, options):
    """`load` gives them to libllama by itself: the same answers and nodes, by the same calls."""
    path, options = arch_file(name), OPTIONS[options] | {"n_ubatch": 16}
    check(oracle, path, PROMPTS[64], tmp_path, **options)
    expected = oracle.nodes(path, PROMPTS[1], tmp_path, **options)
    with load(path, **options) as model:
        assert isinstance(model, models.Model) and model.graphs == "libllama"
        assert node_lines(model.plan(1)) == expected


@pytest.mark.parametrize("n_ubatch", [16, 7])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", OURS)
def test_seeds_and_ubatches(oracle, arch_file, tmp_path, name, seed, n_ubatch):
    check(oracle, arch_file(name, seed), PROMPTS[64], tmp_path, n_ubatch=n_ubatch)


@pytest.mark.parametrize("type_", ["q4_0", "q8_0", "q4_k"])
@pytest.mark.parametrize("name", OURS)
def test_repacked(oracle, arch_file, tmp_path, name, type_):
    """Weights in layouts for the processor, as both have them by default."""
    path = tmp_path / "deeper.gguf"
    deeper(arch_file(name), path, 3, type_)
    check(oracle, path, PROMPTS[64], tmp_path, repack=True)


@pytest.mark.parametrize("name", OURS)
def test_repacked_weights_are_where_libllama_has_them(oracle, arch_file, tmp_path, name):
    """The same buffer types, the same bytes in them."""
    path = tmp_path / "deeper.gguf"
    deeper(arch_file(name), path, 3, "q4_0")
    said = oracle.logs(path, [1], tmp_path, repack=True)
    sizes = re.findall(r"(\S+) model buffer size = +([\d.]+) MiB", said)
    theirs = {name: float(size) for name, size in sizes}
    with load(path, repack=True) as model:
        placed = {b.name: n / 2**20 for b, n in model.weights.nbytes_by_buffer_type().items()}
    assert set(placed) == set(theirs)
    for buft, size in placed.items():
        assert size == pytest.approx(theirs[buft], abs=0.01)


@pytest.mark.parametrize("n_prompt", [1, 64])
@pytest.mark.parametrize("type_", ["f32", "f16", "q4_0", "q8_0", "q4_k", "q6_k"])
@pytest.mark.parametrize("name", OURS)
def test_types_and_depth(oracle, arch_file, tmp_path, name, type_, n_prompt):
    """Five layers: where a pattern goes by layers, upstream's two may not show all of it."""
    path = tmp_path / "deeper.gguf"
    deeper(arch_file(name), path, 5, type_)
    check(oracle, path, PROMPTS[n_prompt], tmp_path)


@pytest.mark.parametrize("n_tokens", [1, 64])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_graph_is_upstreams(oracle, arch_file, tmp_path, name, options, n_tokens):
    """The nodes, with their names, ops, ne, sources and order."""
    path, options = arch_file(name), OPTIONS[options]
    expected = oracle.nodes(path, PROMPTS[n_tokens], tmp_path, **options)
    with load(path, **options) as model:
        assert node_lines(model.plan(n_tokens)) == expected


@pytest.mark.parametrize("name", OURS)
def test_a_long_prompt_on_several_threads(oracle, arch_file, tmp_path, name):
    """300 tokens in pieces, then 64: attention reads more than 256 cells."""
    path, prompt = tmp_path / "longer.gguf", [(i * 31 + 5) % 97 for i in range(300)]
    deeper(arch_file(name), path, 2, "q4_0", context_length=512)
    check(oracle, path, prompt, tmp_path, n_predict=64, n_threads=2, n_ubatch=128)


@pytest.mark.parametrize("n_used", [1, 2, 3, 8])
@pytest.mark.parametrize("name", [name for name, file in ARCHS.items() if file.endswith("-moe")])
def test_experts(oracle, arch_file, tmp_path, name, n_used):
    """Some of eight, where upstream's files have two of two."""
    path = tmp_path / "experts.gguf"
    deeper(arch_file(name), path, 3, "q8_0", n_expert=8, expert_used_count=n_used)
    check(oracle, path, PROMPTS[64], tmp_path)


@pytest.mark.parametrize(
    "options", [{}, {"swa_full": True}, {"flash_attn": "off"}, {"n_ubatch": 1}]
)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_move_on(oracle, arch_file, tmp_path, name, options):
    """More tokens than the window's cache has cells: those that nobody sees are used again."""
    prompt = [(i * 31 + 5) % 97 for i in range(300)]
    options = {"n_ubatch": 16, **options}
    with load(arch_file(name), **options) as model:
        assert model.hparams.swa.n_swa == 32
        assert model._memory.caches[1].cells.size == (512 if "swa_full" in options else 256)
    check(oracle, arch_file(name), prompt, tmp_path, **options)


@pytest.mark.parametrize("name", WINDOWS)
def test_what_a_stopped_eval_leaves(arch_file, monkeypatch, name):
    """One graph can be taken back; where a window has moved on the sequence starts anew."""
    prompt = [(i * 31 + 5) % 97 for i in range(200)]
    with load(arch_file(name), n_ubatch=64) as model:
        rows = [model.eval(prompt), model.eval(prompt[:40])]
        model.reset()
        model.eval(prompt)
        with stopped_after(model, monkeypatch, 0):
            model.eval(prompt[:40])
        assert model.n_past == 200
        # In other cells than without the stop: attention adds up in another order.
        np.testing.assert_allclose(model.eval(prompt[:40]), rows[1], atol=1e-3)
        model.reset()
        model.eval(prompt)
        with stopped_after(model, monkeypatch, 3):
            model.eval(prompt + prompt[:100])
        assert model.n_past == 0
        for tokens, row in zip((prompt, prompt[:40]), rows, strict=True):
            np.testing.assert_array_equal(model.eval(tokens), row)


@pytest.mark.parametrize("n_gpu_layers", [1, 99])
@pytest.mark.parametrize("name", OURS)
def test_layers_on_a_gpu(sims, arch_file, name, n_gpu_layers):
    """A simulated one, whose kernels are the CPU's: the same bits, and nothing left behind."""
    sims("gpu0", host_buffer=True)
    rows = []
    for options in ({}, {"devices": ("sim:gpu0", "CPU"), "n_gpu_layers": n_gpu_layers}):
        with load(arch_file(name), **options) as model:
            rows.append(model.eval(PROMPTS[64]))
            plan = model.plan()
    np.testing.assert_array_equal(*rows)
    assert_pins(plan, {"result_output": "gpu0"})
    assert_max_splits(plan, 2)  # from one layer on all is on the GPU


def test_another_architecture(arch_file, tmp_path):
    """The error lists those there are."""
    from ..support.changed_models import changed

    path = changed(tmp_path, metadata={"general.architecture": "rwkv9"})
    with pytest.raises(ModelError) as error:
        load(path)
    assert f"architecture 'rwkv9'; supported: {', '.join(sorted(models.ARCHS))}" in str(error.value)

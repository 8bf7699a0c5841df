"""Models against upstream's libllama: the same files, the same tokens, the same logits."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import models
from ggml_py.boundary.ffi import BUILD
from ggml_py.models.graphs import Graphs
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.oracle_programs import node_lines

# Threads wait for each other by spinning: two of them on a machine that is busy otherwise crawl.
# Weights as in the file, unless a test is about the CPU's own layouts.
load = partial(models.load, n_threads=1, repack=False)
N_PREDICT = 64
BLAS = next(BUILD["folder"].glob("libggml-blas.*"))
PROMPTS = {n: [(i * 7919 + 11) % 97 for i in range(n)] for n in (1, 7, 64)}
DEVICES = {"cpu": ("CPU",), "blas": ("BLAS", "CPU")}
YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 64,
}
SMALL = {"n_layer": 3, "n_embd": 256, "n_head": 8, "n_head_kv": 2, "n_ff": 512, "n_vocab": 512}
SPECS = {
    "f32": LlamaSpec(**SMALL, type="f32"),
    "f16": LlamaSpec(**SMALL, type="f16"),
    "bf16": LlamaSpec(**SMALL, type="bf16"),
    "q4_0": LlamaSpec(**SMALL, type="q4_0"),
    "q8_0": LlamaSpec(**SMALL, type="q8_0"),
    "q4_k": LlamaSpec(**SMALL, type="q4_k"),
    "tied": LlamaSpec(**{**SMALL, "n_vocab": 200}, type="q4_0", tied=True),
    "linear": LlamaSpec(**SMALL, metadata={"llama.rope.scaling.factor": 2.0}),
    "yarn": LlamaSpec(**SMALL, metadata={**YARN, "llama.rope.freq_base": 500000.0}),
    "wide": LlamaSpec(**{**SMALL, "n_head": 4, "n_head_kv": 4}),  # heads of 64
}


@pytest.fixture(scope="session")
def model_file(tmp_path_factory, request):
    """`model_file(name)`: a file of SPECS, or "arch": upstream's own llama with random tensors."""
    folder = tmp_path_factory.mktemp("models")

    def get(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            if name == "arch":
                oracle = request.getfixturevalue("oracle")
                oracle.run("test-llama-archs", "-a", "llama", "-s", 42, "-o", folder)
                (folder / "llama-dense.gguf").rename(path)
            else:
                write_llama(path, SPECS[name])
        return path

    return get


def agree(
    oracle, path, prompt, scratch, *, devices=("CPU",), n_ubatch=512, repack=False, **options
):
    """The bar: the same greedy tokens, logits within 1e-4 of the largest.

    libllama has the same backends. BLAS multiplies in f32 where the CPU quantises or rounds the
    activations first, so with and without it libllama differs from itself by more than the bar.
    """
    theirs = {**options, **({"blas": BLAS} if "BLAS" in devices else {})}
    if repack:
        theirs["repack"] = True
    expected_tokens, expected = oracle.logits(
        path, prompt, N_PREDICT, scratch, n_ubatch=n_ubatch, **theirs
    )
    with load(path, devices=devices, n_ubatch=n_ubatch, repack=repack, **options) as model:
        rows = [model.eval(prompt, all_logits=True)]
        tokens = [int(rows[0][-1].argmax())]
        while len(tokens) < N_PREDICT:
            rows.append(model.eval(tokens[-1:])[None])
            tokens.append(int(rows[-1].argmax()))
    ours = np.concatenate(rows)
    assert tokens == expected_tokens
    assert ours.shape == expected.shape
    worst = np.abs(ours - expected).max() / np.abs(expected).max()
    assert worst <= 1e-4, f"largest difference {worst:.2e} of the largest logit"
    return worst


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", ["arch", *SPECS])
def test_logits_are_libllamas(oracle, model_file, tmp_path, name, devices, flash_attn):
    agree(
        oracle,
        model_file(name),
        PROMPTS[64],
        tmp_path,
        devices=DEVICES[devices],
        flash_attn=flash_attn,
    )


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q8_0", "tied", "f16"])
def test_repacked_logits_are_libllamas(
    oracle, model_file, tmp_path, name, devices, flash_attn
):
    """With weights laid out for the processor on both sides, as both do by default."""
    path, prompt = model_file(name), PROMPTS[64]
    options = {"devices": DEVICES[devices], "flash_attn": flash_attn, "repack": True}
    assert agree(oracle, path, prompt, tmp_path, **options) <= 1e-4


@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", ["arch", "f16", "q4_0", "q4_k", "q8_0", "tied"])
def test_weights_are_where_libllama_has_them(
    oracle, model_file, tmp_path, name, devices, repack
):
    """The same buffer types, the same bytes in them."""
    path, options = model_file(name), {"blas": BLAS} if devices == "blas" else {}
    if repack:
        options["repack"] = True
    said = oracle.logs(path, [1], tmp_path, **options)
    sizes = re.findall(r"(\S+) model buffer size = +([\d.]+) MiB", said)
    theirs = {name: float(size) for name, size in sizes}
    with load(path, devices=DEVICES[devices], repack=repack) as model:
        placed = model.weights.nbytes_by_buffer_type()
    assert {buft.name for buft in placed} == set(theirs)
    for buft, nbytes in placed.items():
        assert nbytes / 2**20 == pytest.approx(theirs[buft.name], abs=0.01)
    laid_out = "AVX2" in ggml.device("CPU").features and name in ("q4_0", "q4_k", "tied")
    assert not laid_out or ("CPU_REPACK" in theirs) == repack


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("n_ubatch", [512, 16, 7])
@pytest.mark.parametrize("n_prompt", PROMPTS)
def test_prompts_in_pieces(oracle, model_file, tmp_path, n_prompt, n_ubatch, flash_attn):
    agree(
        oracle,
        model_file("q4_0"),
        PROMPTS[n_prompt],
        tmp_path,
        n_ubatch=n_ubatch,
        flash_attn=flash_attn,
    )


@pytest.mark.parametrize(
    ("type_k", "type_v", "flash_attn"),
    [
        ("f32", "f32", "off"),
        ("f32", "f32", "on"),
        ("bf16", "bf16", "on"),
        ("q8_0", "q8_0", "auto"),
        ("q8_0", "f16", "off"),
        ("q4_0", "q5_1", "on"),
    ],
)
def test_types_of_the_cache(oracle, model_file, tmp_path, type_k, type_v, flash_attn):
    options = {"type_k": type_k, "type_v": type_v, "flash_attn": flash_attn}
    agree(oracle, model_file("wide"), PROMPTS[64], tmp_path, **options)


def test_a_context_that_grows_past_its_padding(oracle, model_file, tmp_path):
    """n_kv goes from 256 to 512 while it generates: another graph, the same sequence."""
    prompt = [(i * 31 + 5) % 500 for i in range(240)]
    agree(oracle, model_file("q8_0"), prompt, tmp_path)


@pytest.mark.parametrize("devices", DEVICES)
def test_generate(oracle, model_file, tmp_path, devices):
    """Computes only the last token's logits, as libllama does; can go on, and start again."""
    path = model_file("q4_0")
    options = {"blas": BLAS} if devices == "blas" else {}
    expected, _logits = oracle.logits(path, PROMPTS[64], 32, tmp_path, last=True, **options)
    with load(path, devices=DEVICES[devices]) as model:
        assert model.generate(PROMPTS[64], 20) == expected[:20]
        assert model.n_past == 64 + 19
        assert model.generate(expected[19:20], 12) == expected[20:]
        model.reset()
        assert model.generate(PROMPTS[64], 32) == expected


@pytest.mark.parametrize("n_tokens", [1, 64])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("q4_0", {"flash_attn": "on"}),
        ("q4_0", {"flash_attn": "off"}),
        ("arch", {"flash_attn": "on"}),
        ("tied", {"flash_attn": "auto"}),
        ("wide", {"flash_attn": "on", "type_k": "q8_0", "type_v": "q4_0"}),
        ("wide", {"flash_attn": "off", "type_k": "q8_0"}),
    ],
)
def test_the_graph_is_upstreams(oracle, model_file, tmp_path, name, options, n_tokens):
    """The nodes, with their names, ops, ne, sources and order."""
    path = model_file(name)
    expected = oracle.nodes(path, PROMPTS[n_tokens], tmp_path, **options)
    with load(path, **options) as model:
        assert node_lines(model.plan(n_tokens)) == expected


@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize("n_tokens", [1, 31, 32, 64])
@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("devices", DEVICES)
def test_the_plan_is_libllamas(
    oracle, model_file, tmp_path, devices, flash_attn, n_tokens, repack
):
    """Every split, node and backend, as libllama's scheduler prints them with causes blank."""
    path, prompt = model_file("q4_0"), [1] * n_tokens
    options = {"blas": BLAS} if devices == "blas" else {}
    if repack:
        options["repack"] = True
    expected = oracle.plan(path, prompt, tmp_path, flash_attn=flash_attn, **options)
    with load(path, devices=DEVICES[devices], flash_attn=flash_attn, repack=repack) as model:
        text = model.plan(n_tokens).text()
    blank = re.sub(r"\[( *\w+) [^]]*\]", r"[\1         ]", text)
    assert blank.strip() == expected.strip()


def test_flash_attention_where_a_device_lacks_it(model_file, monkeypatch):
    """ "auto" lays the cache out for it, finds no support, and computes without."""
    path = model_file("f16")
    with load(path, flash_attn="off") as model:
        expected = model.eval(PROMPTS[7])
    monkeypatch.setattr(Graphs, "_flash_attn_fits", lambda self: False)
    with load(path, flash_attn="auto") as model:
        assert not model.flash_attn
        assert model.plan().find("v_cont-0")
        np.testing.assert_allclose(model.eval(PROMPTS[7]), expected, atol=1e-5)

"""Random models: what is in the files, and that upstream's programs take them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from ggml_py import Gguf, ModelError
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "make_model.py"
SMALL = {"n_layer": 1, "n_embd": 64, "n_head": 2, "n_head_kv": 1, "n_ff": 64, "n_vocab": 300}


def example():
    spec = importlib.util.spec_from_file_location("make_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_seed_gives_the_same_file(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_llama(tmp_path / name, LlamaSpec(**SMALL, seed=seed))
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c


def test_what_is_in_a_file(tmp_path):
    path = tmp_path / "model.gguf"
    spec = LlamaSpec(**SMALL, type="f16", metadata={"general.name": "mine", "x.y": 1.5})
    write_llama(path, spec)
    with Gguf.open(path) as gguf:
        assert gguf.metadata["general.name"] == "mine" and gguf.metadata["x.y"] == 1.5
        assert len(gguf.metadata["tokenizer.ggml.tokens"]) == 300
        assert sum(np.prod(t.ne) for t in gguf.tensors.values()) == spec.n_params
        types = {t.name: t.type.name for t in gguf.tensors.values()}
        assert types["blk.0.attn_norm.weight"] == "F32" and types["output.weight"] == "F16"
        data = gguf.mmap()
        tensor = gguf.tensors["blk.0.ffn_down.weight"]
        values = data[tensor.offset : tensor.offset + tensor.nbytes].view(np.float16)
        assert 0.9 < values.astype(np.float32).std() * np.sqrt(64) < 1.1


def test_the_default_is_small(tmp_path):
    path = tmp_path / "model.gguf"
    write_llama(path)
    assert path.stat().st_size < 5e6
    with load(path, n_threads=1) as model:
        assert model.hparams.n_layer == 4
        assert np.isfinite(model.eval([1, 2, 3])).all()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_layer": 0}, "n_layer=0: expected at least 1"),
        ({"n_head": 3}, "n_embd=64, n_head=3"),
        ({"n_head": 64}, "expected n_embd to be an even multiple"),
        ({"n_head_kv": 3}, "n_head_kv=3: expected a divisor of n_head=2"),
        ({"n_ff": 72}, "n_ff=72: expected a multiple of 32, the block of q4_0"),
        ({"type": "i32"}, "type=i32: expected f32, f16, bf16 or a quantised type"),
    ],
)
def test_sizes_that_cannot_be(sizes, message):
    with pytest.raises(ModelError, match=message):
        LlamaSpec(**{**SMALL, **sizes})


def test_example(tmp_path, capsys):
    out = tmp_path / "out.gguf"
    arguments = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()]
    assert example().main([str(out), *arguments, "--type=q8_0", "--tied", "--seed=3"]) == 0
    assert "parameters" in capsys.readouterr().out
    spec = LlamaSpec(**SMALL, type="q8_0", tied=True, seed=3)
    write_llama(tmp_path / "same.gguf", spec)
    assert out.read_bytes() == (tmp_path / "same.gguf").read_bytes()


def test_example_says_what_is_wrong(tmp_path, capsys):
    assert example().main([str(tmp_path / "x.gguf"), "--type", "q9_9"]) == 1
    assert "make_model: type 'q9_9': expected" in capsys.readouterr().err
    assert example().main([str(tmp_path / "no" / "x.gguf")]) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spec", [{}, {"n_vocab": 100, "tied": True}], ids=["spm", "no vocab"])
def test_llama_bench_runs_it(oracle, tmp_path, spec):
    path = tmp_path / "model.gguf"
    write_llama(path, LlamaSpec(**{**SMALL, **spec}))
    done = oracle.run("llama-bench", "-m", path, "-p", 8, "-n", 4, "-r", 1, "-t", 1, "-o", "json")
    rows = json.loads(done.stdout)
    assert rows[0]["model_n_params"] == LlamaSpec(**{**SMALL, **spec}).n_params
    assert all(row["avg_ts"] > 0 for row in rows)


def test_the_tokenizer_is_whole(oracle, tmp_path):
    """llama-eval-callback turns text into tokens before it computes."""
    path = tmp_path / "model.gguf"
    write_llama(path, LlamaSpec(**SMALL))
    done = oracle.run("llama-eval-callback", "-m", path, "-p", "w1 hé", "-c", 256)
    assert "number of input tokens" in done.stdout + done.stderr

"""Models of every architecture: upstream's own small ones, and deeper ones made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggml_py import Gguf, models
from ggml_py.gguf.writer import TensorEntry, write_gguf

from .oracle_programs import Oracle

load = partial(models.load, n_threads=1, repack=False)  # see test_models.py
PLAIN = ("ffn_gate_inp.weight", "ssm_conv1d.weight", "_norm.weight")  # never quantised
N_PREDICT = 64
PROMPTS = {n: [(i * 7919 + 11) % 97 for i in range(n)] for n in (1, 7, 64)}
SEEDS = (42, 7, 1234)
ARCHS = {  # the names of upstream's files
    "llama": "llama-dense",
    "qwen2": "qwen2-dense",
    "qwen3": "qwen3-dense",
    "smollm3": "smollm3-dense",
    "olmo2": "olmo2-dense",
    "phi3": "phi3-dense",
    "llama-moe": "llama-moe",
    "qwen3moe": "qwen3moe-moe",
    "gpt2": "gpt2-dense",
    "gemma2": "gemma2-dense",
    "gemma3": "gemma3-dense",
    "gpt-oss": "gpt-oss-moe",
    "mamba": "mamba-dense",
    "mamba2": "mamba2-dense",
}
RECURRENT = ("mamba", "mamba2")  # have a state in place of attention
# Our own graphs are of these.
OURS = ("llama", "qwen2", "qwen3", "llama-moe", "qwen3moe", "gpt-oss")
LIBLLAMAS = tuple(name for name in ARCHS if name not in OURS)


def check(
    oracle: Oracle,
    path: Path,
    prompt: list[int],
    scratch: Path,
    *,
    n_predict: int = N_PREDICT,
    n_threads: int = 1,
    **options: Any,
) -> None:
    """The bar: all tokens are the same, and the logits are equal in every bit."""
    expected_tokens, expected = oracle.logits(
        path, prompt, n_predict, scratch, threads=n_threads, **options
    )
    with load(path, n_threads=n_threads, **options) as model:
        rows = [model.eval(prompt, all_logits=True)]
        tokens = [int(rows[0][-1].argmax())]
        while len(tokens) < n_predict:
            rows.append(model.eval(tokens[-1:])[None])
            tokens.append(int(rows[-1].argmax()))
    assert len(np.unique(expected, axis=0)) > len(expected) / 2, "equal rows show little"
    np.testing.assert_array_equal(np.concatenate(rows), expected)
    assert tokens == expected_tokens


Tensors = dict[str, npt.NDArray[np.float32]]  # by name, in numpy's order of dimensions


def deeper(
    source: Path,
    target: Path,
    n_layer: int,
    type_: str,
    n_expert: int = 2,
    edit: Callable[[Tensors], None] = lambda _tensors: None,
    **metadata: Any,
) -> None:
    """`source` with `n_layer` layers, which repeat those of `source` in turn, each with its
    elements rotated, and with matrices in `type_`. `metadata` (names without the architecture, "__"
    for ".") replaces the file's, or with None removes it. Experts are repeated too. `edit` changes
    the tensors last."""
    with Gguf.open(source) as gguf:
        arch = gguf.metadata["general.architecture"]
        n_source = gguf.metadata[f"{arch}.block_count"]
        header: dict[str, Any] = {}
        for key, value in gguf.metadata.items():
            a_list = isinstance(value, np.ndarray | list)
            if not a_list or (key.startswith("tokenizer.") and len(value)):
                header[key] = value
            elif len(value) == n_source:
                header[key] = np.resize(value, n_layer)  # a value per layer
        header |= {f"{arch}.{key.replace('__', '.')}": value for key, value in metadata.items()}
        header = {key: value for key, value in header.items() if value is not None}
        header[f"{arch}.block_count"] = n_layer
        if header.get(f"{arch}.expert_count"):
            header[f"{arch}.expert_count"] = n_expert
        tensors = _tensors(gguf, n_source, n_layer, n_expert)
        edit(tensors)
        write_gguf(target, header, _entries(tensors, type_))


def _tensors(gguf: Gguf, n_source: int, n_layer: int, n_expert: int) -> Tensors:
    tensors: Tensors = {}
    for name, info in gguf.tensors.items():
        values = np.frombuffer(gguf.data(name), np.float32)
        n_dims = max((i + 1 for i, n in enumerate(info.ne) if n > 1), default=1)
        values = values.reshape(info.ne[:n_dims][::-1])
        if "_exps" in name or "ffn_gate_inp" in name:  # experts are the first axis
            parts = [np.roll(values[i % len(values)], i) for i in range(n_expert)]
            values = np.ascontiguousarray(parts)
        if not name.startswith("blk."):
            tensors[name] = values
            continue
        _blk, number, rest = name.split(".", 2)
        for il in range(int(number), n_layer, n_source):
            tensors[f"blk.{il}.{rest}"] = np.roll(values, il - int(number))
    return tensors


def _entries(tensors: Tensors, type_: str) -> Iterator[TensorEntry]:
    for name, values in tensors.items():
        matrix = name.endswith(".weight") and values.ndim > 1 and not name.endswith(PLAIN)
        kind, ne = (type_ if matrix else "f32"), values.shape[::-1]
        if kind.endswith("_k") and ne[0] % 256:
            kind = "q5_0"  # as llama-quantize does
        if kind.startswith("q") and ne[0] % 32:
            kind = "f16"
        yield name, values, kind, ne


def fused(tensors: Tensors) -> None:
    """One matrix for queries, keys and values, with one bias."""
    _fuse(tensors, "bias")


def fused_but_biases(tensors: Tensors) -> None:
    """One matrix for queries, keys and values, with three biases, as in some old files."""
    _fuse(tensors)


def _fuse(tensors: Tensors, *kinds: str) -> None:
    for name in [name for name in tensors if name.endswith("attn_q.weight")]:
        blk = name.removesuffix("attn_q.weight")
        for kind in ("weight", *kinds):
            parts = [tensors.pop(f"{blk}attn_{x}.{kind}") for x in "qkv"]
            tensors[f"{blk}attn_qkv.{kind}"] = np.concatenate(parts)
        scales = [tensors.pop(f"{blk}attn_{x}.scale") for x in "qkv"]
        tensors[f"{blk}attn_qkv.scale"] = scales[0]
        for x in "qkv":
            del tensors[f"{blk}attn_{x}.input_scale"]


def tied(tensors: Tensors) -> None:
    """Uses the token embedding as the output, too."""
    for kind in ("weight", "scale", "input_scale"):
        tensors.pop(f"output.{kind}", None)

"""Recipes of models: llamas with random weights, of any size, made in seconds where they are used.

No weights are carried, and quantising billions of random numbers would take minutes. So each matrix
repeats a few hundred rows, which are quantised once for each length. Speed does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

import ggml_py as ggml
from ggml_py.gguf.writer import TensorEntry, write_gguf
from ggml_py.models.synthetic import LlamaSpec
from ggml_py.tensors.tensor import type_of

ROWS = 257  # a prime: neighbouring matrices do not begin alike
LEAST_BYTES = 1 << 22  # of a piece that is written at once

RECIPES: dict[str, LlamaSpec] = {
    "7M-q4_0": LlamaSpec(),
    "110M-q4_0": LlamaSpec(
        n_layer=12, n_embd=768, n_head=12, n_head_kv=12, n_ff=2048, n_vocab=32000
    ),
    "1.1B-q4_k": LlamaSpec(
        n_layer=22, n_embd=2048, n_head=32, n_head_kv=4, n_ff=5632, n_vocab=32000, type="q4_k"
    ),
    "8B-q4_k": LlamaSpec(
        n_layer=32, n_embd=4096, n_head=32, n_head_kv=8, n_ff=14336, n_vocab=128256, type="q4_k"
    ),
}


def write_recipe(path: Path, spec: LlamaSpec) -> None:
    """Writes the model. The file appears when it is whole."""
    write_gguf(path, spec.header(), _tensors(spec))


def _tensors(spec: LlamaSpec) -> Iterator[TensorEntry]:
    for index, (name, make, type_, ne) in enumerate(spec.tensors()):
        if len(ne) < 2:
            yield name, make, type_, ne
        else:
            yield name, _repeated(spec, ne[0], ne[1], index), type_, ne


def _repeated(spec: LlamaSpec, n: int, rows: int, index: int) -> Iterator[bytes]:
    bank = _bank(type_of(spec.type), n)
    size = len(bank) // ROWS
    first = index * 31 % ROWS * size
    bank = bank[first:] + bank[:first]
    piece = bank * max(LEAST_BYTES // len(bank), 1)
    left = rows * size
    while left > 0:
        yield piece[:left]
        left -= len(piece)


@cache
def _bank(type_: ggml.Type, n: int) -> bytes:
    """ROWS random rows of n elements as the file has them, scaled as in a whole random matrix."""
    values = np.random.default_rng([0, n]).standard_normal((ROWS, n), np.float32)
    return ggml.quantize(values / math.sqrt(n), type_).tobytes()

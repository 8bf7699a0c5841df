"""Bytes to fill weights and caches with: random numbers of a type."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..boundary.ffi import ffi, lib
from ..tensors.convert import quantize, type_of
from ..tensors.tensor import Tensor


def block_of(type_: str, k: int, rows: int, seed: int = 0) -> Any:
    """The raw bytes of `rows` rows of random numbers of that type."""
    values = np.random.default_rng(seed).standard_normal((rows, k), np.float32)
    if type_ in ("i32", "i64"):
        return np.zeros((rows, k), np.dtype(type_))
    return np.ascontiguousarray(quantize(values, type_of(type_))).view(np.uint8).reshape(-1)


def fill(tensor: Tensor, block: Any) -> None:
    """Writes raw bytes of whole rows over and over until the tensor is full."""
    n = tensor.nbytes
    content = np.resize(block, n)
    lib.ggml_backend_tensor_set(tensor.ptr, ffi.from_buffer(content), 0, n)

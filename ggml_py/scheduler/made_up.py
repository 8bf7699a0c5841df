"""Made-up values for the leafs of a rebuilt graph, the same in every process and release."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .. import enums
from ..boundary.ffi import NULL, ffi, lib
from ..errors import ArgumentError
from ..tensors.convert import DTYPES, quantize
from ..tensors.tensor import Tensor

_TILE = 1 << 16  # values that are drawn; larger tensors repeat whole rows of them
_INTEGERS = (enums.Type.I8, enums.Type.I16, enums.Type.I32, enums.Type.I64)


class MadeUp:
    """Values for the leafs that have memory, made so that their readers can compute. Matrices get
    normally distributed values, scaled so that a product keeps the size of its operand. Vectors get
    factors around 1. Indices get existing rows, each once while there are enough. Each release
    quantises with its own code."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        rows = _rows_of_indices(tensors)
        self._data: list[tuple[Tensor, npt.NDArray[np.uint8]]] = []
        for i, tensor in enumerate(tensors):
            ptr = tensor.ptr
            is_leaf = ptr.op == lib.GGML_OP_NONE and ptr.view_src == NULL
            n = lib.ggml_nbytes(ptr)
            if is_leaf and n and ptr.buffer != NULL:
                raw = _values(tensor, i, rows.get(_address(ptr)))
                self._data.append((tensor, np.resize(raw.reshape(-1).view(np.uint8), n)))

    def write(self) -> None:
        """Gives the leafs their values. C: ggml_backend_tensor_set"""
        self._write(self._data)

    def write_inputs(self) -> None:
        """Only those in compute buffers, whose memory a compute gives to nodes after their last
        use."""
        compute = lib.GGML_BACKEND_BUFFER_USAGE_COMPUTE
        usage = lib.ggml_backend_buffer_get_usage
        self._write([one for one in self._data if usage(one[0].ptr.buffer) == compute])

    @staticmethod
    def _write(data: Sequence[tuple[Tensor, npt.NDArray[np.uint8]]]) -> None:
        for tensor, values in data:
            lib.ggml_backend_tensor_set(tensor.ptr, ffi.from_buffer(values), 0, values.nbytes)


def _values(tensor: Tensor, seed: int, n_rows: int | None) -> npt.NDArray[np.generic]:
    if tensor.type in _INTEGERS:
        n = tensor.n_elements
        ids = np.arange(n, dtype=np.int64) % n_rows if n_rows else np.zeros(n, np.int64)
        return ids.astype(DTYPES[tensor.type])
    ne = tensor.ne
    rng = np.random.default_rng(seed)
    shape = (max(1, min(math.prod(ne[1:]), _TILE // ne[0])), ne[0])
    if math.prod(ne[1:]) > 1:
        drawn = rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(ne[0]))
    else:
        drawn = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    for imatrix in (None, np.ones(ne[0], np.float32)):  # some types need one
        try:
            return quantize(drawn, tensor.type, imatrix)
        except ArgumentError:
            continue
    return np.zeros(1, np.uint8)  # a type that ggml does not quantise to


def _rows_of_indices(tensors: Sequence[Tensor]) -> dict[int, int]:
    """How many rows the readers of an index tensor have for it, by its address. An index tensor
    that is read otherwise is not here."""
    found: dict[int, int] = {}
    for tensor in tensors:
        bound = _BOUNDS.get(tensor.op.name)
        if bound is None:
            continue
        place, rows = bound
        sources = tensor.src
        if place < len(sources):
            leaf = sources[place].ptr
            while leaf.view_src != NULL:
                leaf = leaf.view_src
            n = rows(tensor)
            found[_address(leaf)] = min(n, found.get(_address(leaf), n))
    return found


# The source that is the index, and how many rows it can name.
_BOUNDS: dict[str, tuple[int, Callable[[Tensor], int]]] = {
    "GET_ROWS": (1, lambda t: t.src[0].ne[1]),
    "SET_ROWS": (1, lambda t: t.ne[1]),
    "MUL_MAT_ID": (2, lambda t: t.src[2].ne[0]),  # all tokens with the same experts
    "ADD_ID": (2, lambda t: t.src[1].ne[1]),
    "ROPE": (1, lambda _t: 1 << 20),  # positions
}


def _address(ptr: object) -> int:
    return int(ffi.cast("uintptr_t", ptr))

"""Copies only the experts that the tokens chose, when a GPU computes with expert weights that are
in the CPU's memory. Before 0.26 ggml did this itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backends.backend import Backend
from ...boundary.ffi import ffi, lib
from ...enums import Op
from ...tensors.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

# CUDA kernels may read this many bytes past an expert. These must be numbers, too.
_PADDING = 512


class ExpertCopies:
    """The scheduler's copy callback of llama.cpp (llama_context::sched_copy_experts)."""

    def __init__(self) -> None:
        self._ids: Any = None  # the ids that were read last; a layer's products share one tensor
        self._used: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

    def forget(self) -> None:
        """Forgets the ids that were read: they belong to an earlier compute."""
        self._ids = None

    def __call__(
        self, backend: Backend, src: Tensor, dst: Tensor, nodes: tuple[Tensor, ...]
    ) -> bool:
        """Fills the part of `dst` that the first node reads, if that node multiplies with experts.
        For later nodes the experts may not have been chosen yet."""
        if not nodes or nodes[0].op != Op.MUL_MAT_ID or nodes[0].src[0].ptr != dst.ptr:
            return False
        ids, n_expert, size = nodes[0].src[2], src.ne[2], src.nb[2]
        if self._ids != ids.ptr or len(self._used) != n_expert:
            self._used = _used(backend, ids, n_expert)
            self._ids = ids.ptr
        base = ffi.cast("char *", src.ptr.data)
        for first, stop in runs(self._used):
            end = min(stop * size + min(size, _PADDING), n_expert * size)
            start = first * size
            lib.ggml_backend_tensor_set_async(
                backend.ptr, dst.ptr, base + start, start, end - start
            )
        return True


def runs(used: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The ranges [first, stop) in which `used` is true."""
    edges = np.flatnonzero(np.diff(used, prepend=False, append=False))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _used(backend: Backend, ids: Tensor, n_expert: int) -> npt.NDArray[np.bool_]:
    """Which experts were chosen by any token, from ids [n_used, n_tokens] with any nb[1]."""
    used = np.zeros(n_expert, np.bool_)
    if ids.n_elements:
        raw = np.empty(ids.nbytes, np.uint8)
        into = ffi.from_buffer(raw, require_writable=True)
        lib.ggml_backend_tensor_get_async(backend.ptr, ids.ptr, into, 0, raw.nbytes)
        lib.ggml_backend_synchronize(backend.ptr)
        strides = (ids.nb[1], ids.nb[0])
        used[np.lib.stride_tricks.as_strided(raw.view(np.int32), ids.ne[1::-1], strides)] = True
    return used

"""The inputs that attention needs in addition to queries, keys and values, for one cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...boundary.ffi import ffi, lib
from ...enums import Type
from ...graphs.context import Context
from ...tensors.tensor import Tensor
from ..cache.kv_caches import KvCaches, Shape
from ..cache.ubatch import Ubatch
from .inputs import Constant, array_of, new_input
from .rotation import hadamard

# Until 0.9.4 attention required the mask's rows padded to a multiple of this.
_MASK_PAD: int = getattr(lib, "GGML_KQ_MASK_PAD", 1)


class AttnInput:
    """The cells to write, the mask of the cells to read, and rotations for a quantised cache."""

    def __init__(
        self, ctx: Context, caches: KvCaches, index: int, shape: Shape, flash_attn: bool
    ) -> None:
        """`index` is the number of the cache in `caches`."""
        self.kv = kv = caches.caches[index]
        self._index = index
        self.n_kv, n_tokens = shape.n_kv[index], shape.n_tokens
        mask_ne = (self.n_kv, -(-n_tokens // _MASK_PAD) * _MASK_PAD)
        self.k_idxs = new_input(ctx, Type.I64, n_tokens, name="attn_inp_k_idxs")
        n_v_idxs = kv.v_idxs_size(n_tokens)
        self.v_idxs = new_input(ctx, Type.I64, n_v_idxs, name="attn_inp_v_idxs")
        self.kq_mask = new_input(
            ctx, Type.F16 if flash_attn else Type.F32, *mask_ne, name="attn_inp_kq_mask"
        )
        self.k_rot = _rotation(ctx, kv.n_rot_k, "attn_inp_k_rot")
        self.v_rot = _rotation(ctx, kv.n_rot_v, "attn_inp_v_rot")
        found = (rot for rot in (self.k_rot, self.v_rot) if rot is not None and kv.k)
        self.tensors = (self.k_idxs, self.v_idxs, self.kq_mask) if kv.k else ()
        self.rotations = [Constant(rot, hadamard(rot.ne[0])) for rot in found]

    def share(self) -> None:
        """See `Input`."""
        if not self.kv.k:
            return  # no layer reads these inputs, so they have no memory
        self._k_idxs, self._v_idxs = array_of(self.k_idxs), array_of(self.v_idxs)
        self._mask = array_of(self.kq_mask).reshape(-1, self.n_kv)

    def set(self, ubatch: Ubatch) -> None:
        """See `Input`."""
        kv = self.kv
        if not kv.k:
            return
        cells, n = ubatch.slots[self._index], ubatch.n_tokens
        self._k_idxs[:] = cells
        self._v_idxs[:] = kv.v_idxs(cells)
        self._mask[n:] = -np.inf  # padding
        kv.cells.fill_mask(self._mask[:n], ubatch.pos)

    def describe(self, cache: Any) -> None:
        """Fills a struct gp_decode_cache, for a graph of one token."""
        kv, n_v_idxs = self.kv, self.kv.v_idxs_size(1)
        cache.cells = kv.cells.native
        cache.n_kv = self.n_kv
        if not kv.k:
            return
        cache.k_idxs = ffi.from_buffer("int64_t[]", self._k_idxs)
        cache.v_idxs = ffi.from_buffer("int64_t[]", self._v_idxs)
        cache.k_base = cache.v_base = 0
        cache.n_v_idxs, cache.v_stride = n_v_idxs, kv.cells.size
        cache.mask = ffi.from_buffer(self._mask)
        cache.n_mask_rows = len(self._mask)
        cache.f16 = self.kq_mask.type == Type.F16


def _rotation(ctx: Context, n: int, name: str) -> Tensor | None:
    return new_input(ctx, Type.F32, n, n, name=name) if n else None

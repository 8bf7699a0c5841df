"""The keys and values of the tokens so far, for some of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...backends.buffer import BufferType
from ...boundary.ffi import lib
from ...enums import Type
from ...errors import ModelError
from ...graphs.context import Context
from ...tensors.tensor import Tensor
from ..file.free_memory import alloc_all
from ..file.hparams import HParams
from ..file.placement import LayerPlacement
from .cells import Cells, Idxs

if TYPE_CHECKING:
    import numpy.typing as npt


class KvCache:
    """A K and a V tensor per layer, on the layer's device. A token's cell is its row in them.

    K is [n_embd_gqa, n_cells]: a row per token. V is the same, but with `v_trans`
    (without flash attention) its rows are elements and its columns tokens, as the product of
    attention needs it. A quantised cache holds rotated vectors, which quantise better (llama.cpp's
    Hadamard matrices).
    """

    def __init__(
        self,
        hparams: HParams,
        placement: LayerPlacement,
        layers: Sequence[int],
        cells: Cells,
        type_k: Type,
        type_v: Type,
        v_trans: bool,
    ) -> None:
        """Raises `ModelError` for a type that this cache cannot have, and `AllocError`."""
        self.hparams = hparams
        self.cells = cells
        self.v_trans = v_trans
        self._v_rows = np.arange(hparams.n_embd_gqa, dtype=np.int64) * cells.size
        _check_type("type_k", type_k, hparams.n_embd_head)
        _check_type("type_v", type_v, hparams.n_embd_head)
        self.n_rot_k = _largest_power_of_2(hparams.n_embd_head) if self._rotates(type_k) else 0
        self.n_rot_v = 64 if self._rotates(type_v) else 0
        self._k_strides, self._v_strides = self._strides(type_k), self._strides(type_v)
        self._contexts: dict[BufferType, Context] = {}
        self.k: dict[int, Tensor] = {}
        self.v: dict[int, Tensor] = {}
        for il in layers:
            buft = placement.buffer_type(il)
            if buft not in self._contexts:
                self._contexts[buft] = Context()
            context = self._contexts[buft]
            ne = (hparams.n_embd_gqa, cells.size)
            self.k[il] = context.new_tensor(type_k, *ne, name=f"cache_k_l{il}")
            self.v[il] = context.new_tensor(type_v, *ne, name=f"cache_v_l{il}")
        self.buffers = alloc_all(self._contexts)

    def _rotates(self, type_: Type) -> bool:
        # Releases without the hint have no fast product for rotations: there nothing is rotated.
        fast = hasattr(lib, "ggml_mul_mat_set_hint")
        return fast and lib.ggml_is_quantized(type_) and self.hparams.n_embd_head % 64 == 0

    def zero(self) -> None:
        """Fills the cache with zeros: even cells that attention masks out must be finite."""
        for buffer in self.buffers:
            buffer.clear()

    def close(self) -> None:
        """Closes the contexts, and the buffers with them."""
        for context in self._contexts.values():
            context.close()

    # --- in the graph

    def cpy_k(self, ctx: Context, k_cur: Tensor, k_idxs: Tensor, il: int) -> Tensor:
        """Stores k_cur [n_embd_head, n_head_kv, n_tokens] in the cells k_idxs [n_tokens]."""
        k_cur = self._rows(ctx, k_cur)
        return ctx.set_rows(self.k[il], k_cur, k_idxs)

    def cpy_v(self, ctx: Context, v_cur: Tensor, v_idxs: Tensor, il: int) -> Tensor:
        """Stores v_cur [n_embd_head, n_head_kv, n_tokens] in the rows v_idxs, from `v_idxs`."""
        v = self.v[il]
        if not self.v_trans:
            return ctx.set_rows(v, self._rows(ctx, v_cur), v_idxs)
        n_embd, n_tokens = self.hparams.n_embd_gqa, v_cur.ne[2]
        whole_rows = lib.ggml_row_size(v_cur.type, n_embd) == v_cur.nb[2]  # not part of a fused QKV
        v_cur = (ctx.reshape_2d if whole_rows else ctx.cont_2d)(v_cur, n_embd, n_tokens)
        v_view = ctx.reshape_2d(v, 1, v.n_elements)  # each element is a row
        return ctx.set_rows(v_view, ctx.reshape_2d(v_cur, 1, v_cur.n_elements), v_idxs)

    def _rows(self, ctx: Context, cur: Tensor) -> Tensor:
        return ctx.view_2d(cur, self.hparams.n_embd_gqa, cur.ne[2], cur.nb[2], 0)

    def get_k(self, ctx: Context, n_kv: int, il: int) -> Tensor:
        """The keys in the first n_kv cells: [n_embd_head, n_head_kv, n_kv, 1]."""
        return self._tokens(ctx, self.k[il], self._k_strides, n_kv)

    def get_v(self, ctx: Context, n_kv: int, il: int) -> Tensor:
        """The values, as `get_k`, or with `v_trans` as [n_kv, n_head_kv, n_embd_head, 1]."""
        v, hp = self.v[il], self.hparams
        if not self.v_trans:
            return self._tokens(ctx, v, self._v_strides, n_kv)
        nb2, nb1, nb3 = (
            lib.ggml_row_size(v.type, self.cells.size * n)
            for n in (1, hp.n_embd_head, hp.n_embd_gqa)
        )
        return ctx.view_4d(v, n_kv, hp.n_head_kv, hp.n_embd_head, 1, nb1, nb2, nb3, 0)

    def _tokens(
        self, ctx: Context, cache: Tensor, strides: tuple[int, int, int], n_kv: int
    ) -> Tensor:
        hp = self.hparams
        return ctx.view_4d(cache, hp.n_embd_head, hp.n_head_kv, n_kv, 1, *strides, 0)

    def _strides(self, type_: Type) -> tuple[int, int, int]:
        """Bytes of a head, a token and all tokens, if rows are tokens."""
        head, token = (
            lib.ggml_row_size(type_, n) for n in (self.hparams.n_embd_head, self.hparams.n_embd_gqa)
        )
        return head, token, token * self.cells.size

    # --- values of inputs

    def v_idxs(self, cells: Idxs) -> npt.NDArray[np.int64]:
        """The rows of V for tokens in these cells: the cells, or with `v_trans` all elements."""
        return (cells[:, None] + self._v_rows).reshape(-1) if self.v_trans else cells

    def v_idxs_size(self, n_tokens: int) -> int:
        """The number of elements of `v_idxs`."""
        return n_tokens * (self.hparams.n_embd_gqa if self.v_trans else 1)


def _check_type(option: str, type_: Type, n_embd_head: int) -> None:
    name, block = type_.name.lower(), lib.ggml_blck_size(type_)
    if n_embd_head % block:
        raise ModelError(
            f"{option}={name} has blocks of {block} elements, but this model's heads have "
            f"{n_embd_head}, which is not a multiple: use f16"
        )


def _largest_power_of_2(n: int) -> int:
    """The largest power of two that divides n."""
    return n & -n

"""The keys and values of the tokens so far, for one sequence."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .._ffi import lib
from ..buffer import BufferType
from ..context import Context
from ..enums import Type
from ..errors import ModelError
from ..tensor import Tensor
from .hparams import HParams
from .placement import Placement

if TYPE_CHECKING:
    import numpy.typing as npt

TYPES = tuple(
    Type[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")
)  # what llama.cpp's command line takes
PAD = 256  # cells: llama.cpp pads the context and the part of it that attention reads to this


def pad(n: int) -> int:
    """`n` rounded up to whole steps of `PAD`."""
    return -(-n // PAD) * PAD


class KvCache:
    """A K and a V tensor per layer, on the layer's device. Token i is in cell i.

    K is [n_embd_gqa, n_ctx]: a row per token. V is the same, or with `v_trans` (without flash
    attention) its rows are elements and its columns tokens, as the attention's product wants it.
    A quantised cache holds rotated vectors, which quantise better (llama.cpp's Hadamard matrices).
    """

    def __init__(
        self,
        hparams: HParams,
        placement: Placement,
        n_ctx: int,
        type_k: Type,
        type_v: Type,
        v_trans: bool,
    ) -> None:
        """Raises `ModelError` for a type that a cache cannot have here, `AllocError`."""
        self.hparams = hparams
        self.n_ctx = pad(n_ctx)
        self.n_past = 0
        self.v_trans = v_trans
        self.cells = np.arange(self.n_ctx, dtype=np.int64)  # token i is in cell i
        self.positions = self.cells.astype(np.int32)
        self._mask_rows: dict[np.dtype[Any], npt.NDArray[Any]] = {}
        self._v_rows = np.arange(hparams.n_embd_gqa, dtype=np.int64) * self.n_ctx
        _check_type("type_k", type_k, hparams.n_embd_head)
        _check_type("type_v", type_v, hparams.n_embd_head)
        self.n_rot_k = _largest_power_of_2(hparams.n_embd_head) if self._rotates(type_k) else 0
        self.n_rot_v = 64 if self._rotates(type_v) else 0
        self._contexts: dict[BufferType, Context] = {}
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        for il in range(hparams.n_layer):
            buft = placement.buffer_type(il)
            if buft not in self._contexts:
                self._contexts[buft] = Context()
            context = self._contexts[buft]
            ne = (hparams.n_embd_gqa, self.n_ctx, 1)
            self.k.append(context.new_tensor(type_k, *ne, name=f"cache_k_l{il}"))
            self.v.append(context.new_tensor(type_v, *ne, name=f"cache_v_l{il}"))
        self._buffers = [context.alloc(buft) for buft, context in self._contexts.items()]
        self._clear()

    def _rotates(self, type_: Type) -> bool:
        # Releases without the hint have no fast product for it: there vectors stay as they are.
        fast = hasattr(lib, "ggml_mul_mat_set_hint")
        return fast and lib.ggml_is_quantized(type_) and self.hparams.n_embd_head % 64 == 0

    def _clear(self) -> None:
        for buffer in self._buffers:
            buffer.clear()

    def reset(self) -> None:
        """Forgets all tokens. Zeros, because what attention masks out must still be finite."""
        if self.n_past:
            self._clear()
        self.n_past = 0

    def close(self) -> None:
        """Closes the contexts, and with them the buffers."""
        for context in self._contexts.values():
            context.close()

    def n_kv(self, n_used: int) -> int:
        """Cells that attention reads when `n_used` are in use: padded, so that a graph lasts."""
        return min(self.n_ctx, max(PAD, pad(n_used)))

    # --- in the graph

    def cpy_k(self, ctx: Context, k_cur: Tensor, k_idxs: Tensor, il: int) -> Tensor:
        """Stores k_cur [n_embd_head, n_head_kv, n_tokens] in the cells k_idxs [n_tokens]."""
        k_cur = self._rows(ctx, k_cur)
        return ctx.set_rows(self.k[il], k_cur, k_idxs)

    def cpy_v(self, ctx: Context, v_cur: Tensor, v_idxs: Tensor, il: int) -> Tensor:
        """Stores v_cur [n_embd_head, n_head_kv, n_tokens]; v_idxs from `v_idxs`."""
        v = self.v[il]
        if not self.v_trans:
            return ctx.set_rows(v, self._rows(ctx, v_cur), v_idxs)
        n_embd, n_tokens = self.hparams.n_embd_gqa, v_cur.ne[2]
        v_cur = ctx.reshape_2d(v_cur, n_embd, n_tokens)
        v_view = ctx.reshape_2d(v, 1, v.n_elements)  # each element a row of its own
        return ctx.set_rows(v_view, ctx.reshape_2d(v_cur, 1, v_cur.n_elements), v_idxs)

    def _rows(self, ctx: Context, cur: Tensor) -> Tensor:
        return ctx.view_2d(cur, self.hparams.n_embd_gqa, cur.ne[2], cur.nb[2], 0)

    def get_k(self, ctx: Context, n_kv: int, il: int) -> Tensor:
        """The first n_kv cells: [n_embd_head, n_head_kv, n_kv]."""
        return self._tokens(ctx, self.k[il], n_kv)

    def get_v(self, ctx: Context, n_kv: int, il: int) -> Tensor:
        """The first n_kv cells: as `get_k`, or with `v_trans` [n_kv, n_head_kv, n_embd_head]."""
        v, hp = self.v[il], self.hparams
        if not self.v_trans:
            return self._tokens(ctx, v, n_kv)
        nb2, nb1, nb3 = (
            lib.ggml_row_size(v.type, self.n_ctx * n) for n in (1, hp.n_embd_head, hp.n_embd_gqa)
        )
        return ctx.view_4d(v, n_kv, hp.n_head_kv, hp.n_embd_head, 1, nb1, nb2, nb3, 0)

    def _tokens(self, ctx: Context, cache: Tensor, n_kv: int) -> Tensor:
        hp = self.hparams
        nb1, nb2, nb3 = (
            lib.ggml_row_size(cache.type, n)
            for n in (hp.n_embd_head, hp.n_embd_gqa, hp.n_embd_gqa * self.n_ctx)
        )
        return ctx.view_4d(cache, hp.n_embd_head, hp.n_head_kv, n_kv, 1, nb1, nb2, nb3, 0)

    # --- the inputs' values

    def v_idxs(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows of V for tokens in `cells`: the cells; with `v_trans` all their elements."""
        if not self.v_trans:
            return cells
        return (cells[:, None] + self._v_rows).reshape(-1)

    def v_idxs_size(self, n_tokens: int) -> int:
        """Elements of `v_idxs`."""
        return n_tokens * (self.hparams.n_embd_gqa if self.v_trans else 1)

    def fill_causal_mask(self, mask: npt.NDArray[Any], n_past: int, end: int) -> None:
        """mask [n_rows, n_kv] in numpy's order: 0 for the cells that the tokens from n_past to end
        attend to, -inf for others.

        Rows after those tokens' are padding.
        """
        row_of = self._mask_rows.get(mask.dtype)
        if row_of is None:  # each token's row is a part of this one
            row_of = np.full(2 * self.n_ctx, -np.inf, mask.dtype)
            row_of[: self.n_ctx] = 0.0
            self._mask_rows[mask.dtype] = row_of
        n_kv, start = mask.shape[1], self.n_ctx - n_past - 1
        for row in range(end - n_past):
            mask[row] = row_of[start - row : start - row + n_kv]
        if len(mask) > end - n_past:
            mask[end - n_past :] = -np.inf


@cache
def hadamard(n: int) -> npt.NDArray[np.float32]:
    """The orthogonal [n, n] matrix of ones and minus ones, scaled; n a power of two."""
    matrix = np.full((1, 1), 1 / np.sqrt(n), np.float32)
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _check_type(option: str, type_: Type, n_embd_head: int) -> None:
    name, block = type_.name.lower(), lib.ggml_blck_size(type_)
    if type_ not in TYPES:
        names = ", ".join(t.name.lower() for t in TYPES)
        raise ModelError(f"{option}={name}: a cache can have {names}")
    if n_embd_head % block:
        raise ModelError(
            f"{option}={name} has blocks of {block} elements, which do not fit this model's heads "
            f"of {n_embd_head}: take f16"
        )


def _largest_power_of_2(n: int) -> int:
    """The largest power of two that divides n."""
    return n & -n

"""What attention takes beside queries, keys and values: inputs of a graph, for one cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._ffi import lib
from ..context import Context
from ..convert import DTYPES
from ..enums import Type
from ..tensor import Tensor
from .kv_cache import KvCache, hadamard

if TYPE_CHECKING:
    import numpy.typing as npt

# Until 0.9.4 attention wanted the mask's rows padded to a multiple of this.
_MASK_PAD: int = getattr(lib, "GGML_KQ_MASK_PAD", 1)


class AttnInput:
    """The cells to write, the mask of those to read, and rotations for a quantised cache."""

    def __init__(
        self, ctx: Context, kv: KvCache, n_tokens: int, n_kv: int, flash_attn: bool
    ) -> None:
        self.kv = kv
        self.n_kv = n_kv
        n_mask_rows = -(-n_tokens // _MASK_PAD) * _MASK_PAD
        mask = (Type.F16 if flash_attn else Type.F32, n_kv, n_mask_rows, 1, 1)
        self.k_idxs = new_input(ctx, Type.I64, n_tokens, name="attn_inp_k_idxs")
        n_v_idxs = kv.v_idxs_size(n_tokens)
        self.v_idxs = new_input(ctx, Type.I64, n_v_idxs, name="attn_inp_v_idxs")
        self.kq_mask = new_input(ctx, *mask, name="attn_inp_kq_mask")
        self.k_rot = _rotation(ctx, kv.n_rot_k, "attn_inp_k_rot")
        self.v_rot = _rotation(ctx, kv.n_rot_v, "attn_inp_v_rot")

    def share(self) -> None:
        """Takes arrays over all of them, once the graph has memory."""
        if not self.kv.k:
            return  # no layer reads them: they have none
        self._k_idxs, self._v_idxs = array_of(self.k_idxs), array_of(self.v_idxs)
        self._mask = array_of(self.kq_mask).reshape(-1, self.n_kv)
        rotations = (rot for rot in (self.k_rot, self.v_rot) if rot is not None)
        self._constants = [(array_of(rot), hadamard(rot.ne[0])) for rot in rotations]

    def set(self, n_past: int) -> None:
        """Writes all of them, for tokens from position n_past on that have their cells."""
        kv = self.kv
        if not kv.k:
            return
        self._k_idxs[:] = kv.cells.idxs
        self._v_idxs[:] = kv.v_idxs()
        kv.cells.fill_mask(self._mask, n_past)
        for array, values in self._constants:
            array[:] = values


def new_input(ctx: Context, type_: Type, *ne: int, name: str) -> Tensor:
    """A tensor that is written before the graph is computed."""
    tensor = ctx.new_tensor(type_, *ne, name=name)
    tensor.set_input()
    return tensor


def _rotation(ctx: Context, n: int, name: str) -> Tensor | None:
    return new_input(ctx, Type.F32, n, n, name=name) if n else None


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """An array over an input, for as long as the graph has its memory."""
    return tensor._view(DTYPES[tensor.type])

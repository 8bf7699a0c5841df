"""Settings of a node that can be changed after it is made and before it is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import enums
from ..boundary.arguments import enum_of, integer
from ..boundary.ffi import NULL, lib
from ..errors import ArgumentError
from .info import TensorInfo

if TYPE_CHECKING:
    from .tensor import Tensor

_PRODUCTS = (enums.Op.MUL_MAT, enums.Op.MUL_MAT_ID)
_ROPES = (enums.Op.ROPE, enums.Op.ROPE_BACK)
SINKS = {enums.Op.SOFT_MAX: 2, enums.Op.FLASH_ATTN_EXT: 4}  # op -> its source with the sinks


class OpSettings(TensorInfo):
    """The part of `Tensor` for results of certain ops; those of other ops raise `ArgumentError`."""

    __slots__ = ()

    def set_prec(self, prec: enums.Prec | int | str) -> None:
        """Sets the minimum precision of the sums in a mul_mat or flash_attn_ext ("f32").

        C: ggml_prec_set_acc; in releases before 0.24.0 ggml_mul_mat_set_prec and
        ggml_flash_attn_ext_set_prec
        """
        number, op = enum_of(enums.Prec, prec), self._is(*_PRODUCTS, enums.Op.FLASH_ATTN_EXT)
        if hasattr(lib, "ggml_prec_set_acc"):
            lib.ggml_prec_set_acc(self.ptr, number)
        elif op == enums.Op.FLASH_ATTN_EXT:
            lib.ggml_flash_attn_ext_set_prec(self.ptr, number)
        else:
            lib.ggml_mul_mat_set_prec(self.ptr, number)

    def set_prec_src(self, prec: enums.Prec | int | str, idx: int = 1) -> None:
        """Sets the precision to which a backend may round source `idx` of a mul_mat. Upstream has
        it for source 1 only.

        C: ggml_prec_set_src
        """
        prec_set_src = lib.ggml_prec_set_src  # raises if this release lacks it
        self._is(*_PRODUCTS)
        prec_set_src(self.ptr, enum_of(enums.Prec, prec), integer("idx", idx, 1, 1))

    def set_hint(self, hint: enums.OpHint | int | str) -> None:
        """Tells a mul_mat what it may exploit ("src0_is_hadamard"). C: ggml_mul_mat_set_hint"""
        set_hint = lib.ggml_mul_mat_set_hint
        self._is(enums.Op.MUL_MAT)
        set_hint(self.ptr, enum_of(enums.OpHint, hint))

    def add_sinks(self, sinks: Tensor | None) -> None:
        """Adds attention sinks to a soft_max_ext or flash_attn_ext: f32, one per head. None removes
        them. Call it before the node is added to a graph: the graph would not learn of them later.

        C: ggml_soft_max_add_sinks, ggml_flash_attn_ext_add_sinks
        """
        from .tensor import Tensor

        op = self._is(*SINKS)
        raw = NULL
        if sinks is not None:
            if not isinstance(sinks, Tensor):
                raise TypeError(f"sinks: expected a Tensor, got {type(sinks).__name__}")
            heads = self.ptr.src[0].ne[2]
            if sinks.type != enums.Type.F32 or sinks.ne[0] != heads:
                raise ArgumentError(
                    f"sinks '{sinks.name}': {sinks.type.name.lower()} ne0 {sinks.ne[0]}, expected "
                    f"f32 with one element for each of {heads} heads"
                )
            if self.ptr.src[SINKS[op]] != NULL:
                raise ArgumentError(f"'{self.name}' already has sinks: call add_sinks(None) first")
            self._context._adopt(sinks)
            raw = sinks.ptr
        if op == enums.Op.SOFT_MAX:
            lib.ggml_soft_max_add_sinks(self.ptr, raw)
        else:
            lib.ggml_flash_attn_ext_add_sinks(self.ptr, raw)

    def set_rope_offset(self, n_offs: int) -> None:
        """Sets where in a row a rope starts to rotate. Dimensions before that stay as they are.

        C: ggml_rope_set_offset
        """
        self._is(*_ROPES)
        n_dims, mode = self.ptr.op_params[1], self.ptr.op_params[2]
        if mode == lib.GGML_ROPE_TYPE_VISION:
            raise ArgumentError(f"'{self.name}' is a vision rope, which takes no offset")
        integer("n_offs", n_offs, 0, self.ne[0] - n_dims)
        lib.ggml_rope_set_offset(self.ptr, n_offs)

    def set_n_kv_max(self, n_kv_max: int) -> None:
        """Promises that no row of a flash_attn_ext's mask has more finite elements than this, so
        the rest can be skipped. 0 means no bound. C: ggml_flash_attn_ext_set_n_kv_max
        """
        self._is(enums.Op.FLASH_ATTN_EXT)
        lib.ggml_flash_attn_ext_set_n_kv_max(
            self.ptr, integer("n_kv_max", n_kv_max, 0, (1 << 31) - 1)
        )

    def _is(self, *ops: enums.Op) -> enums.Op:
        """Its op. Raises `ArgumentError` unless it is one of these."""
        op = enums.Op(self.ptr.op)
        if op not in ops:
            names = ", ".join(one.name.lower() for one in ops)
            raise ArgumentError(f"'{self.name}' is a {op.name.lower()}: expected one of {names}")
        return op

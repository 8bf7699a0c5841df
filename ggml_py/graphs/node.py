"""Makes a tensor again from plain data, field by field: the one way from a file to a native tensor.

Native code relies on ggml's own constructors: a product has two sources, sizes fit into 64 bits.
The functions here check this. The ids of a plan, and that it has no cycle, are checked where it is
read (export/json/checked.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from .. import enums
from ..boundary.arguments import integer
from ..boundary.ffi import NULL, lib, text
from ..errors import ArgumentError
from ..sim.profiles.call import CUSTOM_OPS, SELF, Call, Four, Operand
from ..tensors.tensor import Tensor
from .context import MOST_BYTES, Context

# How many sources an op always has, in all releases: devices read them without looking. One for ops
# that are not named; more may follow.
N_SOURCES = {
    op: n for n, ops in {
        0: "ARANGE CUSTOM NONE",
        2: "ACC ADD ADD1 CONCAT CONV_2D CONV_2D_DW CONV_3D CONV_TRANSPOSE_1D CONV_TRANSPOSE_2D "
           "COUNT_EQUAL CPY CROSS_ENTROPY_LOSS DIV DSV4_HC_PRE GET_ROWS GET_ROWS_BACK IM2COL "
           "IM2COL_3D IM2COL_BACK MAP_CUSTOM2 MUL MUL_MAT OUT_PROD POOL_2D_BACK RMS_NORM_BACK ROPE "
           "ROPE_BACK SET SILU_BACK SOFT_MAX_BACK SOLVE_TRI SSM_CONV SUB",
        3: "ADD_ID ADD_REL_POS CROSS_ENTROPY_LOSS_BACK DSV4_HC_COMB DSV4_HC_POST FLASH_ATTN_EXT "
           "MAP_CUSTOM3 MUL_MAT_ID OPT_STEP_SGD SET_ROWS",
        4: "FLASH_ATTN_BACK LIGHTNING_INDEXER",
        5: "GATED_LINEAR_ATTN OPT_STEP_ADAMW",
        6: "GATED_DELTA_NET RWKV_WKV6",
        7: "RWKV_WKV7 SSM_SCAN",
    }.items() for op in ops.split()
}  # fmt: skip
MAX_SRC, N_PARAMS = lib.GGML_MAX_SRC, 16  # sources; words of op_params
_INT32 = 1 << 31


def new_tensor(
    context: Context, type_: str, ne: Sequence[int], nb: Sequence[int], name: str = ""
) -> Any:
    """A native tensor without memory, of this type, shape and strides in bytes.

    Raises `ArgumentError` for a type that this release lacks, and for a shape or strides that no
    tensor has. C: ggml_new_tensor
    """
    if type_.lower() not in _types():
        raise ArgumentError(
            f"'{name}' is of type {type_}: release {enums.UPSTREAM} has no such type"
        )
    if not _is_shape(type_, ne, nb):
        raise ArgumentError(
            f"'{name}': ne {list(ne)}, nb {list(nb)}: expected four sizes and four strides in "
            "bytes of a tensor that a machine can address"
        )
    tensor = lib.ggml_new_tensor(context.ptr, _types()[type_.lower()], 4, [0, 1, 1, 1])
    tensor.ne, tensor.nb = list(ne), list(nb)
    lib.ggml_set_name(tensor, name.encode("utf-8", "replace")[:63])
    return tensor


def set_op(tensor: Any, op: str, desc: str, params: Sequence[int], src: Sequence[Any]) -> None:
    """Makes `tensor` the result of an op. `desc` names the kind of a UNARY or GLU, whose number
    differs between releases. `src` are native tensors; NULL for none. A custom op gets no
    op_params: they are an address in another program.

    Raises `ArgumentError` for an op that this release lacks, an op without all its sources, and for
    more sources or op_params than a tensor has.
    """
    number, kinds = _ops().get(op), _kinds().get(op)
    if number is None or (kinds and desc not in kinds):
        raise ArgumentError(
            f"'{text(tensor.name)}' is a {desc if kinds else op} of type "
            f"{text(lib.ggml_type_name(tensor.type))}: release {enums.UPSTREAM} has no such op"
        )
    need = N_SOURCES.get(op, 1)
    have = next((i for i, source in enumerate(src) if source == NULL), len(src))
    if have < need:
        raise ArgumentError(
            f"'{text(tensor.name)}' is a {op} with {have} of its sources: release "
            f"{enums.UPSTREAM} has {need}. Was it recorded with another release?"
        )
    for what, n, most in (("sources", len(src), MAX_SRC), ("op_params", len(params), N_PARAMS)):
        if n > most:
            raise ArgumentError(f"'{text(tensor.name)}' has {n} {what}: expected at most {most}")
    tensor.op = number
    if op not in CUSTOM_OPS:
        for i, word in enumerate(params):
            tensor.op_params[i] = integer(f"op_params[{i}]", word, -_INT32, _INT32 - 1)
    if kinds:
        tensor.op_params[0] = kinds[desc]
    for i, source in enumerate(src):
        tensor.src[i] = source


def set_view(tensor: Any, root: Any, offset: int, inside: bool = False) -> None:
    """Makes `tensor` a view of `root`, `offset` bytes into its memory.

    Raises `ArgumentError` for an impossible offset, and with `inside` (a graph that is computed)
    for memory beyond that of `root`.
    """
    name = text(tensor.name)
    integer(f"view_offs of '{name}'", offset, 0, MOST_BYTES)
    nbytes = int(lib.ggml_nbytes(root))
    if inside and offset + int(lib.ggml_nbytes(tensor)) > nbytes:
        raise ArgumentError(
            f"'{name}' views memory beyond the {nbytes:,} bytes of '{text(root.name)}'"
        )
    tensor.view_src, tensor.view_offs = root, offset


def node_of_call(context: Context, call: Call) -> Tensor:
    """The node that `call` describes, with its sources as leafs. Nothing has memory.

    Raises `ArgumentError` as `new_tensor` and `set_op`. C: ggml_new_tensor
    """
    node = _operand(context, call.out)
    sources = [_operand(context, operand) for operand in call.operands]
    found = {-1: NULL, SELF: node, **dict(enumerate(sources))}
    set_op(node, call.kind, call.op, call.params, [found[index] for index in call.places])
    if call.views:
        viewed = sources[call.places[call.views[-1]]]
        set_view(node, viewed if viewed.view_src == NULL else viewed.view_src, 0)
    return Tensor(node, context)


def _operand(context: Context, like: Operand) -> Any:
    tensor = new_tensor(context, like.type, like.ne, like.nb, like.name)
    if like.whole is not None:
        set_view(
            tensor, new_tensor(context, like.type, like.whole, packed(like.type, like.whole)), 0
        )
    return tensor


def _is_shape(type_: str, ne: Sequence[int], nb: Sequence[int]) -> bool:
    """Whether a tensor can have these sizes and strides."""
    if len(ne) != 4 or len(nb) != 4 or min(*ne, *nb) < 0 or max(nb) >= 1 << 64:
        return False
    extent = sum((n - 1) * stride for n, stride in zip(ne, nb, strict=True) if n)
    whole = math.prod(n or 1 for n in ne) * block_of(type_)[1]
    return max(extent, whole) <= MOST_BYTES


@cache
def block_of(type_: str) -> tuple[int, int]:
    """Elements and bytes per block of a type."""
    number = _types()[type_.lower()]
    return int(lib.ggml_blck_size(number)), int(lib.ggml_type_size(number))


def packed(type_: str, ne: Sequence[int]) -> Four:
    """The strides of a contiguous tensor, in bytes."""
    block, size = block_of(type_)
    row = size * (ne[0] // block)
    return (size, row, row * ne[1], row * ne[1] * ne[2])


@cache
def _ops() -> dict[str, int]:
    return {text(lib.ggml_op_name(op)): int(op) for op in enums.Op if op.name != "COUNT"}


@cache
def _types() -> dict[str, int]:
    return {t.name.lower(): int(t) for t in enums.Type if t.name != "COUNT"}


@cache
def _kinds() -> dict[str, dict[str, int]]:
    """The numbers of the ops that are one op with a kind in op_params[0]."""
    unary = (k for k in enums.UnaryOp if k.name != "COUNT")
    glu = (k for k in enums.GluOp if k.name != "COUNT")
    return {
        "UNARY": {text(lib.ggml_unary_op_name(k)): int(k) for k in unary},
        "GLU": {text(lib.ggml_glu_op_name(k)): int(k) for k in glu},
    }

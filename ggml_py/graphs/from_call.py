"""Makes a node from plain data, field by field, to ask a device about it."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import enums
from ..boundary.ffi import NULL, lib, text
from ..errors import ArgumentError
from ..sim.profiles.call import SELF, Call, Operand
from ..tensors.convert import type_of
from ..tensors.tensor import Tensor
from .context import Context

# How many sources an op always has: devices read them without looking. One for ops that are not
# named; more may follow.
N_SOURCES = {
    op: n for n, ops in {
        0: "ARANGE NONE",
        2: "ACC ADD ADD1 CONCAT CONV_2D CONV_2D_DW CONV_3D CONV_TRANSPOSE_1D CONV_TRANSPOSE_2D "
           "COUNT_EQUAL CPY CROSS_ENTROPY_LOSS DIV DSV4_HC_PRE GET_ROWS GET_ROWS_BACK IM2COL "
           "IM2COL_3D IM2COL_BACK MUL MUL_MAT OUT_PROD POOL_2D_BACK RMS_NORM_BACK ROPE ROPE_BACK "
           "SET SILU_BACK SOFT_MAX_BACK SOLVE_TRI SSM_CONV SUB",
        3: "ADD_ID ADD_REL_POS CROSS_ENTROPY_LOSS_BACK DSV4_HC_COMB DSV4_HC_POST FLASH_ATTN_EXT "
           "MUL_MAT_ID OPT_STEP_SGD SET_ROWS",
        4: "FLASH_ATTN_BACK LIGHTNING_INDEXER",
        5: "GATED_LINEAR_ATTN OPT_STEP_ADAMW",
        6: "GATED_DELTA_NET RWKV_WKV6",
        7: "RWKV_WKV7 SSM_SCAN",
    }.items() for op in ops.split()
}  # fmt: skip


def node_of_call(context: Context, call: Call) -> Tensor:
    """The node that `call` describes, with its sources as leafs. Nothing has memory.

    Raises `ArgumentError` for an op that this release lacks, and for one without all its sources.
    C: ggml_new_tensor
    """
    op = _ops().get(call.kind)
    if op is None:
        raise ArgumentError(f"{call.kind}: release {enums.UPSTREAM} has no such op")
    need = N_SOURCES.get(call.kind, 1)
    have = next((i for i, index in enumerate(call.places) if index == -1), len(call.places))
    if have < need:
        raise ArgumentError(
            f"'{call.out.name}' is a {call.kind} with {have} of its sources: release "
            f"{enums.UPSTREAM} has {need}. Was it recorded with another release?"
        )
    node = _leaf(context, call.out)
    sources = [_leaf(context, operand) for operand in call.operands]
    node.op = op
    for i, word in enumerate(call.params):
        node.op_params[i] = word
    for place, index in enumerate(call.places):
        if index != -1:
            node.src[place] = node if index == SELF else sources[index]
    if call.views:
        viewed = sources[call.places[call.views[-1]]]
        node.view_src = viewed if viewed.view_src == NULL else viewed.view_src
    return Tensor(node, context)


def _leaf(context: Context, like: Operand) -> Any:
    type_ = int(type_of(like.type))
    ptr = lib.ggml_new_tensor(context.ptr, type_, 4, [0, 1, 1, 1])
    ptr.ne, ptr.nb = list(like.ne), list(like.nb)
    lib.ggml_set_name(ptr, like.name.encode()[:63])
    if like.whole is not None:
        ptr.view_src = lib.ggml_new_tensor(context.ptr, type_, 4, [0, 1, 1, 1])
        ptr.view_src.ne = list(like.whole)
    return ptr


@cache
def _ops() -> dict[str, int]:
    return {text(lib.ggml_op_name(op)): int(op) for op in enums.Op if op.name != "COUNT"}

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


def node_of_call(context: Context, call: Call) -> Tensor:
    """The node that `call` describes, with its sources as leafs. Nothing has memory.

    Raises `ArgumentError` for an op that this release lacks. C: ggml_new_tensor
    """
    op = _ops().get(call.kind)
    if op is None:
        raise ArgumentError(f"{call.kind}: release {enums.UPSTREAM} has no such op")
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

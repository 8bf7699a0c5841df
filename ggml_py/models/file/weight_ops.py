"""Which op reads a weight, and whether a device supports it in a buffer type, as in llama.cpp."""

from __future__ import annotations

from typing import Final

from ...backends.buffer import BufferType
from ...backends.device import Device
from ...enums import Op, Type
from ...graphs.context import Context
from ...tensors.tensor import Tensor
from .hparams import HParams

INPUT: Final = -1  # the layer number of the token embedding


def op_of(il: int, name: str) -> Op:
    """The op that reads a weight (llama.cpp's LLM_TENSOR_INFOS, and its rule for biases)."""
    expert = "_exps." in name
    if name.endswith(".bias"):
        return Op.ADD_ID if expert else Op.ADD
    if name.endswith("_norm.weight"):
        return Op.MUL
    if name.startswith(("rope_freqs.", "rope_factors_")):
        return Op.ROPE
    if il == INPUT:
        return Op.GET_ROWS
    if name.endswith("attn_sinks.weight"):
        return Op.SCALE
    return Op.MUL_MAT_ID if expert else Op.MUL_MAT


def supports(
    device: Device,
    buft: BufferType,
    op: Op,
    name: str,
    type_: Type,
    ne: tuple[int, ...],
    hp: HParams,
) -> bool:
    """Whether `device` supports `op` for that weight in a buffer of type `buft`. Some devices look
    at the weight's name."""
    with Context() as context, buft.alloc(0) as nothing:
        weight = context.new_tensor(type_, *ne, name=name)
        weight.ptr.buffer = nothing.ptr  # too small, but only the buffer's type matters
        return device.supports_op(user_of(context, op, weight, hp))


def user_of(context: Context, op: Op, weight: Tensor, hp: HParams) -> Tensor:
    """The op for a batch of 512, with llama.cpp's shapes. C: weight_buft_supported"""
    ne, new = weight.ne, context.new_tensor
    if op == Op.GET_ROWS:
        return context.get_rows(weight, new("i32", 512))
    if op in (Op.ADD, Op.MUL):
        return (context.add if op == Op.ADD else context.mul)(new("f32", *ne), weight)
    if op == Op.SCALE:
        return context.scale(weight, 1.0)
    if op == Op.ROPE:
        cur, positions = new("f32", hp.n_embd_head, hp.n_head, 512), new("i32", 512)
        return context.rope_ext(cur, positions, weight, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if op in (Op.ADD_ID, Op.MUL_MAT_ID):
        n_used = hp.experts.n_expert_used if hp.experts else 1
        cur, ids = new("f32", ne[0], n_used, 512), new("i32", n_used, 512)
        return (context.add_id if op == Op.ADD_ID else context.mul_mat_id)(
            *((cur, weight) if op == Op.ADD_ID else (weight, cur)), ids
        )
    return context.mul_mat(weight, new("f32", ne[0], 512, *ne[2:]))

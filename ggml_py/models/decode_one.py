"""One more token, on the allocated graph, in one native call (decode.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..boundary.ffi import ffi, lib
from .build.inputs import Constant
from .cache.cells import POS_END

if TYPE_CHECKING:
    from ..scheduler.scheduler import Scheduler
    from .build.blocks import GraphBuilder


def takes_one(builder: GraphBuilder) -> bool:
    """Whether a graph can be computed this way: it has one token, and its logits."""
    return builder.shape.n_tokens == builder.shape.n_outputs == 1


def decode_one(sched: Scheduler, builder: GraphBuilder) -> Any:
    """A struct gp_decode for a graph that is allocated on a scheduler. It is valid for as long as
    the graph keeps that memory."""
    native = ffi.new("struct gp_decode *")
    native.sched, native.graph = sched.ptr, builder.graph.ptr
    for name, of in (("inp_tokens", "token"), ("inp_pos", "pos"), ("out_ids", "out_ids")):
        setattr(native, name, ffi.from_buffer("int32_t[]", builder.written[of].array))
    native.n_caches = len(builder.inp_attn)
    for inp, cache in zip(builder.inp_attn, native.caches, strict=False):
        inp.describe(cache)
    constants = [inp for inp in builder.inputs if isinstance(inp, Constant)]
    native.n_constants = len(constants)
    assert len(constants) <= len(native.constants)
    for constant, target in zip(constants, native.constants, strict=False):
        target.data = ffi.from_buffer(constant.array)
        target.value = ffi.from_buffer(constant.value)
        target.nbytes = constant.value.nbytes
    native.only_seq = -1
    native.pos = lib.GP_DECODE_OTHER
    if builder.logit_row is not None:
        native.logits = ffi.from_buffer("float[]", builder.logit_row)
        native.n_vocab = len(builder.logit_row)
    native.n_positions = POS_END
    return native

"""One op with its operands, for asking devices about it and for rebuilding a node.

Plain data. It is made from a record here, and from a live tensor in tensors/live_call.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import ArgumentError

Four = tuple[int, int, int, int]
SELF = -2  # an operand that is the result itself, as in ggml_cast

_BLOCKS = {"q1_0": 128, "q2_0": 64, "nvfp4": 64, "iq4_nl": 32, "mxfp4": 32}
_BLOCKS |= dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1"), 32)
VIEWS = frozenset({"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"})
# Ops whose op_params have the address of a function in the program that made them.
CUSTOM_OPS = frozenset({"MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM"})


@functools.cache
def block_size(type_: str) -> int:
    """Elements per block of this type ("q4_0": 32); 1 for types without blocks."""
    if type_ in _BLOCKS:
        return _BLOCKS[type_]
    return 256 if type_.startswith(("iq", "tq")) or type_.endswith("_k") else 1


class Operand(NamedTuple):
    """A tensor as an op sees it. `whole` is the ne of the tensor that it views."""

    type: str
    ne: Four
    nb: Four
    whole: Four | None = None
    name: str = ""


@dataclass(frozen=True)
class Call:
    """One op and its operands. `op` is upstream's description ("MUL_MAT", "SILU", "SWIGLU"), `kind`
    is the op's name ("MUL_MAT", "UNARY", "GLU"), `params` are the 16 words of op_params as int32.

    `operands` has each tensor once. `places` has one entry per place of src: an index into
    `operands`, -1 for no source, or `SELF`. `views` are the places whose memory the result views.
    """

    op: str
    kind: str
    out: Operand
    operands: tuple[Operand, ...]
    places: tuple[int, ...]
    params: tuple[int, ...] = (0,) * 16
    views: tuple[int, ...] = ()

    @functools.cached_property
    def src(self) -> tuple[Operand | None, ...]:
        """The sources by place; None for an absent one."""
        found = {-1: None, SELF: self.out, **dict(enumerate(self.operands))}
        return tuple(found[index] for index in self.places)


def four(values: Iterable[int]) -> Four:
    """The sizes or strides of a tensor."""
    first, second, third, fourth = values
    return (first, second, third, fourth)


def call_of_record(tensor: Any, tensors: Sequence[Any]) -> Call:
    """The op call that computes a recorded tensor (`trace.record.TensorRecord`); `tensors` are all
    tensors of its capture, by id."""

    def source(record: Any) -> Operand:
        whole = four(tensors[record.view_src].ne) if record.view_src >= 0 else None
        nb = four(record.nb)
        return Operand(record.type.lower(), four(record.ne), nb, whole, record.name)

    root = tensor.view_src
    found = list(dict.fromkeys(i for i in tensor.src if i not in (-1, tensor.id)))
    views = [place for place, i in enumerate(tensor.src)
             if root >= 0 and i in found and root in (i, tensors[i].view_src)]  # fmt: skip
    return Call(
        op=tensor.op_desc,
        kind=tensor.op,
        out=source(tensor),
        operands=tuple(source(tensors[i]) for i in found),
        places=tuple(
            SELF if i == tensor.id else found.index(i) if i >= 0 else -1 for i in tensor.src
        ),
        params=(
            *tensor.op_params,
            *(0,) * (16 - len(tensor.op_params)),
        ),  # trailing zeros are omitted
        views=tuple(views),
    )


def recorded_call(plan: Any, record: Any) -> Call:
    """The op call of a tensor of a plan. Raises `ArgumentError` for a plan from a debug log."""
    if plan.capture.source != "scheduler":
        raise ArgumentError(
            f"'{record.name}' of a plan from a {plan.capture.source}, which has no shapes or "
            "parameters: expected a plan that a scheduler made (`Plan.to_json` keeps it)"
        )
    return call_of_record(record, plan.capture.tensors)

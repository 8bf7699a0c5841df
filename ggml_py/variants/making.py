"""A node as plain data, and the class that makes its sources and calls constructors with them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

from .. import enums
from ..boundary.ffi import NULL, ffi, lib, text
from ..errors import ArgumentError, GgmlError
from ..graphs.context import Context
from ..sim.profiles.call import SELF, Call, call_of_record
from ..tensors.call import call_of
from ..tensors.convert import type_of
from ..tensors.op_settings import SINKS
from ..tensors.tensor import Tensor
from ..trace.plan_tensor import PlanTensor
from .constructor import WORDS, Value

_MOST_BYTES = 1 << 53  # as in Context.new_tensor


@cache
def block_of(type_: int) -> tuple[int, int]:
    """Elements and bytes per block."""
    return int(lib.ggml_blck_size(type_)), int(lib.ggml_type_size(type_))


@dataclass(frozen=True)
class NodeSource:
    """One tensor that a node reads."""

    name: str
    type: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.type, self.ne, self.nb))

    def __hash__(self) -> int:
        return self._hash  # it is a key in most steps of a search

    @cached_property
    def packed(self) -> tuple[int, ...]:
        """The strides that it would have if it were contiguous."""
        block, size = block_of(self.type)
        nb = [size, size * (self.ne[0] // block)]
        return (*nb, nb[1] * self.ne[1], nb[1] * self.ne[1] * self.ne[2])

    @cached_property
    def is_contiguous(self) -> bool:
        packed = self.packed
        return self.nb == packed or all(
            n == 1 or nb == there for n, nb, there in zip(self.ne, self.nb, packed, strict=True)
        )

    def contiguous(self) -> NodeSource:
        """The same source, contiguous."""
        return NodeSource(self.name, self.type, self.ne, self.packed)

    @lru_cache(1 << 14)  # noqa: B019  small data; searches ask for the same changes again and again
    def changed(self, type_: int, ne: tuple[int, ...]) -> NodeSource | None:
        """The source with another type or shape and the same layout: the same order of dimensions,
        and gaps in the same places. None if no such tensor exists."""
        block, size = block_of(type_)
        old_block, old_size = block_of(self.type)
        order = [0, 1, 2, 3]
        if not self.is_contiguous:
            order.sort(key=lambda d: (self.nb[d], d))
        inner = order[0]
        transposed = inner != 0 and block > 1 and type_ != self.type
        if ne[inner] % block or transposed or math.prod(n or 1 for n in ne) * size > _MOST_BYTES:
            return None
        made = NodeSource(self.name, type_, ne, ())
        if self.is_contiguous:
            return made.contiguous()
        nb = [0] * 4
        tight, old_tight = size, old_size
        for d in order:
            scaled = -(-self.nb[d] * size * old_block // (old_size * block * size)) * size
            gap = self.nb[d] - old_tight
            nb[d] = tight if gap == 0 else max(tight, scaled) if gap > 0 else scaled
            first = d == inner
            tight = nb[d] * (ne[d] // block if first else ne[d])
            old_tight = self.nb[d] * (self.ne[d] // old_block if first else self.ne[d])
        if max(n * stride for n, stride in zip(ne, nb, strict=True)) > _MOST_BYTES:
            return None
        return NodeSource(self.name, type_, ne, tuple(nb))


@dataclass(frozen=True)
class Node:
    """A call, with this build's numbers for ops and types."""

    op: int
    name: str
    type: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    params: tuple[int, ...]  # words of op_params
    sources: tuple[NodeSource, ...]  # each one once
    src: tuple[int, ...]  # per place an index into `sources`; -1 for none, or SELF
    view_place: int  # the source whose memory it views; -1 for none

    @staticmethod
    def of(what: Tensor | PlanTensor) -> Node:
        """The node of a tensor. Raises `ArgumentError` for a leaf, and for a recorded node with an
        op or type that this release lacks."""
        if isinstance(what, Tensor):
            if what.ptr.op == enums.Op.NONE:
                raise ArgumentError(f"{what!r} is a leaf: expected a node (the result of an op)")
            return Node.of_call(call_of(what))
        return Node.of_call(_recorded(what))

    @staticmethod
    def of_call(call: Call) -> Node:
        """The node of a call."""
        return Node(
            _ops()[call.kind],
            call.out.name,
            int(type_of(call.out.type)),
            call.out.ne,
            call.out.nb,
            call.params,
            tuple(NodeSource(s.name, int(type_of(s.type)), s.ne, s.nb) for s in call.operands),
            call.places,
            call.views[-1] if call.views else -1,
        )


@cache
def _ops() -> dict[str, int]:
    return {text(lib.ggml_op_name(op)): int(op) for op in enums.Op if op.name != "COUNT"}


def _recorded(what: PlanTensor) -> Call:
    r = what.record
    if what.plan.capture.source != "scheduler":
        raise ArgumentError(
            f"'{r.name}' of a plan that was read from a debug log, which has no shapes: "
            "expected a node of a live graph or of a plan that to_json wrote"
        )
    if r.op not in _ops():
        raise ArgumentError(f"'{r.name}' is a {r.op}: release {enums.UPSTREAM} has no such op")
    if _ops()[r.op] == enums.Op.NONE:
        raise ArgumentError(f"'{r.name}' of the plan is a leaf: expected a node")
    return call_of_record(r, what.plan.tensors)


class Maker:
    """Calls constructors with tensors like a node's sources."""

    def __init__(self, node: Node, context: Context) -> None:
        self.node = node
        self.context = context
        self._made: dict[tuple[int, NodeSource], Tensor] = {}
        sinks = SINKS.get(enums.Op(node.op))
        self.sinks = sinks if sinks is not None and sinks < len(node.src) else -1
        # Places in src that constructors fill: sinks are added later.
        self.places = [p for p, index in enumerate(node.src) if index >= 0 and p != self.sinks]

    def tensor(self, index: int, source: NodeSource) -> Tensor:
        """A leaf like `source`, without memory; the same leaf for the same arguments."""
        key = (index, source)
        if key not in self._made:
            ptr = lib.ggml_new_tensor(self.context.ptr, source.type, 4, [0, 1, 1, 1])
            ptr.ne, ptr.nb = list(source.ne), list(source.nb)  # possibly of a permuted tensor
            self._made[key] = Tensor(ptr, self.context)
            lib.ggml_set_name(ptr, source.name.encode()[:63])
        return self._made[key]

    def call(self, method: str, operands: Any, args: dict[str, Value], sources: Any) -> Any:
        """The constructor's result; None if it refuses."""
        node = self.node
        given = {}
        for name, place in operands:
            index = node.src[place] if place >= 0 else -1
            given[name] = self.tensor(index, sources[index]) if index >= 0 else None
        try:
            return getattr(self.context, method)(**given, **args)
        except (GgmlError, OverflowError):
            return None

    def same_sources(self, made: Tensor) -> bool:
        """Whether a constructor's result has the node's op and reads the same sources."""
        node = self.node
        if made._ptr.op != node.op:
            return False
        for place, raw in enumerate(made._ptr.src):
            index = node.src[place] if place < len(node.src) else -1
            if place == self.sinks:
                continue
            wanted = self.tensor(index, node.sources[index])._ptr if index >= 0 else NULL
            if raw != (made._ptr if index == SELF else wanted):
                return False
        return True


def words_of(made: Tensor) -> tuple[int, ...]:
    """Its op_params."""
    return struct.unpack(f"{WORDS}i", bytes(ffi.buffer(made._ptr.op_params)))

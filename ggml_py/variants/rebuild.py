"""Rebuilds a node in its own context, from plain data, so that parts of it can be changed.

The constructor of its op makes it, because that computes the type and shape of the result and
refuses invalid ops. If several constructors can, the one whose result is most like the node is
taken, but none whose result has another type or shape. Words of op_params that it does not set are
copied from the node.

Nodes of ops without a constructor here (custom ones) are made field by field.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .. import enums
from ..boundary.ffi import NULL, ffi, lib
from ..errors import ArgumentError, GgmlError
from ..graphs.context import Context
from ..graphs.node import N_PARAMS, new_tensor, node_of_call, packed
from ..sim.profiles.call import SELF, VIEWS, Call, Operand, call_of_record, recorded_call
from ..tensors.live_call import call_of
from ..tensors.op_settings import SINKS
from ..tensors.tensor import Tensor
from ..trace.plan_tensor import PlanTensor
from ..trace.record import TensorRecord
from .constructor import Constructor, Value, constructors_of
from .operand import changed

_INT32 = 1 << 31


def node_of(what: Tensor | PlanTensor) -> Call:
    """The node of a tensor, with its operands as leafs. Raises `ArgumentError` for a leaf, and for
    a recorded node that this release cannot make."""
    if isinstance(what, PlanTensor):
        if what.record.op == "NONE":
            raise ArgumentError(f"'{what.name}' of the plan is a leaf: expected a node")
        with Context() as scratch:  # kinds of ops then have this release's numbers
            return node_of(node_of_call(scratch, recorded_call(what.plan, what.record)))
    if what.ptr.op == enums.Op.NONE:
        raise ArgumentError(f"{what!r} is a leaf: expected a node (the result of an op)")
    call = call_of(what)
    out, *operands = [one._replace(whole=None) for one in (call.out, *call.operands)]
    return replace(call, out=out, operands=tuple(operands))


def not_made(tensors: Sequence[TensorRecord]) -> TensorRecord | None:
    """The first tensor of a capture that no constructor of this release makes; None without one.

    Kernels rely on what constructors compute and check, and a file may say anything else.
    Views compute nothing, so only their places matter (`set_view`).
    """
    made: dict[Call, bool] = {}  # most layers of a model are alike
    for t in tensors:
        call = _bare(call_of_record(t, tensors))
        if call not in made:
            made[call] = _is_made(call)
        if not made[call] or (t.op not in VIEWS and (t.view_src >= 0) != bool(call.views)):
            return t
    return None


def _bare(call: Call) -> Call:
    """The call without names, and without sources in places that the op never reads."""
    out, *operands = [one._replace(whole=None, name="") for one in (call.out, *call.operands)]
    others = {op.name for op in enums.Op} - {call.kind}
    constructors = constructors_of(call.kind, bool(call.views))
    read = {
        place for one in constructors for _name, place in one.operands
        if one.method.removesuffix("_inplace").upper() not in others
    }  # fmt: skip
    if read and call.kind in enums.Op.__members__:
        read.add(SINKS.get(enums.Op[call.kind], -1))
        places = tuple(i if p in read or i == SELF else -1 for p, i in enumerate(call.places))
        call = replace(call, places=places)
    return replace(call, out=out, operands=tuple(operands))


def _is_made(call: Call) -> bool:
    if len(call.params) != N_PARAMS or not all(-_INT32 <= word < _INT32 for word in call.params):
        return False
    try:
        if call.kind == "NONE" and not call.views:
            return call.out.nb == packed(call.out.type, call.out.ne)
        with Context() as scratch:
            return call.kind in VIEWS or Replay(call, scratch).is_made
    except (GgmlError, KeyError):  # the release lacks its type
        return False


@dataclass(frozen=True)
class State:
    """The changeable parts of a node: its sources, the constructor's arguments, the other words."""

    sources: tuple[Operand, ...]
    args: tuple[tuple[str, Value], ...]
    words: tuple[int, ...]  # of op_params; words that an argument sets are ignored
    ne: tuple[int, ...]  # of a result that is made field by field

    @cached_property
    def key(self) -> Hashable:
        """The same for equal states. Arguments may be lists, and 1 is not 1.0."""
        return self.sources, repr(self.args), self.words, self.ne


@dataclass(frozen=True)
class Recipe:
    """How a node is made: by `constructor`, or None for field by field."""

    constructor: Constructor | None = None
    operands: tuple[tuple[str, int], ...] = ()  # the constructor's tensors: name, place in src
    values: tuple[tuple[str, Value], ...] = ()  # its other arguments
    owned: frozenset[int] = frozenset()  # words of op_params that arguments set

    @property
    def method(self) -> str:
        """The constructor's name; "" without one."""
        return "" if self.constructor is None else self.constructor.method

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """The other arguments' names and annotations."""
        arguments = () if self.constructor is None else self.constructor.arguments
        return tuple((one.name, one.kind) for one in arguments)

    @property
    def sized(self) -> frozenset[str]:
        """Arguments that are sizes of the result."""
        arguments = () if self.constructor is None else self.constructor.arguments
        return frozenset(one.name for one in arguments if str(one.at).startswith("ne"))


class Replay:
    """Makes variants of one node."""

    def __init__(self, node: Call, context: Context) -> None:
        self.node, self.context = node, context
        self._made: dict[tuple[int, Operand], Tensor] = {}
        self.is_made = False  # whether a constructor makes just this node
        sinks = SINKS.get(enums.Op[node.kind])
        self.sinks = sinks if sinks is not None and sinks < len(node.places) else -1
        self.recipe = self._best()
        self.state = State(node.operands, self.recipe.values, node.params, node.out.ne)
        if self.build(self.state) is None:
            self.recipe = Recipe()
            self.state = replace(self.state, args=())

    def name(self, place: int) -> str:
        """The constructor's name for a source."""
        named = {p: name for name, p in self.recipe.operands}
        if place == self.sinks:
            return "sinks"
        name = named.get(place, f"src[{place}]").rstrip("_")
        return name.upper() if self.node.kind.startswith("FLASH_ATTN") and len(name) == 1 else name

    def tensor(self, index: int, source: Operand) -> Tensor:
        """A leaf like `source`, without memory; the same leaf for the same arguments."""
        key = (index, source)
        if key not in self._made:
            ptr = new_tensor(self.context, source.type, source.ne, source.nb, source.name)
            self._made[key] = Tensor(ptr, self.context)
        return self._made[key]

    def build(self, state: State) -> Tensor | None:
        """The node with the changes in `state`; None if that op is invalid."""
        node, recipe = self.node, self.recipe
        try:
            if recipe.constructor is None:
                out = changed(node.out, node.out.type, state.ne)
                if out is None:
                    return None
                like = replace(node, out=out, operands=state.sources, params=state.words)
                return node_of_call(self.context, like)
            made = self._call(recipe.method, recipe.operands, dict(state.args), state.sources)
            if made is None:
                return None
            if self.sinks >= 0 and (index := node.places[self.sinks]) >= 0:
                made.add_sinks(self.tensor(index, state.sources[index]))
        except GgmlError:
            return None
        for i, word in enumerate(state.words):
            if i not in recipe.owned:
                made._ptr.op_params[i] = word
        lib.ggml_set_name(made._ptr, node.out.name.encode()[:63])
        return made

    def _call(
        self,
        method: str,
        operands: tuple[tuple[str, int], ...],
        args: dict[str, Value],
        sources: tuple[Operand, ...],
    ) -> Tensor | None:
        """The constructor's result; None if it refuses."""
        given = {}
        for name, place in operands:
            index = self.node.places[place] if place >= 0 else -1
            given[name] = self.tensor(index, sources[index]) if index >= 0 else None
        try:
            made: Tensor = getattr(self.context, method)(**given, **args)
        except (GgmlError, OverflowError):
            return None
        return made

    # ---- choosing the constructor

    def _best(self) -> Recipe:
        """How the node is made; field by field if no constructor makes it."""
        if self.node.kind in VIEWS:  # it computes nothing: any device takes it
            return Recipe()
        constructors = constructors_of(self.node.kind, bool(self.node.views))
        found = [one for one in map(self._bound, constructors) if one is not None]
        if not found:
            return Recipe()
        quality, recipe = max(found, key=lambda one: one[0])
        self.is_made = quality[0]
        return recipe

    def _bound(self, constructor: Constructor) -> tuple[tuple[bool, bool, int, int], Recipe] | None:
        """The recipe with this constructor, and its quality: same strides, same op_params, words
        that arguments set, the shorter name. None if it does not make the node."""
        node, method = self.node, constructor.method
        places = {p for p, i in enumerate(node.places) if i >= 0 and p != self.sinks}
        operands = tuple((n, p if p in places else -1) for n, p in constructor.operands)
        if any(p < 0 and name in constructor.needed for name, p in operands):
            return None
        values = {one.name: one.value(node) for one in constructor.arguments}
        made = self._call(method, operands, values, node.operands)
        if made is None or not self._is_like(made):
            return None
        words = struct.unpack(f"{N_PARAMS}i", bytes(ffi.buffer(made._ptr.op_params)))
        # Ops keep a list of zeros even in a mode that takes no list (rope).
        used = [one for one in constructor.arguments if values[one.name] != [0, 0, 0, 0]]
        # Without words that are computed from an argument that the node does not keep.
        owned = {i for one in used for i in one.words if words[i] == node.params[i]}
        quality = (made.nb == node.out.nb, words == node.params, len(owned), -len(method))
        return quality, Recipe(constructor, operands, tuple(values.items()), frozenset(owned))

    def _is_like(self, made: Tensor) -> bool:
        """Whether a constructor's result has the node's op, type, shape and sources."""
        node, ptr = self.node, made._ptr
        if made.op.name != node.kind or made.type.name.lower() != node.out.type:
            return False
        if made.ne != node.out.ne or (ptr.view_src != NULL) != bool(node.views):
            return False
        for place, raw in enumerate(ptr.src):
            index = node.places[place] if place < len(node.places) else -1
            if place == self.sinks:
                continue
            wanted = self.tensor(index, node.operands[index])._ptr if index >= 0 else NULL
            if raw != (ptr if index == SELF else wanted):
                return False
        return True

"""Rebuilds a node in its own context, from plain data, so that parts of it can be changed.

The constructor of its op makes it, because that computes the type and shape of the result and
refuses invalid ops. If several constructors can, the one whose result is most like the node is
taken, but none whose result has another type or shape. Words of op_params that it does not set are
copied from the node.

Nodes of ops without a constructor here (custom ones) are made field by field.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from .. import enums
from ..boundary.ffi import BUILD, NULL, lib
from ..errors import GgmlError
from ..graphs.context import Context
from ..sim.profiles.call import SELF
from ..tensors.tensor import Tensor
from ..trace.record import VIEW_OPS
from .constructor import (
    FIXED,
    INPLACE,
    SIZE,
    TYPE,
    WORD,
    Argument,
    Constructor,
    Value,
    decode,
    signature,
)
from .constructor_table import CONSTRUCTORS, RELEASE
from .learn import learnt
from .making import Maker, Node, NodeSource, words_of


@dataclass(frozen=True)
class State:
    """The changeable parts of a node: its sources, the constructor's arguments, the other words."""

    sources: tuple[NodeSource, ...]
    args: tuple[tuple[str, Value], ...]
    words: tuple[int, ...]  # of op_params; words that an argument sets are ignored
    ne: tuple[int, ...]  # of a result that is made field by field

    @cached_property
    def key(self) -> Hashable:
        """The same for equal states. Arguments may be lists, and 1 is not 1.0."""
        return self.sources, repr(self.args), self.words, self.ne


@dataclass(frozen=True)
class Recipe:
    """How a node is made: `method` of a Context, or "" for field by field."""

    method: str = ""
    operands: tuple[tuple[str, int], ...] = ()  # the constructor's tensors: name, place in src
    kinds: tuple[tuple[str, str], ...] = ()  # its other arguments: name, annotation
    owned: frozenset[int] = frozenset()  # words of op_params that arguments set
    sized: frozenset[str] = frozenset()  # arguments that are sizes of the result
    values: tuple[tuple[str, Value], ...] = field(default=(), repr=False)


class Replay(Maker):
    """Makes variants of one node."""

    def __init__(self, node: Node, context: Context) -> None:
        super().__init__(node, context)
        self.recipe = _recipe(self)
        self.state = State(node.sources, self.recipe.values, node.params, node.ne)
        if self.build(self.state) is None:
            self.recipe = Recipe()
            self.state = replace(self.state, args=())

    def name(self, place: int) -> str:
        """The constructor's name for a source."""
        named = {p: name for name, p in self.recipe.operands}
        if place == self.sinks:
            return "sinks"
        name = named.get(place, f"src[{place}]").rstrip("_")
        attention = enums.Op(self.node.op).name.startswith("FLASH_ATTN")
        return name.upper() if attention and len(name) == 1 else name

    def build(self, state: State) -> Tensor | None:
        """The node with the changes in `state`; None if that op is invalid."""
        node, recipe = self.node, self.recipe
        made: Tensor | None
        try:
            if recipe.method:
                made = self.call(recipe.method, recipe.operands, dict(state.args), state.sources)
                if made is not None:
                    self._add_sinks(made, state)
            else:
                made = self._by_field(state)
        except GgmlError:
            return None
        if made is None:
            return None
        for i, word in enumerate(state.words):
            if i not in recipe.owned:
                made._ptr.op_params[i] = word
        lib.ggml_set_name(made._ptr, node.name.encode()[:63])
        return made

    def _add_sinks(self, made: Tensor, state: State) -> None:
        index = self.node.src[self.sinks] if self.sinks >= 0 else -1
        if index >= 0:
            made.add_sinks(self.tensor(index, state.sources[index]))

    def _by_field(self, state: State) -> Tensor | None:
        node = self.node
        ptr = lib.ggml_new_tensor(self.context.ptr, node.type, 4, [0, 1, 1, 1])
        like = NodeSource("", node.type, node.ne, node.nb).changed(node.type, state.ne)
        if like is None:
            return None
        ptr.ne, ptr.nb = list(like.ne), list(like.nb)
        ptr.op = node.op
        for place, index in enumerate(node.src):
            if index >= 0:
                ptr.src[place] = self.tensor(index, state.sources[index])._ptr
            elif index == SELF:
                ptr.src[place] = ptr
        if node.view_place >= 0:
            ptr.view_src = ptr.src[node.view_place]
        return Tensor(ptr, self.context)


# ---- choosing the constructor

_Quality = tuple[bool, bool, int, int]  # same strides, same op_params, words set, -len(name)


def _recipe(maker: Maker) -> Recipe:
    """How the node is made; field by field if no constructor makes it."""
    best: tuple[_Quality, Recipe] | None = None
    for constructor in _constructors(maker):
        found = _bound(maker, constructor)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best[1] if best else Recipe()


def _constructors(maker: Maker) -> Iterable[Constructor]:
    op = enums.Op(maker.node.op).name
    if op in VIEW_OPS:
        return ()  # it computes nothing: any device takes it
    if BUILD["ggml_version"] != RELEASE:
        return learnt(maker)
    return CONSTRUCTORS.get(op, ())


def _bound(maker: Maker, constructor: Constructor) -> tuple[_Quality, Recipe] | None:
    """The recipe with this constructor, and its quality; None if it does not make the node."""
    node, method = maker.node, constructor.method
    takes = signature(method)
    operands = tuple((n, p if p in maker.places else -1) for n, p in constructor.operands)
    if any(p < 0 and name in takes.needed for name, p in operands):
        return None
    kinds = dict(takes.kinds)
    values = {one.name: _value(node, one, kinds[one.name]) for one in constructor.arguments}
    made = maker.call(method, operands, values, node.sources)
    if made is None or not maker.same_sources(made):
        return None
    if int(made._ptr.type) != node.type or made.ne != node.ne:
        return None
    if (made._ptr.view_src != NULL) != (node.view_place >= 0):
        return None
    words = words_of(made)
    kept = [a for a in constructor.arguments if a.where == WORD and not _unused(values[a.name])]
    # Without words that are computed from an argument.
    owned = {i for a in kept for i in a.at if words[i] == node.params[i]}
    quality = (made.nb == node.nb, words == node.params, len(owned), -len(method))
    return quality, Recipe(
        method,
        operands,
        takes.kinds,
        owned=frozenset(owned),
        sized=frozenset(one.name for one in constructor.arguments if one.where == SIZE),
        values=tuple(values.items()),
    )


def _unused(value: Value) -> bool:
    """Whether it is a list of zeros: ops keep one even in a mode that takes no list (rope)."""
    return isinstance(value, list) and not any(value)


def _value(node: Node, argument: Argument, kind: str) -> Value:
    """The node's value for an argument of its constructor."""
    if argument.where == WORD:
        return decode(kind, node.type, node.params, argument.at[0])
    if argument.where == TYPE:
        return enums.Type(node.type)
    if argument.where == INPLACE:
        return node.view_place >= 0
    return argument.at[0] if argument.where == FIXED else node.ne[argument.at[0]]

"""A node made again in a context of its own, from plain data, so that things of it can be changed.

The constructor of its op makes it, for that computes the result's type and shape and refuses what
is no such op. Which constructor made a node, and with what, is not on record; it is found by
trying. A constructor is called with the node's sources and some numbers, then each number is
changed alone: the words of op_params (or the sizes of the result) that change with it hold it, so
the node's own numbers are read there. It is the right one if it makes the same type and shape.

Nodes of ops that have no constructor here (custom ones) are made field by field.
"""

from __future__ import annotations

import inspect
import itertools
import math
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from .. import enums
from ..boundary.ffi import NULL, ffi, lib, text
from ..errors import ArgumentError, GgmlError
from ..graphs.context import Context
from ..graphs.ops import Ops
from ..tensors.convert import type_of
from ..tensors.op_settings import SINKS
from ..tensors.tensor import Tensor
from ..trace.plan_tensor import PlanTensor
from ..trace.record import VIEW_OPS

SELF = -2  # a source that is the node itself: ggml_cast's
Value = Any  # of an argument: int, float, bool, enum, Type, list of four
_WORDS = 16  # int32 words of op_params
# Constructors that their op's name does not tell.
_OTHERS = {"CPY": ("cast",), "GLU": ("swiglu_oai", "swiglu_clamp"), "UNARY": ("xielu",)}
_MOST_BYTES = 1 << 53  # as Context.new_tensor
_DRAWS = 200  # random arguments that are tried when no guess is taken


@cache
def block_of(type_: int) -> tuple[int, int]:
    """Elements and bytes of a block."""
    return int(lib.ggml_blck_size(type_)), int(lib.ggml_type_size(type_))


@dataclass(frozen=True)
class Source:
    """One tensor that a node reads."""

    name: str
    type: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]

    @property
    def packed(self) -> tuple[int, ...]:
        """The strides that it has when it is contiguous."""
        block, size = block_of(self.type)
        nb = [size, size * (self.ne[0] // block)]
        return (*nb, nb[1] * self.ne[1], nb[1] * self.ne[1] * self.ne[2])

    @property
    def is_contiguous(self) -> bool:
        packed = self.packed
        return self.nb == packed or all(
            n == 1 or nb == there for n, nb, there in zip(self.ne, self.nb, packed, strict=True)
        )

    def contiguous(self) -> Source:
        """The same without gaps, in order."""
        return Source(self.name, self.type, self.ne, self.packed)

    def changed(self, type_: int, ne: tuple[int, ...]) -> Source | None:
        """With another type or shape, laid out alike: in the same order of dimensions, and with
        the gaps that there are. None where no tensor is like that."""
        block, size = block_of(type_)
        old_block, old_size = block_of(self.type)
        order = [0, 1, 2, 3]
        if not self.is_contiguous:
            order.sort(key=lambda d: (self.nb[d], d))
        inner = order[0]
        transposed = inner != 0 and block > 1 and type_ != self.type
        if ne[inner] % block or transposed or math.prod(n or 1 for n in ne) * size > _MOST_BYTES:
            return None
        made = Source(self.name, type_, ne, ())
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
        return Source(self.name, type_, ne, tuple(nb))


@dataclass(frozen=True)
class Node:
    """A node as it is on record."""

    op: int
    name: str
    type: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    params: tuple[int, ...]  # words of op_params
    sources: tuple[Source, ...]  # each one once
    src: tuple[int, ...]  # index into `sources` per place; -1 for none, or SELF
    view_place: int  # the source whose memory it is a view of; -1 for none

    @staticmethod
    def of(what: Tensor | PlanTensor) -> Node:
        """Raises `ArgumentError` for a leaf, and for a plan with names that this release lacks."""
        return _of_tensor(what) if isinstance(what, Tensor) else _of_record(what)


def _of_tensor(tensor: Tensor) -> Node:
    ptr = tensor.ptr
    if ptr.op == enums.Op.NONE:
        raise ArgumentError(f"{tensor!r} is a leaf: expected a node, the result of an op")
    raw = list(ptr.src)
    found = [p for i, p in enumerate(raw) if p not in (NULL, ptr) and p not in raw[:i]]
    sources = [Source(text(p.name), int(p.type), tuple(p.ne), tuple(p.nb)) for p in found]
    src = [SELF if p == ptr else -1 if p == NULL else found.index(p) for p in raw]
    root = ptr.view_src
    views = [i for i, p in enumerate(raw) if root != NULL and p not in (NULL, ptr)
             and root in (p, p.view_src)]  # fmt: skip
    words = struct.unpack(f"{_WORDS}i", bytes(ffi.buffer(ptr.op_params)))
    return Node(
        int(ptr.op), text(ptr.name), int(ptr.type), tuple(ptr.ne), tuple(ptr.nb), words,
        tuple(sources), tuple(src), views[-1] if views else -1,
    )  # fmt: skip


@cache
def _ops() -> dict[str, int]:
    return {text(lib.ggml_op_name(op)): int(op) for op in enums.Op if op.name != "COUNT"}


def _of_record(what: PlanTensor) -> Node:
    r, tensors = what.record, what.plan.tensors
    if what.plan.capture.source != "scheduler":
        raise ArgumentError(
            f"'{r.name}' of a plan that was read from a debug log, which has no shapes: "
            "expected a node of a live graph, or of a plan that to_json wrote"
        )
    if r.op not in _ops():
        raise ArgumentError(f"'{r.name}' is a {r.op}: release {enums.UPSTREAM} has no such op")
    if _ops()[r.op] == enums.Op.NONE:
        raise ArgumentError(f"'{r.name}' of the plan is a leaf: expected a node")
    found = list(dict.fromkeys(i for i in r.src if i not in (-1, r.id)))
    sources = [
        Source(t.name, int(type_of(t.type)), tuple(t.ne), tuple(t.nb))
        for t in (tensors[i] for i in found)
    ]
    src = [SELF if i == r.id else found.index(i) if i >= 0 else -1 for i in r.src]
    root = r.view_src
    views = [p for p, i in enumerate(r.src) if root >= 0 and i not in (-1, r.id)
             and root in (i, tensors[i].view_src)]  # fmt: skip
    return Node(
        _ops()[r.op], r.name, int(type_of(r.type)), tuple(r.ne), tuple(r.nb),
        (*r.op_params, *[0] * (_WORDS - len(r.op_params))),
        tuple(sources), tuple(src), views[-1] if views else -1,
    )  # fmt: skip


@dataclass(frozen=True)
class State:
    """What of a node can be changed: its sources, the constructor's numbers, the other words."""

    sources: tuple[Source, ...]
    args: tuple[tuple[str, Value], ...]
    words: tuple[int, ...]  # of op_params; those that an argument sets are not looked at
    ne: tuple[int, ...]  # of a result that is made field by field


@dataclass(frozen=True)
class Recipe:
    """How a node is made: `method` of a Context, or "" for field by field."""

    method: str = ""
    operands: tuple[tuple[str, int], ...] = ()  # the constructor's tensors: name, place in src
    kinds: tuple[tuple[str, str], ...] = ()  # its other arguments: name, annotation
    owned: frozenset[int] = frozenset()  # words of op_params that arguments set
    sized: frozenset[str] = frozenset()  # arguments that are sizes of the result
    values: tuple[tuple[str, Value], ...] = field(default=(), repr=False)


class Replay:
    """Makes variants of one node."""

    def __init__(self, node: Node, context: Context) -> None:
        self.node = node
        self.context = context
        self._made: dict[tuple[int, Source], Tensor] = {}
        self.recipe = _learn(self)
        self.state = State(node.sources, self.recipe.values, node.params, node.ne)
        if self.build(self.state) is None:
            self.recipe = Recipe()
            self.state = replace(self.state, args=())

    def name(self, place: int) -> str:
        """What the constructor calls a source."""
        named = {p: name for name, p in self.recipe.operands}
        if SINKS.get(enums.Op(self.node.op)) == place:
            return "sinks"
        name = named.get(place, f"src[{place}]").rstrip("_")
        attention = enums.Op(self.node.op).name.startswith("FLASH_ATTN")
        return name.upper() if attention and len(name) == 1 else name

    def tensor(self, index: int, source: Source) -> Tensor:
        """A leaf like `source`, without memory; the same one for the same."""
        key = (index, source)
        if key not in self._made:
            ptr = lib.ggml_new_tensor(self.context.ptr, source.type, 4, [0, 1, 1, 1])
            ptr.ne, ptr.nb = list(source.ne), list(source.nb)  # which may be a permuted tensor's
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

    def build(self, state: State) -> Tensor | None:
        """The node with the changes in `state`; None if there is no such op."""
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
        place = SINKS.get(enums.Op(self.node.op), len(self.node.src))
        if place < len(self.node.src) and self.node.src[place] >= 0:
            index = self.node.src[place]
            made.add_sinks(self.tensor(index, state.sources[index]))

    def _by_field(self, state: State) -> Tensor | None:
        node = self.node
        ptr = lib.ggml_new_tensor(self.context.ptr, node.type, 4, [0, 1, 1, 1])
        like = Source("", node.type, node.ne, node.nb).changed(node.type, state.ne)
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


# ---- finding the constructor


def _learn(replay: Replay) -> Recipe:
    best: tuple[tuple[bool, bool, int, int], Recipe] | None = None
    if enums.Op(replay.node.op).name in VIEW_OPS:
        return Recipe()  # nothing is computed: any device takes it
    for method in _constructors(replay.node):
        found = _bind(replay, method)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best[1] if best else Recipe()


def _constructors(node: Node) -> list[str]:
    """Methods that may make such a node, by name."""
    op = enums.Op(node.op).name
    words = set(op.lower().split("_"))
    names = [n for n in vars(Ops) if not n.startswith("_") and words <= set(n.split("_"))]
    inplace = [n for n in names if n.endswith("_inplace")]
    others = [n for n in names if n not in inplace and n != "ptr"]
    return [*(inplace if node.view_place >= 0 else []), *others, *_OTHERS.get(op, ())]


def _bind(replay: Replay, method: str) -> tuple[tuple[bool, bool, int, int], Recipe] | None:
    """The recipe that uses `method`, and how good it is; None if it cannot make the node."""
    node = replay.node
    if not hasattr(Ops, method):
        return None
    parameters = list(inspect.signature(getattr(Ops, method)).parameters.values())[1:]
    tensors = [p for p in parameters if str(p.annotation).startswith("Tensor")]
    kinds = tuple((p.name, str(p.annotation)) for p in parameters if p not in tensors)
    sinks = SINKS.get(enums.Op(node.op))
    places = [p for p, index in enumerate(node.src) if index >= 0 and p != sinks]
    n_needed = sum("None" not in str(p.annotation) for p in tensors)
    if not n_needed <= len(places) <= len(tensors):
        return None
    for operands in _assignments(tensors, places):
        for guess in _guesses(node, kinds):
            made = replay.call(method, operands, guess, node.sources)
            if made is None:
                continue
            if made._ptr.op != node.op or not _same_sources(replay, made):
                break
            return _read_values(replay, Recipe(method, operands, kinds), guess, made)
    return None


def _assignments(tensors: list[Any], places: list[int]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Which argument is at which place of src: in order, then any way."""
    names = [p.name for p in tensors]
    yield tuple((name, i if i in places else -1) for i, name in enumerate(names))
    if 1 < len(places) <= 4:
        for order in itertools.permutations(places):
            filled = [*order, *[-1] * (len(names) - len(order))]
            yield tuple(zip(names, filled, strict=True))


def _same_sources(replay: Replay, made: Tensor) -> bool:
    node = replay.node
    sinks = SINKS.get(enums.Op(node.op))
    for place, raw in enumerate(made._ptr.src):
        index = node.src[place] if place < len(node.src) else -1
        if place == sinks:
            continue
        wanted = replay.tensor(index, node.sources[index])._ptr if index >= 0 else NULL
        if raw != (made._ptr if index == SELF else wanted):
            return False
    return True


def _guesses(node: Node, kinds: tuple[tuple[str, str], ...]) -> Iterator[dict[str, Value]]:
    """Arguments that the constructor may take, likely ones first."""
    if not kinds:
        yield {}
        return
    for first in (0, 1):
        word, guess = first, {}
        for name, kind in kinds:
            guess[name] = _decode(node, kind, word)
            word += 4 if kind.startswith("Sequence") else not kind.startswith("TypeLike")
        yield guess
    for number in (0, 1, 2):
        yield {name: _plain(node, kind, number) for name, kind in kinds}
    sizes = itertools.chain(node.ne, itertools.repeat(1))
    yield {n: next(sizes) if kind == "int" else _plain(node, kind, 1) for n, kind in kinds}
    rng = random.Random(0)
    pool = [0, 1, 2, 3, 4, *node.ne, *(abs(w) for w in node.params if abs(w) < 1 << 20)]
    for _ in range(_DRAWS):
        yield {name: _plain(node, kind, rng.choice(pool)) for name, kind in kinds}


def _members(kind: str) -> list[Any]:
    """Of an annotation such as "enums.Prec | int | str"."""
    enum = getattr(enums, kind.split(".")[1].split(" ")[0])
    return [m for m in enum if m.name != "COUNT"]


def _plain(node: Node, kind: str, number: int) -> Value:
    """An argument of the kind, from a number."""
    if kind.startswith("TypeLike"):
        return enums.Type(node.type)
    if kind.startswith("enums."):
        members = _members(kind)
        return members[number % len(members)]
    if kind.startswith("Sequence"):
        return [number] * 4
    return {"float": float, "bool": bool}.get(kind, int)(number)


def _decode(node: Node, kind: str, word: int) -> Value:
    """The argument that is kept in op_params at `word`."""
    words = (*node.params, 0, 0, 0, 0, 0)
    word = min(word, _WORDS)
    if kind == "float":
        return struct.unpack("f", struct.pack("i", words[word]))[0]
    if kind.startswith("Sequence"):
        return list((*words, 0, 0, 0)[word : word + 4])
    if kind.startswith("enums."):
        by_number = {int(m): m for m in _members(kind)}
        return by_number.get(words[word], _members(kind)[0])
    return _plain(node, kind, words[word])


def _holds(kind: str, word: int, value: Value) -> bool:
    """Whether a word of op_params is the argument, or where a list of them starts."""
    if kind == "float":
        return bool(word == struct.unpack("i", struct.pack("f", value))[0])
    return bool(word == (value[0] if kind.startswith("Sequence") else value))


def _others(kind: str, value: Value, node: Node) -> list[Value]:
    """Arguments that differ from `value`, to see what changes with it."""
    if kind.startswith("TypeLike"):
        return [t for t in enums.Type if t.name in ("F32", "F16", "I32", "Q8_0") and t != value]
    if kind.startswith("enums."):
        return [m for m in _members(kind) if m != value]
    if kind.startswith("Sequence"):
        return [[v + k for v in value] for k in (1, 2)]
    if kind == "bool":
        return [not value]
    near = [value + 1, value + 2, value * 2, value - 1, 0, 1, 2, 4, *node.ne]
    return [v for v in map(float if kind == "float" else int, near) if v != value]


def _words_of(made: Tensor) -> tuple[int, ...]:
    return struct.unpack(f"{_WORDS}i", bytes(ffi.buffer(made._ptr.op_params)))


def _read_values(
    replay: Replay, recipe: Recipe, guess: dict[str, Value], made: Tensor
) -> tuple[tuple[bool, bool, int, int], Recipe] | None:
    """The recipe with the node's own numbers, by what changes when each is changed alone."""
    node, values = replay.node, dict(guess)
    owned: set[int] = set()
    sized: set[str] = set()
    for name, kind in recipe.kinds:
        if name == "inplace":
            values[name] = node.view_place >= 0
            continue
        for other in _others(kind, guess[name], node):
            again = replay.call(
                recipe.method, recipe.operands, {**guess, name: other}, node.sources
            )
            if again is None:
                continue
            before, after = _words_of(made), _words_of(again)
            differ = [i for i in range(_WORDS) if before[i] != after[i]]
            differ.sort(key=lambda i: not _holds(kind, before[i], guess[name]))
            sizes = [d for d in range(4) if (made.ne[d], again.ne[d]) == (guess[name], other)]
            if differ:
                values[name] = _decode(node, kind, differ[0])
                owned.update(differ)
            elif kind.startswith("TypeLike"):
                values[name] = enums.Type(node.type)
            elif sizes and kind == "int":
                values[name] = node.ne[sizes[0]]
                sized.add(name)
            else:
                continue
            break
    final = replay.call(recipe.method, recipe.operands, values, node.sources)
    if final is None or int(final._ptr.type) != node.type or final.ne != node.ne:
        return None
    if (final._ptr.view_src != NULL) != (node.view_place >= 0):
        return None
    words = _words_of(final)
    owned = {i for i in owned if words[i] == node.params[i]}  # not those that are computed from it
    quality = (final.nb == node.nb, words == node.params, len(owned), -len(recipe.method))
    bound = replace(
        recipe, owned=frozenset(owned), sized=frozenset(sized), values=tuple(values.items())
    )
    return quality, bound

"""Finds the constructors of a node by trial. The table of constructors is made this way.

A constructor is called with the node's sources and some numbers, then again with each number
changed alone. If a word of op_params, or a size of the result, changes with a number, it keeps the
number. The script `vendor/constructors.py` does this with a sample of every constructor. If the
library is of another release than the table, each node is its own sample.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterator

from .. import enums
from ..graphs.ops import Ops
from ..tensors.tensor import Tensor
from .constructor import (
    FIXED,
    INPLACE,
    SIZE,
    TYPE,
    WORD,
    WORDS,
    Argument,
    Constructor,
    Value,
    decode,
    members,
    plain,
    signature,
)
from .making import Maker, Node, words_of

# Constructors that the name of their op does not reveal.
_OTHERS = {"CPY": ("cast",), "GLU": ("swiglu_oai", "swiglu_clamp"), "UNARY": ("xielu",)}
_DRAWS = 200  # random arguments to try if no guess is accepted
_Operands = tuple[tuple[str, int], ...]
Arguments = dict[str, Value]


def learnt(maker: Maker) -> Iterator[Constructor]:
    """The constructors that may have made the node of `maker`."""
    node = maker.node
    for method in methods_of(enums.Op(node.op).name, node.view_place >= 0):
        found = learn(maker, method)
        if found is not None:
            yield found


def methods_of(op: str, inplace: bool) -> list[str]:
    """The methods that may make a node of this op, by their names."""
    words = set(op.lower().split("_"))
    named = [n for n in vars(Ops) if not n.startswith("_") and words <= set(n.split("_"))]
    names = [n for n in named if hasattr(Ops, n)]  # older releases lack some
    views = [n for n in names if n.endswith("_inplace")]
    others = [n for n in names if n not in views and n != "ptr"]
    more = [n for n in _OTHERS.get(op, ()) if hasattr(Ops, n)]
    return [*(views if inplace else []), *others, *more]


def learn(maker: Maker, method: str, given: Arguments | None = None) -> Constructor | None:
    """The constructor, if it takes the node's sources and makes its op, with the given arguments or
    guessed ones; else None."""
    takes = signature(method)
    if not len(takes.needed) <= len(maker.places) <= len(takes.tensors):
        return None
    for operands in _assignments(takes.tensors, maker.places):
        for guess in _guesses(maker.node, takes.kinds) if given is None else (given,):
            made = maker.call(method, operands, guess, maker.node.sources)
            if made is None:
                continue
            if not maker.same_sources(made):
                break
            arguments = _arguments(maker, method, operands, guess, made)
            return Constructor(method, operands, tuple(arguments))
    return None


def _assignments(names: tuple[str, ...], places: list[int]) -> Iterator[_Operands]:
    """Ways to map arguments to places of src: in order, then every other way."""
    yield tuple((name, i if i in places else -1) for i, name in enumerate(names))
    if 1 < len(places) <= 4:
        for order in itertools.permutations(places):
            filled = [*order, *[-1] * (len(names) - len(order))]
            yield tuple(zip(names, filled, strict=True))


def _guesses(node: Node, kinds: tuple[tuple[str, str], ...]) -> Iterator[Arguments]:
    """Arguments that the constructor may accept, likely ones first."""
    if not kinds:
        yield {}
        return
    for first in (0, 1):
        word, guess = first, {}
        for name, kind in kinds:
            guess[name] = decode(kind, node.type, node.params, word)
            word += 4 if kind.startswith("Sequence") else not kind.startswith("TypeLike")
        yield guess
    for number in (0, 1, 2):
        yield {name: plain(kind, node.type, number) for name, kind in kinds}
    sizes = itertools.chain(node.ne, itertools.repeat(1))
    yield {n: next(sizes) if kind == "int" else plain(kind, node.type, 1) for n, kind in kinds}
    rng = random.Random(0)
    pool = [0, 1, 2, 3, 4, *node.ne, *(abs(w) for w in node.params if abs(w) < 1 << 20)]
    for _ in range(_DRAWS):
        yield {name: plain(kind, node.type, rng.choice(pool)) for name, kind in kinds}


def _arguments(
    maker: Maker, method: str, operands: _Operands, guess: Arguments, made: Tensor
) -> Iterator[Argument]:
    """Where the result keeps each argument, judged by what changes when only that one changes."""
    for name, kind in signature(method).kinds:
        if name == "inplace":
            yield Argument(name, INPLACE)
            continue
        for other in _others(kind, guess[name], maker.node):
            changed = {**guess, name: other}
            again = maker.call(method, operands, changed, maker.node.sources)
            found = None if again is None else _kept(name, kind, (guess[name], other), made, again)
            if found is not None:
                yield found
                break
        else:
            yield Argument(name, FIXED, (guess[name],))


def _kept(
    name: str, kind: str, values: tuple[Value, Value], made: Tensor, again: Tensor
) -> Argument | None:
    """Where an argument is kept, judged from two results; None if they do not show it."""
    before, after = words_of(made), words_of(again)
    differ = [i for i in range(WORDS) if before[i] != after[i]]
    differ.sort(key=lambda i: not _holds(kind, before[i], values[0]))
    if differ:
        return Argument(name, WORD, tuple(differ))
    if kind.startswith("TypeLike"):
        return Argument(name, TYPE)
    sizes = [d for d in range(4) if (made.ne[d], again.ne[d]) == values]
    return Argument(name, SIZE, (sizes[0],)) if sizes and kind == "int" else None


def _holds(kind: str, word: int, value: Value) -> bool:
    """Whether a word of op_params is the argument, or the first element of a list argument."""
    if kind == "float":
        return bool(word == struct.unpack("i", struct.pack("f", value))[0])
    return bool(word == (value[0] if kind.startswith("Sequence") else value))


def _others(kind: str, value: Value, node: Node) -> list[Value]:
    """Other values for an argument, to see what changes with it."""
    if kind.startswith("TypeLike"):
        return [t for t in enums.Type if t.name in ("F32", "F16", "I32", "Q8_0") and t != value]
    if kind.startswith("enums."):
        return [m for m in members(kind) if m != value]
    if kind.startswith("Sequence"):
        return [[v + k for v in value] for k in (1, 2)]
    if kind == "bool":
        return [not value]
    near = [value + 1, value + 2, value * 2, value - 1, 0, 1, 2, 4, *node.ne]
    return [v for v in map(float if kind == "float" else int, near) if v != value]

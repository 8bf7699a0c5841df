"""Constructors: the methods of `Context` that make nodes, and where a node keeps their arguments.

A node does not say what made it. For the committed release constructor_table.py knows; for the
library of another release learn.py works it out from the node.
"""

from __future__ import annotations

import inspect
import struct
from functools import cache
from typing import Any, NamedTuple

from .. import enums
from ..graphs.ops import Ops

Value = Any  # the value of an argument: int, float, bool, enum, Type, list of four
WORDS = 16  # int32 words of op_params

# Where a node keeps an argument.
WORD = "word"  # in a word of op_params; `at` are the words that change with it, its own first
SIZE = "size"  # it is a size of the result, which changes with it
SHAPE = "shape"  # it is a size of the result that must change together with others
TYPE = "type"  # it is the type of the result
INPLACE = "inplace"  # whether the result is a view
FIXED = "fixed"  # nowhere: `at` is the only value that it may have


class Argument(NamedTuple):
    """An argument other than a tensor, and where a node keeps it."""

    name: str
    where: str
    at: tuple[Any, ...] = ()


class Constructor(NamedTuple):
    """A method of `Context`, the place in `src` of each of its tensors, and its other arguments."""

    method: str
    operands: tuple[tuple[str, int], ...]
    arguments: tuple[Argument, ...] = ()


class Signature(NamedTuple):
    """The parameters of a method: all names, the tensors among them, the required tensors, and
    (name, annotation) of the others."""

    names: tuple[str, ...]
    tensors: tuple[str, ...]
    needed: frozenset[str]
    kinds: tuple[tuple[str, str], ...]


@cache
def signature(method: str) -> Signature:
    """The signature of a method of `Context`."""
    given = list(inspect.signature(getattr(Ops, method)).parameters.values())[1:]
    kinds = [(p.name, str(p.annotation)) for p in given]
    tensors = tuple(name for name, kind in kinds if kind.startswith("Tensor"))
    needed = frozenset(name for name, kind in kinds if kind == "Tensor")
    names = tuple(name for name, _ in kinds)
    return Signature(names, tensors, needed, tuple(one for one in kinds if one[0] not in tensors))


@cache
def members(kind: str) -> tuple[Any, ...]:
    """The members of the enum in an annotation such as "enums.Prec | int | str"."""
    enum = getattr(enums, kind.split(".")[1].split(" ")[0])
    return tuple(m for m in enum if m.name != "COUNT")


def plain(kind: str, type_: int, number: int) -> Value:
    """An argument of this kind, made from a number."""
    if kind.startswith("TypeLike"):
        return enums.Type(type_)
    if kind.startswith("enums."):
        return members(kind)[number % len(members(kind))]
    if kind.startswith("Sequence"):
        return [number] * 4
    return {"float": float, "bool": bool}.get(kind, int)(number)


def decode(kind: str, type_: int, params: tuple[int, ...], word: int) -> Value:
    """The argument that op_params keeps at `word`; `type_` is the type of the result."""
    words = (*params, 0, 0, 0, 0, 0)
    word = min(word, WORDS)
    if kind == "float":
        return struct.unpack("f", struct.pack("i", words[word]))[0]
    if kind.startswith("Sequence"):
        return list((*words, 0, 0, 0)[word : word + 4])
    if kind.startswith("enums."):
        by_number = {int(m): m for m in members(kind)}
        return by_number.get(words[word], members(kind)[0])
    return plain(kind, type_, words[word])

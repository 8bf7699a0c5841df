"""Constructors: the methods of `Context` that make nodes, and where a node keeps their arguments.

A node does not say what made it. Nearly all constructors keep their tensors in src and their other
arguments in op_params, in the order of their parameters; the tables here name the others. Whatever
they say is checked against the node (rebuild.py), so an argument that another release keeps
elsewhere makes no wrong node.
"""

from __future__ import annotations

import inspect
import struct
from functools import cache
from typing import Any, NamedTuple

from .. import enums
from ..graphs.node import N_PARAMS
from ..graphs.ops import Ops
from ..sim.profiles.call import Call

Value = Any  # the value of an argument: int, float, bool, enum, name of a type, list of four

# Constructors that the name of their op does not reveal.
_OTHERS = {"CPY": ("cast",), "GLU": ("swiglu_oai", "swiglu_clamp"), "UNARY": ("xielu",)}

_ROPE: dict[str, Any] = {
    "n_dims": 1, "mode": 2, "n_ctx_orig": 4, "freq_base": 5, "freq_scale": 6, "ext_factor": 7,
    "attn_factor": 8, "beta_fast": 9, "beta_slow": 10, "sections": (11, 12, 13, 14),
}  # fmt: skip
_SIZES = {f"ne{d}": f"ne{d}" for d in range(4)}
# Parameters whose place in a node does not follow from their order, by op and parameter.
#   a number    place in src of a tensor; word of op_params of another argument
#   numbers     word of op_params, then words that are computed from it
#   "ne0"       the size of the result
#   a bool      the only value that upstream takes
#   None        no place: a node does not keep it
_ELSEWHERE: dict[str, dict[str, Any]] = {
    "CONT": _SIZES,
    "GET_REL_POS": {"qh": "ne1", "kh": "ne1"},
    "GLU": {"alpha": 2, "limit": 3},
    "IM2COL_3D": {"IC": 9},
    "IM2COL_BACK": {"ne": None},
    "PAD": {"p0": 1, "p1": 3, "p2": 5, "p3": 7},
    "REPEAT": _SIZES,
    "ROPE": _ROPE,
    "ROPE_BACK": _ROPE,
    "SET": {"offset": 3},
    "SET_ROWS": {"a": 2, "b": 0, "c": 1},
    "SOLVE_TRI": {"left": True, "lower": True, "uni": False},
    "TOP_K": {"k": "ne0"},
    "UNARY": {"alpha_n": 1, "alpha_p": 2, "beta": (3, 1), "eps": 4},
    "UPSCALE": {**_SIZES, "scale_factor": None},
    "WIN_PART": {"w": (2, 0, 1)},
    "WIN_UNPART": {"w0": "ne1", "h0": "ne2"},
}
_WHOLE = {"POOL_2D", "POOL_2D_BACK"}  # keep floats as whole numbers


class Argument(NamedTuple):
    """An argument other than a tensor. `at` is its place in a node: words of op_params (its own
    first), a size of the result ("ne0"), "type", "inplace", or its only value."""

    name: str
    kind: str  # annotation
    at: tuple[int, ...] | str | bool | None

    @property
    def words(self) -> tuple[int, ...]:
        """Words of op_params that change with this argument."""
        return self.at if isinstance(self.at, tuple) else ()

    def value(self, node: Call) -> Value:
        """The argument's value in a node."""
        if self.at == "type":
            return node.out.type
        if self.at == "inplace":
            return bool(node.views)
        if isinstance(self.at, str):
            return node.out.ne[int(self.at[2:])]
        if not isinstance(self.at, tuple):
            return self.at
        words = [node.params[i] for i in self.at]
        if self.kind.startswith("Sequence"):
            return words
        if self.kind.startswith("enums."):
            by_number = {int(m): m for m in members(self.kind)}
            return by_number.get(words[0], members(self.kind)[0])
        if self.kind == "float" and node.kind not in _WHOLE:
            return struct.unpack("f", struct.pack("i", words[0]))[0]
        return {"float": float, "bool": bool}.get(self.kind, int)(words[0])


class Constructor(NamedTuple):
    """A method of `Context`, each tensor's place in src, the names of required tensors, and the
    other arguments."""

    method: str
    operands: tuple[tuple[str, int], ...]
    needed: frozenset[str]
    arguments: tuple[Argument, ...]


@cache
def constructors_of(op: str, inplace: bool) -> tuple[Constructor, ...]:
    """The methods that may make a node of this op, by their names: each is checked against it."""
    words = set(op.lower().split("_"))
    named = [n for n in vars(Ops) if not n.startswith("_") and words <= set(n.split("_"))]
    names = [n for n in (*named, *_OTHERS.get(op, ())) if hasattr(Ops, n) and n != "ptr"]
    found = [_constructor(n, op) for n in names if inplace or not n.endswith("_inplace")]
    return tuple(
        one for one in found
        if all(a.at is not None and max(a.words, default=0) < N_PARAMS for a in one.arguments)
    )  # fmt: skip


def _constructor(method: str, op: str) -> Constructor:
    elsewhere, word = _ELSEWHERE.get(op, {}), 0
    operands: list[tuple[str, int]] = []
    arguments: list[Argument] = []
    parameters = list(inspect.signature(getattr(Ops, method)).parameters.values())[1:]
    kinds = {p.name: str(p.annotation) for p in parameters}
    for name, kind in kinds.items():
        if kind.startswith("Tensor"):
            operands.append((name, elsewhere.get(name, len(operands))))
        elif name == "inplace" or kind.startswith("TypeLike"):
            arguments.append(Argument(name, kind, "inplace" if name == "inplace" else "type"))
        elif name in elsewhere:
            place = elsewhere[name]
            arguments.append(Argument(name, kind, (place,) if type(place) is int else place))
        else:
            at = range(word, word + (4 if kind.startswith("Sequence") else 1))
            arguments.append(Argument(name, kind, tuple(at)))
            word = at.stop
    needed = frozenset(name for name, kind in kinds.items() if kind == "Tensor")
    return Constructor(method, tuple(operands), needed, tuple(arguments))


@cache
def members(kind: str) -> tuple[Any, ...]:
    """The members of the enum in an annotation such as "enums.Prec | int | str"."""
    enum = getattr(enums, kind.split(".")[1].split(" ")[0])
    return tuple(m for m in enum if m.name != "COUNT")

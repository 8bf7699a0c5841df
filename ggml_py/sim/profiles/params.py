"""How to find the parameters of upstream's op tests in a call, and how much each of them matters.

`same` parameters must be equal for a row to count: types, flags, head sizes. `size` parameters are
numbers; the nearest row decides. `soft` parameters only rank rows: on record no backend, or only a
small one, changes its answer because of one of them alone. Parameters that an op does not list
(values that the test fills tensors with) are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .call import Call, Operand

Value = int | float | str | tuple[int, ...]
Row = dict[str, Value]
Get = Callable[[Call], Value]


@dataclass(frozen=True)
class OpParams:
    """The parameters of one op, by name, each with a function that reads it from a call."""

    same: dict[str, Get] = field(default_factory=dict)
    size: dict[str, Get] = field(default_factory=dict)
    soft: dict[str, Get] = field(default_factory=dict)
    default: Row = field(default_factory=dict)  # for rows of older tests, without the parameter
    tidy: Callable[[Row], None] | None = None  # normalises rows, in place

    def of(self, call: Call) -> Row:
        """The parameters that a test case of this call would have."""
        both = (self.same, self.size, self.soft)
        return {name: get(call) for part in both for name, get in part.items()}


def kind(index: int) -> Get:
    """The type of a source."""
    return lambda call: call.source(index).type


def out_type(call: Call) -> Value:
    """The type of the result."""
    return call.out.type


def ne(index: int, dim: int | None = None) -> Get:
    """The shape of a source, or one of its dimensions."""
    if dim is None:
        return lambda call: call.source(index).ne
    return lambda call: call.source(index).ne[dim]


def out_ne(call: Call) -> Value:
    """The shape of the result."""
    return call.out.ne


def param(index: int) -> Get:
    """An integer parameter of the op."""
    return lambda call: call.params[index]


def real(index: int) -> Get:
    """A float parameter of the op."""
    return lambda call: call.number(index)


def nonzero(index: int) -> Get:
    """Whether a float parameter of the op is not zero."""
    return lambda call: int(call.number(index) != 0)


def has(index: int) -> Get:
    """Whether the call has this source."""
    return lambda call: int(call.has(index))


def inplace(call: Call) -> Value:
    """Whether the result uses the memory of source 0."""
    return int(call.inplace)


def strided(index: int) -> Get:
    """Whether a source is not contiguous."""
    return lambda call: int(not call.source(index).contiguous)


def transposed(index: int) -> Get:
    """Whether a source is transposed: nb0 is larger than nb1."""

    def get(call: Call) -> Value:
        nb = call.source(index).nb
        return int(nb[0] > nb[1])

    return get


def order(index: int) -> Get:
    """The order of a source's dimensions by stride, as in `Operand.order`."""
    return lambda call: call.source(index).order


def before_halving(source: Operand) -> tuple[int, ...]:
    """The shape of the viewed tensor if the view is half of each dimension, as in the tests; else
    the shape of the source."""
    whole = source.whole
    halved = whole and all(b == a // 2 for a, b in zip(whole, source.ne, strict=True))
    return whole if whole and halved else source.ne


def over(a: Any, b: Any) -> tuple[int, ...]:
    """a / b, element by element."""
    return tuple(x // y for x, y in zip(a, b, strict=True))


def rename(**names: str) -> Callable[[Row], None]:
    """A `tidy` for rows that have another name for a parameter: old=new."""

    def tidy(row: Row) -> None:
        for old, new in names.items():
            if old in row:
                row.setdefault(new, row.pop(old))

    return tidy

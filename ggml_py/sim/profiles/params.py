"""How the parameters of upstream's op tests are found in a call, and how much each of them matters.

`same` parameters must be equal for a row to count: types, flags, head sizes. `size` parameters are
numbers of which the nearest decide. `soft` ones prefer a row to another and decide nothing: over
all devices on record no answer ever changed with them alone. Parameters of a row that an op does
not list (values the test fills tensors with) are ignored.
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
    """The parameters of one op, by name, with how each is read off a call."""

    same: dict[str, Get] = field(default_factory=dict)
    size: dict[str, Get] = field(default_factory=dict)
    soft: dict[str, Get] = field(default_factory=dict)
    default: Row = field(default_factory=dict)  # what older tests did, that have no such parameter
    tidy: Callable[[Row], None] | None = None  # brings rows to one form, in place

    def of(self, call: Call) -> Row:
        """The parameters that the test case of this call would have."""
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
    """A parameter of the op that is a whole number."""
    return lambda call: call.params[index]


def real(index: int) -> Get:
    """A parameter of the op that is a float."""
    return lambda call: call.number(index)


def nonzero(index: int) -> Get:
    """Whether a float parameter of the op is not zero."""
    return lambda call: int(call.number(index) != 0)


def has(index: int) -> Get:
    """Whether there is such a source."""
    return lambda call: int(call.has(index))


def inplace(call: Call) -> Value:
    """Whether the result takes the memory of source 0."""
    return int(call.inplace)


def strided(index: int) -> Get:
    """Whether a source is not contiguous."""
    return lambda call: int(not call.source(index).contiguous)


def transposed(index: int) -> Get:
    """Whether the elements of a row of a source do not follow each other."""

    def get(call: Call) -> Value:
        nb = call.source(index).nb
        return int(nb[0] > nb[1])

    return get


def order(index: int) -> Get:
    """How a source was permuted, as ggml_permute's arguments."""
    return lambda call: call.source(index).order


def before_halving(source: Operand) -> tuple[int, ...]:
    """The shape of a view's tensor where the view is half of each dimension, as tests do."""
    whole = source.whole
    halved = whole and all(b == a // 2 for a, b in zip(whole, source.ne, strict=True))
    return whole if whole and halved else source.ne


def over(a: Any, b: Any) -> tuple[int, ...]:
    """a / b, number by number."""
    return tuple(x // y for x, y in zip(a, b, strict=True))


def rename(**names: str) -> Callable[[Row], None]:
    """Tidies rows that call a parameter otherwise: old=new."""

    def tidy(row: Row) -> None:
        for old, new in names.items():
            if old in row:
                row.setdefault(new, row.pop(old))

    return tidy

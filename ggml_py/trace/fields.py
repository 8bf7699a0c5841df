"""The fields of records: each stands once, with its type, its C member and the values it may have.

Reading a plan out of native code or a record, and writing, reading, checking and describing plan
files are loops over `fields_of`. A field with more to it than its type is `Annotated` with `About`.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """More about a field, or about the numbers in it."""

    c: str = ""  # the C member or array that has it; "": the one with the field's name
    # The rows that it is an index into, by the names in `export.json.checked`: "tensors".
    of: str = ""
    none: bool = False  # whether -1, no row, is allowed
    is_set: bool = False  # a bit mask of these rows
    low: int | None = None  # the smallest number
    end: int | None = None  # above the largest
    # All texts that it may be; C has their numbers.
    one_of: tuple[str, ...] = ()
    since: int = 0  # the oldest schema whose files have it; others have the field's default


Count = Annotated[int, About(low=0)]
TensorId = Annotated[int, About(of="tensors")]
TensorIdOrNone = Annotated[int, About(of="tensors", none=True)]
NodeId = Annotated[int, About(of="nodes")]
CopyId = Annotated[int, About(of="copies")]
PlannedId = Annotated[int, About(of="planned")]  # of a tensor or a copy
PlannedIdOrNone = Annotated[int, About(of="planned", none=True)]
BackendIndex = Annotated[int, About(of="backends")]
BackendIndexOrNone = Annotated[int, About(of="backends", none=True)]
BackendSet = Annotated[int, About(of="backends", is_set=True)]
BuftIndex = Annotated[int, About(of="bufts")]
BufferIndexOrNone = Annotated[int, About(of="buffers", none=True)]

_PLAIN = About()


class RecordField(NamedTuple):
    """One field of a record."""

    name: str
    hint: Any  # with `Annotated`
    about: About
    default: Any  # `MISSING` without one

    @property
    def c(self) -> str:
        """The C member or array that has it."""
        return self.about.c or self.name


MISSING = dataclasses.MISSING


@cache
def fields_of(record: Any) -> tuple[RecordField, ...]:
    """The fields of a NamedTuple or dataclass, in their order."""
    hints = get_type_hints(record, include_extras=True)
    if hasattr(record, "_fields"):
        defaults = {name: record._field_defaults.get(name, MISSING) for name in record._fields}
    else:
        defaults = {field.name: field.default for field in dataclasses.fields(record)}
    return tuple(
        RecordField(n, hints[n], about(hints[n]), default) for n, default in defaults.items()
    )


def about(hint: Any) -> About:
    """More about a type; without `Annotated` nothing."""
    if get_origin(hint) is Annotated:
        return next(one for one in hint.__metadata__ if isinstance(one, About))
    return _PLAIN


def plain(hint: Any) -> Any:
    """The type without `Annotated`."""
    return hint.__origin__ if get_origin(hint) is Annotated else hint


def optional(hint: Any) -> Any:
    """The other type of "X | None"; None for other types."""
    items = get_args(plain(hint))
    return next(i for i in items if i is not type(None)) if type(None) in items else None


def record_in(hint: Any) -> Any:
    """The record that a value of the type is, or each item of it; None for other types."""
    hint = plain(optional(hint) or hint)
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
    return hint if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields") else None

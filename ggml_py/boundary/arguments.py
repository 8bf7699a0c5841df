"""Checks of arguments, each with one wording for all callers."""

from __future__ import annotations

import operator
from typing import Any

from ..errors import ArgumentError
from ..typed import describe as describe

SIZE_MAX = (1 << 63) - 1  # the most that ggml's int64_t holds; no memory is that large


def shown(kind: type) -> str:
    """The name of a class in errors: of what users hold, for a base class or a part of it."""
    return str(getattr(kind, "_shown_as", kind.__name__))


def ptr_of(kind: type, value: Any) -> Any:
    """`value.ptr` of an object of ours. Raises TypeError if it is not a `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"expected a {shown(kind)}, got {describe(value)}")
    return value.ptr  # type: ignore[attr-defined]


def integer(name: str, value: object, least: int = 0, most: int = SIZE_MAX) -> int:
    """`value`, an integer of Python or numpy, as an int. Raises TypeError for anything else,
    `ArgumentError` for a number outside `least` to `most`."""
    try:
        number = operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, got {describe(value)}") from None
    if not least <= number <= most:
        low = most == SIZE_MAX and number < least
        bound = f"at least {least}" if low else f"{least} to {most:,}"
        raise ArgumentError(f"{name}={number}: expected {bound}")
    return number


def enum_of(enum: Any, value: Any) -> int:
    """The number of an enum member, given as the member, its number or its name in any case."""
    if isinstance(value, enum):
        return int(value)
    if isinstance(value, str):
        if value.upper() not in enum.__members__:
            names = ", ".join(m.lower() for m in enum.__members__)
            raise ArgumentError(f"{enum.__name__} {value!r}: expected one of {names}")
        return int(enum[value.upper()])
    try:
        return int(enum(integer(enum.__name__, value)))
    except ValueError:
        numbers = ", ".join(f"{m.name.lower()} ({m.value})" for m in enum)
        raise ArgumentError(f"{enum.__name__} {value}: expected one of {numbers}") from None


def c_text(what: str, value: object) -> bytes:
    """`value` as UTF-8 for ggml, whose strings end at a NUL. Raises TypeError, `ArgumentError`."""
    data = utf8(what, value)
    if b"\0" in data:
        raise ArgumentError(f"{what} {value!r}: expected text without NUL, which ends a C string")
    return data


def utf8(what: str, value: object) -> bytes:
    """`value`, a str, as UTF-8. Raises TypeError, and `ArgumentError` for lone surrogates."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected a str, got {describe(value)}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{what} {value!r}: expected text that UTF-8 can encode ({error.reason})"
        ) from None


def check_function(value: object, parameters: str, name: str = "") -> None:
    """Raises TypeError unless `value` is a function or None. The message names `parameters`."""
    if value is not None and not callable(value):
        lead = f"{name}: " if name else ""
        raise TypeError(f"{lead}expected a function of {parameters} or None, got {describe(value)}")


def n_items(name: str, values: Any, n: int) -> list[Any]:
    """`values` as a list. Raises `ArgumentError` unless there are `n`: C would read past it."""
    try:
        found = list(values)
    except TypeError:
        raise TypeError(f"{name}: expected {n} numbers, got {describe(values)}") from None
    if len(found) != n:
        raise ArgumentError(f"{name} {found}: expected {n} numbers")
    return found

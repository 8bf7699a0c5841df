"""The options of `open` as flags of llama.cpp's programs."""

from __future__ import annotations

from typing import Any

from ..enums import Type
from .options import TABLE, Options

NO_FIT = ("--fit", "off")
FREE = {"-ngl": "all", "-c": "0"}  # how a number is written that --fit may choose


def words_of(options: Options) -> tuple[str, ...]:
    """The options as llama-server takes them, without model and devices. Nothing is left to its
    --fit, and nothing that has another default there."""
    words: list[str] = []
    if options.tensor_overrides:
        pairs = (
            (regex, getattr(place, "name", place)) for regex, place in options.tensor_overrides
        )
        words += ["-ot", ",".join(f"{regex}={name}" for regex, name in pairs)]
    for option in TABLE:
        if option.always:
            words += option.line(getattr(options, option.name))
    for option in TABLE:
        value = _plain(getattr(options, option.name))
        if option.in_line and not option.always and not option.is_default(value):
            words += option.line(value)
    return *words, *NO_FIT


def _plain(value: Any) -> Any:
    if isinstance(value, Type):
        return value.name.lower()
    if isinstance(value, (list, tuple)):
        return tuple(value) or None
    return value

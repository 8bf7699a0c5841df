"""The options of `open` as flags of llama.cpp's programs."""

from __future__ import annotations

from typing import Any

from ..enums import Type
from .options import TABLE, Options
from .overrides import cpu_overrides

NO_FIT = ("--fit", "off")
FREE = {"-ngl": "all", "-c": "0"}  # how a number is written that --fit may choose


def words_of(options: Options) -> tuple[str, ...]:
    """The options as their program takes them, llama-server by default, without model and devices.
    Nothing is left to its --fit, and nothing that has another default there. llama-bench has no
    --fit to turn off, and makes its context as its tests need it."""
    bench = options.program == "bench"
    words: list[str] = []
    pairs = [(regex, getattr(place, "name", place))
             for regex, place in options.tensor_overrides or ()]  # fmt: skip
    if bench:  # which lacks -cmoe and -ncffn
        pairs += cpu_overrides(options.cpu_moe, 0, options.n_cpu_ffn, options.n_cpu_ffn)
    if pairs:
        words += ["-ot", (";" if bench else ",").join(f"{regex}={name}" for regex, name in pairs)]
    for option in sorted(TABLE, key=lambda option: not option.always):
        value = _plain(getattr(options, option.name))
        if bench and option.bench and not option.is_default(value):
            words += option.bench_line(value)
        elif not bench and (option.always or (option.in_line and not option.is_default(value))):
            words += option.line(value)
    return *words, *(() if bench else NO_FIT)


def _plain(value: Any) -> Any:
    if isinstance(value, Type):
        return value.name.lower()
    if isinstance(value, (list, tuple)):
        return tuple(value) or None
    return value

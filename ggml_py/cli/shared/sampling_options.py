"""Sampling options with llama.cpp's names, and the `Sampler` that they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...llama.sampling import Sampling

if TYPE_CHECKING:
    from ...models import Model, Sampler

F = TypeVar("F", bound=Callable[..., Any])


class Bias(click.ParamType):  # type: ignore[type-arg]
    """A token and the bias added to its logit: 15043+1, 15043-inf."""

    name = "ID(+/-)BIAS"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, float]:
        """Both; usage error for anything else."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)([+-](?:inf|\d*\.?\d+(?:e[+-]?\d+)?))", value)
        if match is None:
            self.fail(f"{value!r}: expected a token id and a signed number, like 15043-1")
        return int(match[1]), float(match[2])


_TYPES: dict[str, dict[str, Any]] = {
    "logit_bias": {"type": Bias(), "multiple": True},
    "dry_sequence_breakers": {"multiple": True},
    "seed": {"type": click.IntRange(-1, 2**32 - 1)},
}


def sampling_options(function: F) -> F:
    """The options of `Sampler`."""
    for row in reversed(fields(Sampling)):
        number = isinstance(row.default, int | float)
        default = f"  [{row.default:g}]" if number else "  [-1]" if row.name == "seed" else ""
        how = _TYPES.get(row.name, {"type": type(row.default)})
        option = click.option(
            *row.metadata["flags"], row.name, help=row.metadata["help"] + default, **how
        )
        function = option(function)
    return function


def given_sampling(options: dict[str, Any]) -> dict[str, Any]:
    """The given sampling options. Removes all sampling options from `options`."""
    found = {row.name: options.pop(row.name) for row in fields(Sampling)}
    return {name: value for name, value in found.items() if value not in (None, ())}


def make_sampler(given: dict[str, Any], banned: Iterable[int], model: Model) -> Sampler | None:
    """The sampler, or None if only the likeliest token is asked for."""
    from ...models import Sampler

    bias = {**dict(given.get("logit_bias", ())), **dict.fromkeys(banned, -inf)}
    if not given:
        return Sampler(temperature=0.0, logit_bias=bias) if bias else None
    seed = given.get("seed", -1)
    reads_vocab = given.keys() & {"grammar", "dry_multiplier", "mirostat"}
    return Sampler(
        **{**given, "logit_bias": bias, "seed": None if seed == -1 else seed},
        tokenizer=model.tokenizer if reads_vocab else None,
    )

"""Sampling options with llama.cpp's names, and the `Sampler` that they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ...models import Sampler

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


_OPTIONS = [
    click.option("-l", "--logit-bias", "logit_bias", type=Bias(), multiple=True,
                 help="Add BIAS to a token's logit; ID-inf: never choose it. May be repeated."),
    click.option("--temp", "--temperature", "temperature", type=float,
                 help="Temperature; 0: the likeliest token.  [0.8]"),
    click.option("--top-k", type=int, help="Keep this many of the likeliest tokens; 0: all.  [40]"),
    click.option("--top-p", type=float,
                 help="Then keep the likeliest with this total probability; 1: all.  [0.95]"),
    click.option("--min-p", type=float,
                 help="Then keep tokens at least this likely, relative to the likeliest.  "
                 "[0.05]"),
    click.option("--repeat-penalty", type=float,
                 help="Divide the logits of past tokens by this; 1: no penalty.  [1]"),
    click.option("--repeat-last-n", type=int, help="Past tokens that penalties look at.  [64]"),
    click.option("--frequency-penalty", type=float,
                 help="Subtract this from a logit for each past occurrence of its token.  [0]"),
    click.option("--presence-penalty", type=float,
                 help="Subtract this from the logits of past tokens.  [0]"),
    click.option("-s", "--seed", type=click.IntRange(-1, 2**32 - 1),
                 help="Seed of the random numbers; -1: a new one each time.  [-1]"),
]  # fmt: skip
_NAMES = ("logit_bias", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n",
          "frequency_penalty", "presence_penalty", "seed")  # fmt: skip


def sampling_options(function: F) -> F:
    """The options of `Sampler`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def given_sampling(options: dict[str, Any]) -> dict[str, Any]:
    """The given sampling options. Removes all sampling options from `options`."""
    found = {name: options.pop(name) for name in _NAMES}
    return {name: value for name, value in found.items() if value not in (None, ())}


def make_sampler(given: dict[str, Any], banned: Iterable[int]) -> Sampler | None:
    """The sampler, or None if only the likeliest token is asked for."""
    from ...models import Sampler

    bias = {**dict(given.get("logit_bias", ())), **dict.fromkeys(banned, -inf)}
    if not given:
        return Sampler(temperature=0.0, logit_bias=bias) if bias else None
    seed = given.get("seed", -1)
    return Sampler(**{**given, "logit_bias": bias, "seed": None if seed == -1 else seed})

"""Settings of samplers with llama.cpp's names, order and defaults, for `Sampler` and the command
line."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, isfinite
from numbers import Real
from typing import Any

from ..boundary.arguments import SIZE_MAX, c_text, describe, integer
from ..errors import ArgumentError
from ..typed import has_values

FLT_MAX = 3.4028234663852886e38
INT_MAX = (1 << 31) - 1
_RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED
_RANGES: dict[str, tuple[float, float]] = {  # the others are 0 or more
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_n_sigma"), (-inf, inf)),
    **dict.fromkeys(("typical_p", "top_p", "min_p", "xtc_probability", "xtc_threshold"), (0, 1)),
    # libllama allocates memory for this many tokens.
    **dict.fromkeys(("repeat_last_n", "dry_allowed_length", "dry_penalty_last_n"), (0, 1 << 24)),
    "mirostat": (0, 2),
}


def _of(default: Any, flags: str, help: str) -> Any:
    """A field with its command line options and their help."""
    return field(default=default, metadata={"flags": flags.split(), "help": help})


@dataclass(frozen=True, eq=False)
class Sampling:
    """Fixed settings of a `Sampler`."""

    logit_bias: Mapping[int, float] = _of(
        None, "-l --logit-bias", "Add BIAS to the logit of ID; 15043-inf: never."
    )
    repeat_last_n: int = _of(64, "--repeat-last-n", "Past tokens that penalties look at.")
    repeat_penalty: float = _of(1.0, "--repeat-penalty", "Divide logits of past tokens; 1: no.")
    frequency_penalty: float = _of(0.0, "--frequency-penalty", "Subtract for each past occurrence.")
    presence_penalty: float = _of(0.0, "--presence-penalty", "Subtract for past tokens.")
    dry_multiplier: float = _of(0.0, "--dry-multiplier", "DRY penalty of repetitions; 0: none.")
    dry_base: float = _of(1.75, "--dry-base", "Growth of the DRY penalty with each token.")
    dry_allowed_length: int = _of(2, "--dry-allowed-length", "Repeated tokens without penalty.")
    dry_penalty_last_n: int = _of(64, "--dry-penalty-last-n", "Past tokens that DRY looks at.")
    dry_sequence_breakers: Sequence[str] = _of(
        ("\n", ":", '"', "*"), "--dry-sequence-breaker", "Text that ends a repetition."
    )
    top_n_sigma: float = _of(
        -1.0, "--top-nsigma --top-n-sigma", "Keep logits this many deviations from the largest."
    )
    top_k: int = _of(40, "--top-k", "Keep this many of the likeliest tokens; 0: all.")
    typical_p: float = _of(1.0, "--typical --typical-p", "Keep this much that is typical; 1: all.")
    top_p: float = _of(0.95, "--top-p", "Keep the likeliest with this total probability; 1: all.")
    min_p: float = _of(0.05, "--min-p", "Keep tokens this likely, relative to the likeliest.")
    xtc_probability: float = _of(0.0, "--xtc-probability", "How often XTC applies; 0: never.")
    xtc_threshold: float = _of(0.1, "--xtc-threshold", "XTC leaves one token this likely.")
    temperature: float = _of(0.8, "--temp --temperature", "Temperature; 0: the likeliest token.")
    dynatemp_range: float = _of(0.0, "--dynatemp-range", "Vary temperature with entropy by this.")
    dynatemp_exponent: float = _of(1.0, "--dynatemp-exp", "Exponent of the entropy for that.")
    mirostat: int = _of(0, "--mirostat", "Mirostat 1 or 2 instead of penalties and filters.")
    mirostat_lr: float = _of(0.1, "--mirostat-lr", "Learning rate of Mirostat.")
    mirostat_ent: float = _of(5.0, "--mirostat-ent", "Target entropy of Mirostat.")
    grammar: str = _of("", "--grammar", "Sample only text of this grammar (GBNF with a root).")
    seed: int | None = _of(None, "-s --seed", "Seed of random numbers; -1: a new one, printed.")

    def __post_init__(self) -> None:
        for row in fields(Sampling):
            value = getattr(self, row.name)
            if isinstance(row.default, float):
                _check_real(row.name, value, *_RANGES.get(row.name, (0, inf)))
            elif isinstance(row.default, int):
                integer(row.name, value, *map(int, _RANGES.get(row.name, (0, SIZE_MAX))))
        if self.repeat_penalty < 1e-37:
            raise ArgumentError(
                f"repeat_penalty={self.repeat_penalty}: expected a number above 0; 1 is no penalty"
            )
        given = {} if self.logit_bias is None else self.logit_bias
        if not isinstance(given, Mapping):
            raise TypeError(f"logit_bias: expected {{token: bias}}, got {describe(given)}")
        bias = {integer("logit_bias: token", k, 0, INT_MAX): v for k, v in given.items()}
        for token, value in bias.items():
            if value != -inf:
                _check_real(f"logit_bias[{token}]", value, -inf, inf)
        object.__setattr__(self, "logit_bias", bias)
        c_text("grammar", self.grammar)
        breakers = self.dry_sequence_breakers
        if isinstance(breakers, str) or not has_values(breakers):
            raise TypeError(f"dry_sequence_breakers={breakers!r}: expected a list of texts")
        for text in breakers:
            c_text("dry_sequence_breakers", text)
        if self.seed is None or integer("seed", self.seed, 0, _RANDOM_SEED) == _RANDOM_SEED:
            object.__setattr__(self, "seed", secrets.randbelow(_RANDOM_SEED))


def _check_real(name: str, value: Any, least: float, most: float) -> None:
    """Raises TypeError unless it is a number, `ArgumentError` for one outside the range."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number, got {describe(value)}")
    if not (least <= float(value) <= most and abs(float(value)) <= FLT_MAX):
        span = f"{least:g} to {most:g}" if isfinite(most) else f"a finite number, {least:g} or more"
        raise ArgumentError(
            f"{name}={value}: expected {'a finite number' if least == -inf else span}"
        )

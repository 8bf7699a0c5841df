"""Samples the next token from logits: llama.cpp's samplers, in the order of its command line."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from ..boundary.arguments import describe, integer
from ..boundary.ffi import ffi, lib
from ..errors import ArgumentError, ModelError
from .candidates import F32, Candidates

if TYPE_CHECKING:
    import numpy.typing as npt

_RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED
_MAX = float(np.finfo(F32).max)


@dataclass(frozen=True, eq=False)
class Sampler:
    """Samples a token when it is called with logits. Holds fixed settings and the tokens so far.

    The steps, in order; the defaults are llama.cpp's:

    1. `logit_bias` adds to single logits (-inf bans a token).
    2. Tokens among the last `repeat_last_n` become less likely: by `repeat_penalty` (1: no), by
       `frequency_penalty` for each time, by `presence_penalty` for any.
    3. The `top_k` likeliest tokens stay (0: all).
    4. The likeliest remaining tokens with a total probability of `top_p` stay (1: all).
    5. Remaining tokens with at least `min_p` times the probability of the likeliest stay.
    6. `temperature` divides the logits (0: the likeliest token is taken, of equal ones the one with
       the lowest id).
    7. One token is drawn.

    `seed` starts the random numbers. `None` (or llama.cpp's 2**32 - 1) picks a new seed for each
    `Sampler`. Afterwards the attribute `seed` is the one in use.

    The same logits and seed give the same tokens as llama.cpp, which also uses MT19937 and whose
    rounding is reproduced. Only the order of equal logits may differ.

    Raises `ArgumentError` and `TypeError` for invalid settings.

    Upstream: llama-sampler.cpp, and common_sampler_init for the order.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    _past: _Past = field(init=False, repr=False)
    _random: np.random.RandomState = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, 0.0, inf)
        _real("top_p", self.top_p, 0.0, 1.0)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("frequency_penalty", self.frequency_penalty, -inf, inf)
        _real("presence_penalty", self.presence_penalty, -inf, inf)
        if _real("repeat_penalty", self.repeat_penalty, 0.0, inf) < 1e-37:
            raise ArgumentError(
                f"repeat_penalty={self.repeat_penalty}: expected a number above 0; 1 is no penalty"
            )
        integer("top_k", self.top_k)
        integer("repeat_last_n", self.repeat_last_n)
        bias = {integer("logit_bias: token", k): v for k, v in dict(self.logit_bias).items()}
        for token, value in bias.items():
            if value != -inf:
                _real(f"logit_bias[{token}]", value, -inf, inf)
        object.__setattr__(self, "logit_bias", bias)
        if self.seed is None or integer("seed", self.seed, 0, _RANDOM_SEED) == _RANDOM_SEED:
            object.__setattr__(self, "seed", secrets.randbelow(_RANDOM_SEED))
        self.reset()

    def __call__(self, logits: npt.NDArray[np.float32]) -> int:
        """Samples a token from `logits` [n_vocab]. It then counts as a past token.

        Raises `ModelError` for logits without a finite largest one: NaN, inf, or all -inf.
        """
        token = self._candidates(logits).draw(self._uniform())
        self._past.add(token)
        return token

    def accept(self, tokens: Iterable[int]) -> None:
        """Counts `tokens`, those of a prompt, as past tokens, so penalties apply to them, too."""
        for token in tokens:
            self._past.add(integer("token", token))

    def candidates(
        self, logits: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The ids that the next call would draw from, with their probabilities. Changes nothing."""
        found = self._candidates(logits)
        return found.all_ids(), found.probabilities()

    def reset(self) -> None:
        """Forgets past tokens and restarts the random numbers from `seed`."""
        object.__setattr__(self, "_past", _Past(self.repeat_last_n))
        object.__setattr__(self, "_random", np.random.RandomState(self.seed))

    @np.errstate(over="ignore", divide="ignore")  # large logits, a temperature or min_p near 0
    def _candidates(self, logits: npt.NDArray[np.float32]) -> Candidates:
        logits = self._adjusted(logits)
        token = likeliest(logits)
        if F32(self.temperature) == 0.0:
            return Candidates(logits[token : token + 1], np.array([token]), is_sorted=True)
        candidates = Candidates(logits)
        if self.top_k:
            candidates = candidates.top_k(self.top_k)
        if self.top_p < 1.0:
            candidates = candidates.top_p(self.top_p)
        if self.min_p > 0.0:
            candidates = candidates.min_p(self.min_p)
        return candidates.temper(self.temperature)

    def _adjusted(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The logits with biases and penalties applied."""
        logits = np.ascontiguousarray(logits, F32)
        if logits.ndim != 1 or not logits.size:
            raise ModelError(f"logits {list(logits.shape)}: expected those of one token, [n_vocab]")
        penalised = self.repeat_penalty != 1.0 or self.frequency_penalty or self.presence_penalty
        if self.logit_bias or (penalised and self._past.counts):
            logits = logits.copy()
        if self.logit_bias:
            self._add_bias(logits)
        if penalised and self._past.counts:
            self._penalise(logits)
        return logits

    def _add_bias(self, logits: npt.NDArray[np.float32]) -> None:
        last = max(self.logit_bias)
        if last >= logits.size:
            raise ModelError(
                f"logit_bias has token {last}: the vocabulary's ids are 0 to {logits.size - 1}"
            )
        logits[list(self.logit_bias)] += np.array(list(self.logit_bias.values()), F32)

    def _penalise(self, logits: npt.NDArray[np.float32]) -> None:
        """Applies the penalties, as llama_sampler_penalties_apply does."""
        counts = self._past.counts
        ids = np.fromiter(counts, np.int64, len(counts))
        times = np.fromiter(counts.values(), F32, len(counts))
        known = ids < logits.size
        ids, times = ids[known], times[known]
        past, repeat = logits[ids], F32(self.repeat_penalty)
        past = np.where(past <= 0, past * repeat, past / repeat)
        past -= times * F32(self.frequency_penalty) + F32(self.presence_penalty)
        logits[ids] = past

    def _uniform(self) -> float:
        """A number in [0, 1) from two of the generator's, as C++'s std::uniform_real_distribution
        <double> makes it from std::mt19937."""
        number = int.from_bytes(self._random.bytes(8), "little")
        return min(number / 2.0**64, 1.0 - 2.0**-53)


class _Past:
    """The last `size` tokens, counted."""

    def __init__(self, size: int) -> None:
        self.counts: Counter[int] = Counter()
        self._size = size
        self._last: deque[int] = deque()

    def add(self, token: int) -> None:
        """Adds a token and forgets the oldest one if there are more than `size`."""
        self._last.append(token)
        self.counts[token] += 1
        if len(self._last) > self._size:
            oldest = self._last.popleft()
            self.counts[oldest] -= 1
            if not self.counts[oldest]:
                del self.counts[oldest]


def likeliest(logits: npt.NDArray[np.float32]) -> int:
    """The token with the largest logit, of several the one with the lowest id. `logits` must be
    contiguous.

    Raises `ModelError` for logits without a finite largest one: NaN, inf, or all -inf.
    """
    native = ffi.from_buffer("float[]", logits)
    token: int = lib.gp_likeliest(native, len(native))
    if token < 0:
        raise ModelError(_not_finite(logits))
    return token


def _not_finite(logits: npt.NDArray[np.float32]) -> str:
    """The problem of logits whose largest is not finite, for an error message."""
    bad = np.flatnonzero(np.isnan(logits) | (logits == inf))
    if not bad.size:
        return "all logits are -inf: no token is left to sample"
    return (
        f"the logit of token {bad[0]} is {logits[bad[0]]} ({bad.size} of {logits.size} are not "
        "finite), so nothing can be sampled: the model's weights are damaged, or they overflow"
    )


def _real(name: str, value: object, least: float, most: float) -> float:
    """`value`, checked to be a number that fits a float. Raises TypeError and `ArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise TypeError(f"{name}: expected a number, got {describe(value)}")
    if not (least <= value <= most and abs(value) <= _MAX):
        span = f"{least:g} to {most:g}" if isfinite(most) else f"a finite number, {least:g} or more"
        raise ArgumentError(
            f"{name}={value}: expected {'a finite number' if least == -inf else span}"
        )
    return float(value)

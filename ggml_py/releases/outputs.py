"""Whether two releases compute the same from a graph, and as fast."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..scheduler.observed import Output
from ..tensors.nmse import nmse
from ..trace.units import format_time
from .tasks import Made

# What upstream's test-llama-archs allows between two backends; of a p-value, one in a hundred.
ERROR, P = 1e-4, 0.01
_EXACT = 60  # values; counting the signs of more takes long, and the normal one is near
MIN_ROUNDS = 8  # with fewer no difference can be that significant


class OutputError(NamedTuple):
    """The output that differs most."""

    name: str
    error: float  # the normalised mean squared error, of a sample of its values
    n_different: int  # outputs that are not equal to the last bit
    n: int  # outputs that both have
    why: str = ""  # why the error is no number: how the values differ


class TimeChange(NamedTuple):
    """How long a compute takes under two releases, which were timed by turns."""

    before: float  # seconds, the median of the rounds
    after: float
    ratio: float  # after / before, the median of the rounds
    p: float  # of Wilcoxon's signed-rank test of the rounds, two-sided
    rounds: int

    @property
    def significant(self) -> bool:
        """Whether chance alone would rarely lead to it."""
        return self.p < P

    def __str__(self) -> str:
        return (
            f"a compute takes {self.ratio:.2f} times as long: {format_time(self.before)} → "
            f"{format_time(self.after)} (p = {self.p:.2g}, {self.rounds} rounds)"
        )


def output_error(before: Made, after: Made) -> OutputError | None:
    """None if there are no outputs that both have."""
    sides = [_named(m.observed.outputs) for m in (before, after) if m.observed is not None]
    common = [key for key in sides[0] if key in sides[1]] if len(sides) == 2 else []
    if not common:
        return None
    worst, largest, different, why = None, 0.0, 0, ""
    for key in common:
        a, b = sides[0][key], sides[1][key]
        if a.digest == b.digest:
            continue
        different += 1
        same_shape = len(a.sample) == len(b.sample)
        error = nmse(np.array(b.sample), np.array(a.sample)) if same_shape else float("inf")
        if worst is None or error > largest:
            worst, largest = key, error
            why = _infinite(a.sample, b.sample) if math.isinf(error) else ""
    return OutputError((worst or common[0])[0], largest, different, len(common), why)


def _infinite(was: Sequence[float], now: Sequence[float]) -> str:
    """Why the error of values is infinite."""
    if len(was) != len(now):
        return f"{len(now)} values of a sample, not {len(was)}"
    for kind, test in (("NaN", math.isnan), ("infinite", math.isinf)):
        counts = [sum(test(x) for x in side) for side in (was, now)]
        if counts[0] != counts[1]:
            return f"{counts[1]} of {len(now)} values are {kind}, before {counts[0]}"
    if not any(now):
        return f"all {len(now)} values are 0, and were not"
    if not any(was):
        return f"all {len(was)} values were 0, and {sum(x != 0 for x in now)} are not"
    return "other values are NaN or infinite than before"


def _named(outputs: Sequence[Output]) -> dict[tuple[str, str, int], Output]:
    """By name and op, and how many of these came before: names repeat."""
    seen: Counter[tuple[str, str]] = Counter()
    found = {}
    for output in outputs:
        key = (output.name, output.op)
        found[output.name, output.op, seen[key]] = output
        seen[key] += 1
    return found


def time_change(before: Made, after: Made) -> TimeChange | None:
    """None if either was not timed."""
    a, b = (m.observed.seconds if m.observed is not None else () for m in (before, after))
    if not a or len(a) != len(b):
        return None
    ratios = [y / x for x, y in zip(a, b, strict=True)]
    p = signed_rank_p([float(np.log(ratio)) for ratio in ratios])
    return TimeChange(
        statistics.median(a), statistics.median(b), statistics.median(ratios), p, len(a)
    )


def signed_rank_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test, exact also with ties, and by the
    normal distribution above `_EXACT` values; zeros are left out."""
    values = [d for d in differences if d]
    ordered = sorted(abs(d) for d in values)
    # Twice the mean rank of equal sizes, which is whole.
    rank = {size: 2 * ordered.index(size) + ordered.count(size) + 1 for size in set(ordered)}
    total = sum(rank[abs(d)] for d in values)
    positive = sum(rank[abs(d)] for d in values if d > 0)
    if len(values) > _EXACT:
        spread = math.sqrt(sum(rank[abs(d)] ** 2 for d in values) / 4)
        return math.erfc(abs(positive - total / 2) / spread / math.sqrt(2))
    ways = [1] + [0] * total  # signs that lead to a sum of the positive ranks
    for d in values:
        r = rank[abs(d)]
        ways = [n + (ways[i - r] if i >= r else 0) for i, n in enumerate(ways)]
    fewer = sum(ways[: min(positive, total - positive) + 1])
    return float(min(1.0, 2 * fewer / 2 ** len(values)))

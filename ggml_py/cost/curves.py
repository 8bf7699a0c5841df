"""Seconds between the samples of one kind of work.

Time is a constant and a part that grows with the size, so between two samples it is a straight line
and not a power. The last coordinate is the innermost: samples are grouped by the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from .sample import Sample

_PER_DOUBLING = 0.04  # relative error that a size outside of the samples adds for each factor of 2
_MOST_DOUBLINGS = 25
_WITH_LAYOUT = 3  # coordinates, of which the second one is a layout of memory


class Read(NamedTuple):
    """Seconds read off the samples: the relative error that the samples leave, and which they
    are."""

    seconds: float
    error: float
    samples: tuple[int, ...]  # indices into the device's samples


class Curve:
    """Seconds by the coordinates of one kind of work."""

    __slots__ = ("_inner", "_layout", "_xs")

    def __init__(
        self, samples: Sequence[tuple[tuple[float, ...], int, Sample]], layout: bool = False
    ) -> None:
        """Each with the coordinates that are left, and its index. With `layout` the first says how
        memory is laid out, which is no size."""
        self._layout = layout
        of_three = len(samples[0][0]) == _WITH_LAYOUT
        by_first: dict[float, list[tuple[tuple[float, ...], int, Sample]]] = {}
        for at, index, sample in samples:
            by_first.setdefault(at[0] if at else 0.0, []).append((at[1:], index, sample))
        self._xs = sorted(by_first)
        self._inner: list[Curve | Read] = []
        for x in self._xs:
            group = by_first[x]
            if group[0][0]:
                self._inner.append(Curve(group, of_three))
            else:
                several = [sample for _at, _index, sample in group]
                seconds = sum(s.usual for s in several) / len(several)
                spread = max(s.spread for s in several)
                self._inner.append(Read(seconds, spread, tuple(i for _at, i, _s in group)))

    def inside(self, x: float) -> float:
        """The first coordinate that is nearest to `x` and not outside of the samples."""
        return min(max(x, self._xs[0]), self._xs[-1])

    def read(self, at: tuple[float, ...]) -> Read:
        """The seconds at those coordinates."""
        x, rest = (at[0], at[1:]) if at else (0.0, ())
        xs = self._xs
        if self._layout:
            x = self.inside(x)
        if len(xs) == 1:
            return self._alone(x, rest)
        i = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
        low, high = self._at(i, rest), self._at(i + 1, rest)
        share = (x - xs[i]) / (xs[i + 1] - xs[i])
        if share <= 0.0:
            return self._below(x, low, high, share)
        if share >= 1.0 and x > xs[-1]:
            return self._above(x, low, high, share)
        if share == 1.0:
            return high
        seconds = low.seconds + share * (high.seconds - low.seconds)
        error = max(low.error, high.error)
        return Read(seconds, error, low.samples + high.samples)

    def _at(self, i: int, rest: tuple[float, ...]) -> Read:
        inner = self._inner[i]
        return inner if isinstance(inner, Read) else inner.read(rest)

    def _alone(self, x: float, rest: tuple[float, ...]) -> Read:
        """One sample only: as if time were in proportion to the size."""
        found, only = self._at(0, rest), self._xs[0]
        if only <= 0 or x == only or x <= 0:
            return found
        return Read(
            found.seconds * x / only, found.error + _PER_DOUBLING * _doublings(x, only),
            found.samples,
        )  # fmt: skip

    def _below(self, x: float, low: Read, high: Read, share: float) -> Read:
        """Smaller than all samples: on the line through the first two, and at least in
        proportion."""
        if share == 0.0:
            return low
        first = self._xs[0]
        line = low.seconds + share * (high.seconds - low.seconds)
        seconds = max(line, low.seconds * max(x, 0.0) / first if first > 0 else 0.0)
        error = low.error + _PER_DOUBLING * _doublings(x, first)
        return Read(min(seconds, low.seconds), error, low.samples)

    def _above(self, x: float, low: Read, high: Read, share: float) -> Read:
        """Larger than all samples: on the line through the last two."""
        line = low.seconds + share * (high.seconds - low.seconds)
        error = high.error + _PER_DOUBLING * _doublings(x, self._xs[-1])
        return Read(max(line, high.seconds), error, low.samples + high.samples)


def _doublings(x: float, from_: float) -> float:
    return min(abs(log2(max(x, 1.0) / from_)), _MOST_DOUBLINGS) if from_ > 0 else 1.0

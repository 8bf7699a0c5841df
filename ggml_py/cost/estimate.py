"""The seconds of a node on one measured device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import hypot, inf, log2
from statistics import median
from typing import NamedTuple

from .curves import Curve, Read
from .machine import MeasuredDevice
from .sample import COLD_NODE, DRIFTS, MANY_ROWS, SHAPES, SPLIT, WORKING_SET, Sample
from .work import ATTENTION, NodeWork

BYTES, FLOPS, OVERHEAD, LATENCY = "bytes", "flops", "overhead", "latency"
HOT = " hot"  # behind the key of samples whose matrices were in the caches
_GROWTH = 0.5  # of time with heads, as a power: below it they are computed at once
_COLUMNS = 64  # of queries that a kernel computes with what it reads once
# Substitutes for kinds that were not measured, with the relative error that the substitute adds.
_NEAREST: tuple[tuple[str, str, float], ...] = (
    (r"^(MUL_MAT(?:_ID)? \S+) CPU_Mapped$", r"\1", 0.15),
    (r"^(MUL_MAT(?:_ID)? \S+) (?!tall|wide)\S+_Host$", r"\1", 0.15),
    (r"^(MUL_MAT(?:_ID)? \S+)$", r"\1 CPU_Mapped", 0.15),
    (r"^(GET_ROWS .*) \S+$", r"\1", 0.15),
)


class Estimate(NamedTuple):
    """Predicted seconds, their relative error (one standard deviation), what bounds them, and the
    indices of the samples that they rest on."""

    seconds: float
    error: float
    bound: str
    samples: tuple[int, ...]


class Estimator:
    """Reads the seconds of work off one device's samples."""

    def __init__(self, device: MeasuredDevice) -> None:
        self.device = device
        grouped: dict[str, list[tuple[tuple[float, ...], int, Sample]]] = {}
        for index, sample in enumerate(device.samples):
            grouped.setdefault(sample.key, []).append((sample.at, index, sample))
        self._curves = {key: Curve(group) for key, group in grouped.items()}
        self._many_rows = {
            key.removesuffix(MANY_ROWS): found for key, group in grouped.items()
            if key.endswith(MANY_ROWS) and (found := _of_a_row(group))
        }  # fmt: skip
        self._heads = _head_sizes(grouped)
        self.heads_at_once = _heads_at_once(device.samples)
        self._known: dict[tuple[NodeWork, float], Estimate | None] = {}
        rates = [(s.bytes / s.usual, s.flops / s.usual) for s in device.samples
                 if s.usual > 0 and not s.key.endswith(HOT) and s.bytes]  # fmt: skip
        self.bandwidth = max((b for b, _f in rates), default=0.0)
        self.speed = max((f for _b, f in rates), default=0.0)
        self.slow = _slow(b for b, _f in rates), _slow(f for _b, f in rates)
        self.cold_node = self._constant(COLD_NODE)
        self._cold_byte = _cold_byte(grouped.get(WORKING_SET, ()))
        self.drift = max((s.deviation for s in device.samples if s.key in DRIFTS), default=0.0)

    def _constant(self, key: str) -> Read:
        curve = self._curves.get(key)
        return curve.read(()) if curve is not None else Read(0.0, 0.0, ())

    def split(self, work: float) -> Read:
        """Seconds of a split besides its `work` (seconds): starting it, and waits. Beyond the
        measured splits it is the time of the shortest or longest measured one."""
        curve = self._curves.get(SPLIT)
        if curve is None:
            return Read(0.0, 0.0, ())
        return curve.read((curve.inside(work),))

    def knows(self, key: str) -> bool:
        """Whether samples of that kind were measured."""
        return key in self._curves

    def read(self, key: str, at: tuple[float, ...] = ()) -> Read | None:
        """Seconds, error and samples of a kind of work at `at`; None without samples."""
        curve = self._curves.get(key)
        return None if curve is None else curve.read(at)

    def coldness(self, nbytes: int) -> float:
        """Part of a graph's reads that the caches no longer have when it is computed again, from 0
        to 1. `nbytes` is the size of all its reads."""
        curve = self._curves.get(WORKING_SET)
        if curve is None:
            return 1.0
        hot, now, cold = (curve.read((curve.inside(x),)).seconds for x in (0.0, float(nbytes), inf))
        return min(max((now - hot) / (cold - hot), 0.0), 1.0) if cold > hot else 1.0

    def estimate(self, work: NodeWork, coldness: float) -> Estimate | None:
        """The seconds of a node's work; None if nothing like it was measured."""
        key = work, coldness
        if key not in self._known:
            self._known[key] = self._estimate(work, coldness)
        return self._known[key]

    def _estimate(self, work: NodeWork, coldness: float) -> Estimate | None:
        if self.heads_at_once and work.key.startswith(ATTENTION):
            work = _together(work)
        found = self._nearest(work)
        if found is None:
            return None
        curve_key, scale, extra = found
        cold = self._curves[curve_key].read(work.at)
        seconds, error, samples = cold.seconds, cold.error, cold.samples
        noise = 0.0
        if work.reads_much:
            cold_part = coldness * work.first_reads
            saved, more = self._saved(curve_key, work.at) if cold_part < 1 else (0.0, ())
            rows = self._more_rows(curve_key, work)
            whole = seconds - (1 - cold_part) * saved + cold_part * rows.seconds
            whole = max(whole, seconds / 4)
            noise = cold_part * rows.error / whole if whole > 0 else 0.0
            seconds = whole * scale * work.times
            samples += more + rows.samples
        else:
            cold_node = self.cold_node.seconds + work.kept * self._cold_byte
            seconds = seconds * scale * work.times + coldness * cold_node
            samples += self.cold_node.samples if coldness else ()
        return Estimate(seconds, error + extra + noise, self._bound(work, seconds), samples)

    def _saved(self, key: str, at: tuple[float, ...]) -> tuple[float, tuple[int, ...]]:
        """Seconds that matrices in a cache save. They are read once for all columns, so the saving
        does not depend on the number of columns. Attention of many tokens saves nothing: its time
        is computing."""
        attends = key.startswith(ATTENTION)
        if key + HOT not in self._curves or (attends and at[0] > 1):
            return 0.0, ()
        one = at if attends else (1.0, *at[1:])
        cold, hot = self._curves[key].read(one), self._curves[key + HOT].read(one)
        return max(cold.seconds - hot.seconds, 0.0), hot.samples

    def _more_rows(self, key: str, work: NodeWork) -> Read:
        """Extra seconds of a matrix with more and shorter rows than the samples; negative if it has
        fewer and longer rows. The error is in seconds. 0 with several columns: they are computed in
        other pieces, and nothing is known about those."""
        if key not in self._many_rows or work.at[0] != 1:
            return Read(0.0, 0.0, ())
        one, more = self._many_rows[key], work.rows - _usual_rows(work.at[1])
        return Read(one.seconds * more, one.error * abs(more), one.samples)

    def _nearest(self, work: NodeWork) -> tuple[str, float, float] | None:
        """The kind that is read for this work, the factor for it, and the relative error that it
        adds."""
        if work.key in self._curves:
            return work.key, 1.0, 0.0
        for pattern, instead, error in _NEAREST:
            key, n = re.subn(pattern, instead, work.key)
            if n and key in self._curves:
                return key, 1.0, error
        kind, _, size = work.key.rpartition(" ")
        if sizes := self._heads.get(kind):
            # Attention with heads of another size: in proportion to it.
            near = min(sizes, key=lambda s: abs(s - int(size)))
            return f"{kind} {near}", int(size) / near, 0.1
        return None

    def _bound(self, work: NodeWork, seconds: float) -> str:
        by_bytes = work.bytes / self.bandwidth if self.bandwidth else 0.0
        by_flops = work.flops / self.speed if self.speed else 0.0
        if max(by_bytes, by_flops) < seconds / 4 and not work.reads_much:
            return OVERHEAD
        return BYTES if by_bytes >= by_flops else FLOPS

    def copy(self, key: str, nbytes: int) -> Estimate | None:
        """The seconds of copying a tensor ("copy from CPU"); None if that was not measured."""
        found = self.read(key, (float(nbytes),))
        if found is None:
            return None
        least = self._curves[key].read((0.0,)).seconds
        bound = LATENCY if least > found.seconds / 2 else BYTES
        return Estimate(found.seconds, found.error, bound, found.samples)


def _cold_byte(group: Sequence[tuple[tuple[float, ...], int, Sample]]) -> float:
    """Extra seconds per byte when a matrix is read from memory instead of from cache."""
    samples = [sample for _at, _index, sample in sorted(group) if sample.bytes]
    if len(samples) < 2:
        return 0.0
    hot, cold = samples[0], samples[-1]
    return max(cold.usual - hot.usual, 0.0) / cold.bytes


def _of_a_row(group: Sequence[tuple[tuple[float, ...], int, Sample]]) -> Read | None:
    """The seconds of one row more, and what they may be wrong by, from a matrix with few and one
    with many rows. None if repetitions differ by as much."""
    if len(group) != 2 or any(len(at) != 2 for at, _index, _sample in group):
        return None
    (few_at, i, few), (many_at, j, many) = sorted(group, key=lambda one: one[0])
    rows = many_at[0] - few_at[0]
    more, noise = many.usual - few.usual, hypot(*(s.spread * s.usual for s in (few, many)))
    return Read(more / rows, noise / rows, (i, j)) if rows > 0 and more > noise else None


def _usual_rows(elements: float) -> float:
    """Number of rows of the measured matrix with this many elements."""
    known = [(log2(k * m), k) for k, m in SHAPES]
    x = min(max(log2(max(elements, 1.0)), known[0][0]), known[-1][0])
    for (low, k), (high, next_k) in pairwise(known):
        if x <= high:
            return elements / (k + (next_k - k) * (x - low) / (high - low))
    return elements / known[-1][1]


def _slow(rates: Iterable[float]) -> float:
    """What nine of ten rates exceed; 0 without any."""
    some = sorted(rate for rate in rates if rate > 0)
    return some[len(some) // 10] if some else 0.0


def _heads_at_once(samples: Iterable[Sample]) -> bool:
    """Whether attention of one token takes hardly longer if it has more heads, as on a GPU: by the
    samples with the fewest and the most heads."""
    of_all: dict[tuple[str, float], dict[float, float]] = {}
    for s in samples:  # `at` is tokens, bytes of one cell in all heads, cells
        attends = s.key.startswith(ATTENTION) and not s.key.endswith(HOT) and len(s.at) == 3
        if attends and s.at[0] == 1 and s.at[1] > 0 and s.usual > 0:
            of_all.setdefault((s.key, s.at[2]), {})[s.at[1]] = s.usual * s.at[1]
    growths = [
        log2(of[max(of)] / of[min(of)]) / log2(max(of) / min(of))
        for of in of_all.values() if len(of) > 1
    ]  # fmt: skip
    return bool(growths) and median(growths) < _GROWTH


def _together(work: NodeWork) -> NodeWork:
    """The work of attention where heads are computed at the same time. Heads that share keys and
    values are more columns of one product, until a kernel's columns are full."""
    tokens, size, cells = work.at
    shared = 1 / work.first_reads
    if tokens * shared <= _COLUMNS:
        at, times = (tokens * shared, size, cells), work.times / shared
    else:
        at, times = (tokens, size * shared, cells), work.times
    return work._replace(at=at, times=times, first_reads=1.0)


def _head_sizes(keys: Iterable[str]) -> dict[str, list[int]]:
    """The sizes of heads that were measured, by the kind of attention."""
    found: dict[str, list[int]] = {}
    for key in keys:
        kind, _, size = key.rpartition(" ")
        if kind.startswith("FLASH_ATTN_EXT") and size.isdecimal():
            found.setdefault(kind, []).append(int(size))
    return found

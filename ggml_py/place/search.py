"""Searches for the quickest way: from several starts one option at a time, until none helps. The
same model, machine and bounds give the same ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .evaluate import Evaluator, Way
from .flags import Flags
from .moves import AXES, Facts

_FROM = 2  # starts that the search goes on from
_GAIN = 1e-3  # part of the time that a step must save


class Found(NamedTuple):
    """The ways that were tried, the quickest first, and why the search ended."""

    ways: tuple[Way, ...]
    n_plans: int
    ended: str  # "" if nothing was left to try


class _Spent(Exception):
    """A bound was reached."""


def search(
    evaluator: Evaluator,
    facts: Facts,
    starts: Iterable[Flags],
    plans: int,
    seconds: float | None = None,
    progress: Callable[[float], object] = lambda _share: None,
) -> Found:
    """Tries ways from each start, until so many graphs were planned or so much time has passed.
    What is refused, does not fit or has no known time is tried, and never chosen."""
    tried: dict[Flags, Way] = {}
    began, first = time.monotonic(), evaluator.n_plans

    def look(flags: Flags) -> Way:
        if flags not in tried:
            used = evaluator.n_plans - first
            progress(min(used / plans, 1.0))
            if used >= plans:
                raise _Spent(f"{plans} graphs were planned (--plans)")
            if seconds is not None and time.monotonic() - began > seconds:
                raise _Spent(f"{seconds:g} seconds were over (--seconds)")
            tried[flags] = evaluator.way(flags)
        return tried[flags]

    ended = ""
    try:
        begun = [look(flags) for flags in dict.fromkeys(starts)]
        usable = sorted((way for way in begun if way.usable), key=_order)
        for way in usable[:_FROM] or begun[:1]:
            _climb(way, facts, look)
    except _Spent as spent:
        ended = str(spent)
    return Found(tuple(sorted(tried.values(), key=_order)), evaluator.n_plans - first, ended)


def _climb(way: Way, facts: Facts, look: Callable[[Flags], Way]) -> Way:
    """The best way that is reached by steps of one option each."""
    while True:
        before = way
        for axis in AXES:
            tried = [look(flags) for flags in axis(facts, way.flags)]
            better = min((one for one in tried if one.usable), key=_order, default=way)
            if not way.usable or better.seconds < way.seconds * (1 - _GAIN):
                way = better
        if way is before:
            return way


def _order(way: Way) -> tuple[bool, float, str]:
    return not way.usable, way.seconds, str(way.flags)

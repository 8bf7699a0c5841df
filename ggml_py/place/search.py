"""Searches for the quickest way: from several starts one option at a time, until none helps. The
same model, machine and bounds give the same ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import NamedTuple

from .evaluate import Evaluator, Way, doubt
from .moves import AXES, Choices
from .placing_flags import Flags

_FROM = 2  # starts that the search goes on from
_GAIN = 1e-3  # part of the time that a step must save


class SearchResult(NamedTuple):
    """The ways that were tried, the quickest first, and why the search ended."""

    # The quickest, without changes that may not help; None if none is usable.
    best: Way | None
    ways: tuple[Way, ...]
    n_plans: int
    ended: str  # "" if nothing was left to try


class _Spent(Exception):
    """A bound was reached."""


def search(
    evaluator: Evaluator,
    choices: Choices,
    starts: Iterable[Flags],
    plans: int,
    seconds: float | None = None,
    progress: Callable[[float], object] = lambda _share: None,
) -> SearchResult:
    """Tries ways from each start, until `plans` graphs were planned or `seconds` have passed. A way
    that is refused, does not fit or has no known time is tried, but never chosen."""
    tried: dict[Flags, Way] = {}
    began, first = time.monotonic(), evaluator.n_plans

    def look(flags: Flags) -> Way:
        if flags not in tried:
            used = evaluator.n_plans - first
            progress(min(used / plans, 1.0))
            # A way that lacks memory plans no graph that counts, but the header is read.
            if tried and max(used + evaluator.most_plans, len(tried)) > plans:
                raise _Spent(f"for another way it may plan more than {plans} graphs (--plans)")
            if tried and seconds is not None and time.monotonic() - began > seconds:
                raise _Spent(f"{seconds:g} seconds were over (--seconds)")
            tried[flags] = evaluator.way(flags)
        return tried[flags]

    ended, best = "", None
    try:
        begun = [look(flags) for flags in dict.fromkeys(starts)]
        for way in sorted(begun, key=_order)[:_FROM]:
            _climb(way, choices, look)
        best = _simplest(min(tried.values(), key=_order), begun[0].flags, look)
    except _Spent as spent:
        ended = str(spent)
    best = best or min(tried.values(), key=_order)
    return SearchResult(
        best if best.usable else None,
        tuple(sorted(tried.values(), key=_order)),
        evaluator.n_plans - first,
        ended,
    )


def _climb(way: Way, choices: Choices, look: Callable[[Flags], Way]) -> Way:
    """The best way that is reached by steps of one option each."""
    while True:
        before = way
        for axis in AXES:
            tried = [look(flags) for flags in axis(choices, way.flags)]
            better = min(tried, key=_order, default=way)
            quicker = better.usable and better.seconds < way.seconds * (1 - _GAIN)
            if quicker or _order(better)[:2] < _order(way)[:2]:
                way = better
        if way is before:
            return way


def _simplest(way: Way, given: Flags, look: Callable[[Flags], Way]) -> Way:
    """The same without changes of the given flags whose gain may well be an error: together they
    cost at most one standard deviation of the difference."""
    quickest = way
    for field in fields(Flags):
        value = getattr(given, field.name)
        if way.usable and getattr(way.flags, field.name) != value:
            without = look(way.flags.but(**{field.name: value}))
            if without.usable and without.seconds <= quickest.seconds + doubt(without, quickest):
                way = without
    return way


def _order(way: Way) -> tuple[int, int, float, int, str]:
    """The key that sorts the best way first. Ways that lack memory are sorted by the missing bytes:
    steps lead out of the shortage."""
    rank = 3 if way.refused else 2 if way.n_unknown else 1 if way.lacks else 0
    lacks = sum(way.lacks.values())
    return rank, lacks, way.seconds, len(str(way.flags)), str(way.flags)

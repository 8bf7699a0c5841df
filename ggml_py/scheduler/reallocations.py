"""The times that a scheduler laid out its compute buffers again, with the reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..boundary.ffi import NULL, ffi, lib
from ..graphs.reallocation import Reallocation, reallocation
from ..graphs.reallocation import labels as named

if TYPE_CHECKING:
    from .reads import ReadScheduler


def reallocations(scheduler: ReadScheduler) -> tuple[Reallocation, ...]:
    """C: gp_sched_reallocs"""
    names = labels(scheduler)
    n = lib.gp_sched_reallocs(scheduler.ptr, NULL, 0)
    records = ffi.new("struct gp_realloc_record[]", n)
    lib.gp_sched_reallocs(scheduler.ptr, records, n)
    kept = (r for r in records if r.kind != lib.GP_REALLOC_NONE)  # the newest; the rest are zeros
    return tuple(_reallocation(r, names) for r in kept)


def _reallocation(r: Any, names: list[str]) -> Reallocation:
    before = _sizes(r.before, names)
    first = "" if any(before.values()) else "the first graph, without a reserve before it"
    return reallocation(r, names, before, _sizes(r.after, names), first)


def _sizes(sizes: Any, names: list[str]) -> dict[str, int]:
    return {name: int(sizes[i]) for i, name in enumerate(names)}


def labels(scheduler: ReadScheduler) -> list[str]:
    """The backends' names; a name that repeats gets its index."""
    return named([b.name for b in scheduler.backends])

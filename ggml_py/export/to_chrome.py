"""Runs and plans in Chrome's trace format, which Perfetto and chrome://tracing load.

A process per scheduler, a thread per track, slices ("X"), arrows for copies ("s", "t", "f"), and a
counter of live bytes per buffer type ("C"). Nodes are inside their split, splits inside their
layer. Times are in microseconds, as the format requires.
"""

from __future__ import annotations

import math
from itertools import count
from typing import Any

from ..cost.machine import Machine
from ..trace.planned import Planned
from ..trace.recorded import MEASURED, Recorded
from .timeline import SCHEDULER, Timeline, timeline_of

_COLORS = {"wait": "grey", "copy": "thread_state_iowait", "compute": "good"}
_BOUND = "thread_state_unknown"  # drawn pale: it took no longer, and may have taken less


def render(source: Recorded | Planned, machine: Machine | None = None) -> dict[str, Any]:
    """The trace as data that `json` can write. A plan's times are predicted (`timeline_of`)."""
    timeline = timeline_of(source, machine)
    return {
        "traceEvents": [
            *_names(timeline),
            *_slices(timeline),
            *_flows(timeline),
            *_levels(timeline),
        ],
        "displayTimeUnit": "ns",
        "otherData": {
            "made by": "ggml_py",
            "times": timeline.times,
        },
    }


def _ids(timeline: Timeline) -> dict[Any, int]:
    """The thread of each track; 0 is the scheduler's."""
    numbers: dict[int, Any] = {}
    ids = {}
    for track in timeline.tracks:
        next_ = numbers.setdefault(track.scheduler, count(1))
        ids[track] = 0 if track.kind == SCHEDULER else next(next_)
    return ids


def _names(timeline: Timeline) -> list[dict[str, Any]]:
    ids, events = _ids(timeline), []
    for scheduler in sorted({t.scheduler for t in timeline.tracks}):
        backends = [
            t.name for t in timeline.tracks if t.scheduler == scheduler and t.kind == "nodes"
        ]
        name = f"scheduler {scheduler}: {', '.join(backends)}"
        events.append(_meta("process_name", scheduler, 0, {"name": name}))
        events.append(_meta("process_sort_index", scheduler, 0, {"sort_index": scheduler}))
    for track, tid in ids.items():
        events.append(_meta("thread_name", track.scheduler, tid, {"name": track.name}))
        events.append(_meta("thread_sort_index", track.scheduler, tid, {"sort_index": tid}))
    return events


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _slices(timeline: Timeline) -> list[dict[str, Any]]:
    ids = _ids(timeline)
    events = []
    for s in timeline.nested():
        name = f"{s.name}, {s.details['took']}" if "took" in s.details else s.name
        event: dict[str, Any] = {
            "ph": "X", "name": name, "cat": s.what, "pid": s.track.scheduler,
            "tid": ids[s.track], "ts": _us(s.start), "dur": _us(s.end - s.start),
            "args": s.details,
        }  # fmt: skip
        if s.known != MEASURED:
            event["cname"] = _BOUND
            event["cat"] += ",bound"
        elif s.what in _COLORS:
            event["cname"] = _COLORS[s.what]
        events.append(event)
    return events


def _flows(timeline: Timeline) -> list[dict[str, Any]]:
    """Each arrow leaves the first slice at its end, or where the second begins if that is earlier
    (work that a backend queued), and arrives at the start of the others."""
    ids, events = _ids(timeline), []
    for number, flow in enumerate(timeline.flows):
        slices = [timeline.slices[i] for i in flow.slices]
        for i, s in enumerate(slices):
            ph = "s" if i == 0 else "f" if i == len(slices) - 1 else "t"
            at = s.start
            if i == 0:  # inside the slice, which excludes its end
                at = max(at, min(s.end - 1, slices[1].start))
            event = {
                "ph": ph, "id": number, "name": flow.name, "cat": "copy",
                "pid": s.track.scheduler, "tid": ids[s.track], "ts": _us(at),
            }  # fmt: skip
            if ph == "f":
                event["bp"] = "e"  # bind to the slice around it, not to the next one
            events.append(event)
    return events


def _levels(timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "ph": "C", "name": f"live bytes in {level.buft}", "pid": level.scheduler,
            "ts": _us(level.start), "args": {"bytes": level.nbytes},
        }
        for level in timeline.levels
    ]  # fmt: skip


def _us(ns: int) -> float:
    """Microseconds that give the same nanoseconds again in readers that multiply and truncate, as
    Perfetto does. Otherwise slices that touch would overlap by 1 ns and be dropped."""
    us = ns / 1000
    return us if int(us * 1000) == ns else math.nextafter(us, math.inf)

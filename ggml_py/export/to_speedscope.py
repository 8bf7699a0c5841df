"""Runs and plans for https://www.speedscope.app: a profile for each backend, and for its copies.

Nodes are in their splits, these in their layers. Where only the order is known, each node counts 1.
"""

from __future__ import annotations

from typing import Any

from ..cost.machine import Machine
from ..trace.planned import Planned
from ..trace.recorded import Recorded
from .timeline import COMPUTING, STEP, timeline_of


def render(source: Recorded | Planned, machine: Machine | None = None) -> dict[str, Any]:
    """The file as data that `json` can write. A plan's times are predicted (`timeline_of`)."""
    timeline = timeline_of(source, machine)
    unit, per = ("nanoseconds", 1) if timeline.is_timed else ("none", STEP)
    frames: dict[str, int] = {}
    profiles = []
    nested = timeline.nested()
    for track in timeline.tracks:
        events: list[dict[str, Any]] = []
        open_: list[tuple[int, int]] = []  # frame and end
        mine = [one for one in nested if one.track == track]

        def close(until: float, events: list[Any] = events, open_: list[Any] = open_) -> None:
            while open_ and open_[-1][1] <= until:
                frame, end = open_.pop()
                events.append({"type": "C", "frame": frame, "at": end / per})

        for one in mine:
            close(one.start)
            frame = frames.setdefault(one.told, len(frames))
            events.append({"type": "O", "frame": frame, "at": one.start / per})
            open_.append((frame, one.end))
        close(float("inf"))
        name = track.name if len({t.scheduler for t in timeline.tracks}) == 1 else ""
        profiles.append({
            "type": "evented", "name": name or f"scheduler {track.scheduler}: {track.name}",
            "unit": unit, "startValue": min((one.start for one in mine), default=0) / per,
            "endValue": max((one.end for one in mine), default=0) / per, "events": events,
        })  # fmt: skip
    kinds = [track.kind for track in timeline.tracks]
    first = kinds.index(COMPUTING) if COMPUTING in kinds else 0
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "ggml_py", "name": f"times: {timeline.times}", "activeProfileIndex": first,
        "shared": {"frames": [{"name": name} for name in frames]}, "profiles": profiles,
    }  # fmt: skip

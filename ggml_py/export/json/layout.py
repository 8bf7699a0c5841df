"""The layout of a plan's compute buffers, as a part of its JSON."""

from __future__ import annotations

from typing import Any

from ...trace.layout import ALLOC, FREE, KINDS, LAID_OUT, REUSE, GraphLayout, LayoutEvent
from ...trace.planned import Planned
from .schema import object_of, ref, type_of


def render(layout: GraphLayout | None) -> dict[str, Any] | None:
    """The layout as data that `json` can write."""
    if layout is None:
        return None
    return {
        "laid_out": layout.laid_out,
        "order": list(layout.order),
        "events": [event._asdict() for event in layout.events],
    }


def parse(data: dict[str, Any] | None) -> GraphLayout | None:
    """The layout in data that `render` made, or that has none."""
    if data is None:
        return None
    events = tuple(LayoutEvent(**row) for row in data["events"])
    return GraphLayout(data["laid_out"], tuple(data["order"]), events)


def check(plan: Planned) -> None:
    """Raises ValueError for numbers that cannot be in a plan's layout."""
    n_tensors, buffers = len(plan.tensors), plan.capture.compute_buffers
    for i, buffer in enumerate(buffers):
        _in(f"compute_buffers[{i}].backend", buffer.backend, 0, len(plan.backends))
        alignment = buffer.alignment
        if alignment < 1 or alignment & (alignment - 1):
            _fail(f"compute_buffers[{i}].alignment", alignment, "a power of two")
    for i, told in enumerate(plan.capture.alloc_sizes):
        _in(f"alloc_sizes[{i}].tensor", told.tensor, 0, len(plan.capture.tensors))
        _in(f"alloc_sizes[{i}].backend", told.backend, 0, len(plan.backends))
        _in(f"alloc_sizes[{i}].size", told.size, 0, _MOST)
    if (layout := plan.layout) is None:
        return
    if layout.laid_out not in LAID_OUT:
        _fail("layout.laid_out", layout.laid_out, " or ".join(LAID_OUT))
    for i, id in enumerate(layout.order):
        _in(f"layout.order[{i}]", id, -1 - n_tensors, n_tensors)
    known = {buffer.backend for buffer in buffers}
    for i, event in enumerate(layout.events):
        what = f"layout.events[{i}]"
        if event.kind not in KINDS:
            _fail(f"{what}.kind", event.kind, " or ".join(KINDS))
        _in(f"{what}.step", event.step, -1, len(layout.order))
        _in(f"{what}.tensor", event.tensor, 0, n_tensors)
        _in(f"{what}.of", event.of, -1, n_tensors)
        if event.backend not in known:
            _fail(f"{what}.backend", event.backend, "a backend of compute_buffers")
        for name, end in (("chunk", _CHUNKS), ("offset", _BYTES), ("size", _BYTES)):
            _in(f"{what}.{name}", getattr(event, name), 0, end)
    _replay(layout)


def _replay(layout: GraphLayout) -> None:
    """Raises ValueError for events that cannot follow each other: a tensor has one place, from when
    it gets it until it is freed or its place is handed on."""
    places: dict[int, tuple[int, int, int]] = {}  # backend, chunk, offset
    had: set[int] = set()
    step = -1
    for i, event in enumerate(layout.events):
        what, place = f"layout.events[{i}]", event[4:7]
        if event.step < step:
            _fail(f"{what}.step", event.step, f"{step} or later, as the one before")
        step = event.step
        if event.kind in (ALLOC, REUSE) and event.tensor in had:
            _fail(what, tuple(event), "a tensor that has had no place before")
        if event.kind == REUSE and places.pop(event.of, None) != place:
            _fail(what, tuple(event), f"the place of tensor {event.of}")
        if event.kind in (ALLOC, REUSE):
            had.add(event.tensor)
            places[event.tensor] = place
        elif event.kind == FREE and places.pop(event.tensor, None) != place:
            _fail(what, tuple(event), f"the place that tensor {event.tensor} has")


_MOST = 1 << 63
_BYTES, _CHUNKS = 1 << 52, 16  # of a device; GGML_VBUFFER_MAX_CHUNKS


def _in(what: str, value: object, low: int, end: int) -> None:
    if type(value) is not int or not low <= value < end:
        _fail(what, value, f"{low} to {end - 1}")


def _fail(what: str, value: object, expected: str) -> None:
    raise ValueError(f"{what} is {value!r}, expected {expected}")


def definitions() -> dict[str, Any]:
    """The definitions that the published schema needs."""
    return {
        "LayoutEvent": object_of(LayoutEvent),
        "GraphLayout": {
            "type": "object",
            "description": " ".join((GraphLayout.__doc__ or "").split()),
            "properties": {
                "laid_out": {"enum": list(LAID_OUT)},
                "order": type_of(tuple[int, ...]),
                "events": {"type": "array", "items": ref("LayoutEvent")},
            },
            "required": list(GraphLayout._fields),
        },
    }

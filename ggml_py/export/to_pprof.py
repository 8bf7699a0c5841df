"""Runs and plans for `go tool pprof`: samples of nodes and copies, by backend, layer and split.

The format is the message Profile of google/pprof, proto/profile.proto, which this writes itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..cost.machine import Machine
from ..trace.planned import Planned
from ..trace.recorded import Recorded
from .timeline import SCHEDULER, STEP, timeline_of


def render(source: Recorded | Planned, machine: Machine | None = None) -> bytes:
    """The file. A sample has how often, and how long: the scheduler's own waits are left out,
    because backends compute meanwhile. A plan's times are predicted (`timeline_of`)."""
    timeline = timeline_of(source, machine)
    values: dict[tuple[str, ...], list[int]] = {}
    for one in timeline.slices:
        if one.track.kind != SCHEDULER:
            stack = one.told, *reversed(one.within), one.track.name
            found = values.setdefault(stack, [0, 0])
            found[0] += 1
            found[1] += one.end - one.start if timeline.is_timed else STEP
    strings = {"": 0}

    def text(value: str) -> int:
        # UTF-8 has no halves of surrogate pairs
        value = value.encode("utf-8", "replace").decode()
        return strings.setdefault(value, len(strings))

    def kind(name: str, unit: str) -> bytes:
        return _number(1, text(name)) + _number(2, text(unit))

    ids: dict[str, int] = {}
    kinds = [("count", "count"), ("time", "nanoseconds")][: 2 if timeline.is_timed else 1]
    parts = [_message(1, kind(*each)) for each in kinds]
    for stack, found in values.items():
        where = [ids.setdefault(name, len(ids) + 1) for name in stack]
        parts.append(_message(2, _packed(1, where) + _packed(2, found[: len(kinds)])))
    for name, id_ in ids.items():
        line = _message(4, _number(1, id_))
        parts.append(_message(4, _number(1, id_) + line))
        parts.append(_message(5, _number(1, id_) + _number(2, text(name))))
    parts.append(_number(13, text(f"times: {timeline.times}")))
    parts.append(_number(14, text(kinds[-1][0])))
    return b"".join([*parts, *(_message(6, each.encode()) for each in strings)])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, values)))

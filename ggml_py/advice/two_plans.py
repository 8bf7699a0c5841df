"""What a second plan does to the first, in a sentence."""

from __future__ import annotations

from dataclasses import replace

from ..cost.cost import PREDICTED, SHEETS, Cost
from ..cost.machine import Machine
from ..cost.time_difference import known_cost, n_unknown
from ..trace.answers.diff import Diff, diff
from ..trace.planned import Planned, format_bytes
from ..trace.units import format_factor, format_time
from .checkup import MEASURED, Checkup, Phase, device_memory, phase_of
from .finding import capitalised

_BY = {MEASURED: "by measurement", PREDICTED: "by calibration", SHEETS: "by data sheets"}
_LEAST = 0.01  # part of a device's need, from which on a change is worth a word


def verdict_of_two(before: Phase, after: Phase, found: Diff, second: str = "the second") -> str:
    """How long the `second` takes and by which knowledge, what moved, and the device whose need of
    memory changes most, unless weights moved. The first words of every comparison of two plans."""
    told = found.headline()
    if found.same and not any(found.parts):
        told = "both make the same decisions"
    if before.seconds and after.seconds:
        told = f"{second} {_times(before, after, before.seconds, after.seconds)}: {told}"
    if not any(c.weight_bytes for c in found.changed):
        told += _memory(before.plan, after.plan)
    return capitalised(told, after.plan) + "."


def verdict_of_change(
    before: Planned, after: Planned, found: Diff, machine: Machine | None = None
) -> str:
    """The same for plans that were not looked at. Their times are those on `machine`, or else by
    data sheets. Raises ValueError with `machine` for a plan without shapes."""
    one, two = (phase_with(plan, known_cost(plan, machine)) for plan in (before, after))
    return verdict_of_two(one, two, found)


def phase_with(plan: Planned, cost: Cost | None) -> Phase:
    """A plan with its time, if that is known of all its nodes."""
    return phase_of(plan, (), None if cost is None or n_unknown(cost) else cost)


def _times(before: Phase, after: Phase, first: float, second: float) -> str:
    ratio = second / first
    factor = f"{format_factor(max(ratio, 1 / ratio))} times"
    much = f"takes {factor} as long" if ratio >= 1 else f"is {factor} as quick"
    if factor == "1 times":
        much = "takes as long as the first"
    by = [_BY[phase.known_by] for phase in (before, after)]
    times = format_time(first), format_time(second)
    n = before.n_tokens, after.n_tokens
    tokens = f"; {n[0]} → {n[1]} tokens" if None not in n and n[0] != n[1] else ""
    if by[0] == by[1]:
        return f"{much} {by[0]} ({' → '.join(times)}{tokens})"
    return f"{much} ({times[0]} {by[0]} → {times[1]} {by[1]}{tokens})"


def _memory(before: Planned, after: Planned) -> str:
    was = {device.device: device.needed for device in device_memory(before)}
    both = [(d.needed - was[d.device], d) for d in device_memory(after) if d.device in was]
    change, device = max(both, key=lambda one: abs(one[0]), default=(0, None))
    if device is None or abs(change) < _LEAST * max(device.needed, device.needed - change, 1):
        return ""
    return f"; {device.device} needs {format_bytes(abs(change))} {'more' if change > 0 else 'less'}"


def versus(a: Checkup, b: Checkup) -> Checkup:
    """Why `b` is slower, or quicker, than `a`: their first graphs, and what only `b` has."""
    if not a.phases or not b.phases:  # one of them does not fit
        return replace(b, verdict=f"First: {a.verdict} Second: {b.verdict}", is_wrong=True)
    one, two = a.phases[0], b.phases[0]
    found = diff(one.plan, two.plan)
    had = {(r.rule, r.headline) for r in a.reasons}
    only = tuple(r for r in b.reasons if (r.rule, r.headline) not in had)
    made = tuple(": ".join(row) for row in found.made_with())
    return replace(
        b, verdict=verdict_of_two(one, two, found), is_wrong=bool(found), reasons=only, made=made
    )

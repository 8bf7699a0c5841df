"""What two releases do differently with a graph besides planning it: memory, waits, copies,
outputs, times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ..scheduler.observed import ID_OF_GRAPH, RunCopy
from ..trace.names import counted
from ..trace.planned import format_bytes
from ..trace.rules import rules_of
from ..trace.units import format_error
from .attribution import Attribution, drops_pins
from .outputs import ERROR, output_error, time_change
from .tasks import Made

_SHOWN = 3  # copies in a sentence


def run_changes(before: Made, after: Made) -> tuple[Attribution, ...]:
    """The differences. A difference in how `reserve` treats pins is named as a rule; the others are
    given as they were seen."""
    a, b = before.observed, after.observed
    if a is None or b is None or before.plan is None or after.plan is None:
        return ()
    found: list[Attribution] = []
    if a.reserved != b.reserved or a.reallocations != b.reallocations:
        rules = [rules_of(plan.settings).reserve_ignores_pins for plan in (before.plan, after.plan)]
        if rules[0] != rules[1] and drops_pins(before.plan):
            text = "reserve plans without the pins" if rules[1] else "reserve plans with the pins"
            found.append(Attribution("rule", "reserve_ignores_pins", text, True))
    for what, was, now in (
        ("after reserve", a.reserved, b.reserved),
        ("for the graph", a.allocated, b.allocated),
    ):
        if was and now and was != now:
            found.append(_seen("memory", f"compute buffers {what}: {_sizes(was, now)}"))
    if a.reallocations != b.reallocations and a.allocated and b.allocated:
        found.append(_seen("memory", _reallocated(a.reallocations, b.reallocations)))
    # What follows from another plan is not told line by line.
    same = before.plan.outcome.splits == after.plan.outcome.splits
    if same and a.layout and b.layout and (text := _other_lines(a.layout, b.layout)):
        found.append(_seen("memory", f"laid out otherwise: {text}"))
    if a.waits is not None and b.waits is not None:
        if a.waits != b.waits:
            found.append(_seen("run", f"{counted(b.waits, 'wait')} in a compute, not {a.waits}"))
        copies = _copies(a.copies, b.copies)
        found += [_seen("run", text) for text in copies]
        if same and not copies and (text := _other_lines(a.steps, b.steps)):
            found.append(_seen("run", f"other steps: {text}"))
        later = _later(a.later, b.later)
        if same and not found and (text := _other_lines(*later)):
            found.append(_seen("run", f"computed again: {text}"))
    wrong = output_error(before, after)
    if wrong is not None and wrong.error > ERROR:
        error = wrong.why or f"error {format_error(wrong.error)}, above {ERROR:g}"
        found.append(_seen("output", f"'{wrong.name}' is computed otherwise: {error}"))
    elif a.left_out != b.left_out:
        found.append(
            _seen("run", f"{b.left_out or 'it is computed'}; before, {a.left_out or 'it was'}")
        )
    time = time_change(before, after)
    if time is not None and time.significant:
        found.append(_seen("time", str(time)))
    return tuple(found)


def _later(was: Sequence[str], now: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Both sides, without the lines about what one of the releases does not have."""
    for words in ("copy callback", ID_OF_GRAPH):
        sides = [[line for line in side if words not in line] for side in (was, now)]
        if any(len(side) == len(whole) for side, whole in zip(sides, (was, now), strict=True)):
            was, now = sides
    return was, now


def _other_lines(was: Sequence[str], now: Sequence[str]) -> str:
    """How many of the lines differ, and the first that does; "" if none does."""
    if was == now:
        return ""
    pairs = list(zip_longest(was, now))
    n = sum(x != y for x, y in pairs)
    x, y = next((x, y) for x, y in pairs if x != y)
    first = f"{y or 'nothing'}; before, {x or 'nothing'}"
    return f"{counted(n, 'line')} of {len(pairs)}; the first: {first}"


def _seen(kind: str, text: str) -> Attribution:
    return Attribution(kind, "", text, False)


def _sizes(was: dict[str, int], now: dict[str, int]) -> str:
    pairs = [(name, was.get(name, 0), now.get(name, 0)) for name in dict.fromkeys((*was, *now))]
    return ", ".join(f"{name} {_pair(a, b)}" for name, a, b in pairs if a != b)


def _pair(was: int, now: int) -> str:
    """Both sizes; in bytes if they round to the same."""
    texts = format_bytes(was), format_bytes(now)
    return " → ".join(texts) if texts[0] != texts[1] else f"{was:,} → {now:,} B"


def _reallocated(was: tuple[str, ...], now: tuple[str, ...]) -> str:
    if now:
        return f"after reserve the same graph is laid out again: {'; '.join(now)}"
    return f"after reserve the same graph is no longer laid out again (before: {'; '.join(was)})"


def _copies(was: Sequence[RunCopy], now: Sequence[RunCopy]) -> list[str]:
    """The differences between copies: which are made, their order, their bytes."""
    places = [[copy[:2] for copy in side] for side in (was, now)]
    if sorted(places[0]) != sorted(places[1]):
        total = [format_bytes(sum(copy.nbytes for copy in side)) for side in (was, now)]
        copies = counted(len(now), "copy", "copies")
        return [f"{copies} ({total[1]}) in a compute, not {len(was)} ({total[0]})"]
    found = []
    if places[0] != places[1]:
        i = next(i for i, (x, y) in enumerate(zip(*places, strict=True)) if x != y)
        found.append(
            f"the same copies in another order: number {i + 1} is '{now[i].tensor}', before "
            f"'{was[i].tensor}'"
        )
    rows = [
        f"'{x.tensor}' to {x.to} {_pair(x.nbytes, y.nbytes)}"
        for x, y in zip(sorted(was), sorted(now), strict=True) if x.nbytes != y.nbytes
    ]  # fmt: skip
    more = len(rows) - _SHOWN
    if rows:
        text = ", ".join(rows[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        found.append(f"bytes copied in a compute: {text}")
    return found

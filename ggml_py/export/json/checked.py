"""Checks that the content of a plan file can be a plan, before anything uses it.

A file may come from anywhere. A plan that passes is a graph without cycles, and every number in it
refers to an existing element. Questions about the plan then cannot go astray.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any, NoReturn, get_args

from ...trace import causes
from ...trace.answers.passes import PASS_NAMES
from ...trace.fields import about, fields_of, optional, plain, record_in
from ...trace.layout import ALLOC, FREE, REUSE, GraphLayout
from ...trace.planned import Planned
from ...trace.provenance import FACTS
from ...trace.record import COPY, LEAF, MAX_SRC, NODE, OTHER
from ...trace.rules import parse_version
from .keys import PARTS, PLANNERS

MAX_BACKENDS = 16  # GGML_SCHED_MAX_BACKENDS
_INT64 = (-(1 << 63), 1 << 64)


def check(plan: Planned) -> None:
    """Raises ValueError that names the first thing that cannot be in a plan."""
    _fields(plan)
    _settings(plan)
    _tensors(plan)
    _refusals(plan)
    _placements(plan)
    _splits(plan)
    _optimized(plan)
    _layout(plan)
    _no_cycle(plan)


def _fail(what: str, value: object, expected: str) -> NoReturn:
    text = repr(value)
    raise ValueError(f"{what} is {text[:80]}{'…' * (len(text) > 80)}, expected {expected}")


def _in(what: str, value: int, low: int, end: int) -> None:
    if not low <= value < end:
        _fail(what, value, _range(low, end))


def _range(low: int, end: int) -> str:
    if end == _INT64[1]:
        return f"{low} or more"
    return f"{low} to {end - 1}" if end > low else "none, because there are none"


# --- types, and ranges of numbers, as the records declare them


Rows = Mapping[str, tuple[int, int]]  # ids or indices of rows: the first, and one behind the last


def _fields(plan: Planned) -> None:
    capture = plan.capture
    if not 1 <= len(capture.backends) <= MAX_BACKENDS:
        _fail("the number of backends", len(capture.backends), f"1 to {MAX_BACKENDS}")
    n = len(capture.tensors)
    n_planned = n + len(plan.outcome.copies)
    rows = {
        "tensors": (0, n), "copies": (n, n_planned), "planned": (0, n_planned),
        "nodes": (0, capture.n_nodes), "backends": (0, len(capture.backends)),
        "bufts": (0, len(capture.bufts)), "buffers": (0, len(capture.buffers)),
    }  # fmt: skip
    names = [t.name for t in plan.tensors]
    _table("tensors", plan.tensors, rows, names)
    _table("tensors", plan.outcome.placements, rows, names)
    for key in PARTS:
        if key.name != "provenance":
            _value(key.name, key.type, key.of(plan), rows)
    for fact in FACTS:
        value = getattr(plan.provenance, fact.name)
        _value(f"provenance.{fact.name}", fact.kind | None, value, rows)
        if fact.kind is int and value is not None and value < 0:
            _fail(f"provenance.{fact.name}", value, "0 or more")


def _value(what: str, hint: Any, value: Any, rows: Rows) -> None:
    if value is None and optional(hint):
        return
    if record_in(hint) is None:
        if not _all_fit(hint, (value,), rows):
            _fail_for(what, "", hint, value, rows)
    elif hasattr(value, "_fields"):
        record: Any = type(value)
        for field, one in zip(fields_of(record), value, strict=True):
            _value(f"{what}.{field.name}", field.hint, one, rows)
    else:
        _table(what, value, rows, [getattr(row, "name", None) for row in value])


def _table(what: str, table: Collection[Any], rows: Rows, names: list[Any]) -> None:
    """Checks rows of one kind. `names` are used in messages, if they are texts."""
    if not table:
        return
    record: Any = type(next(iter(table)))
    for field, column in zip(fields_of(record), zip(*table, strict=True), strict=True):
        if _all_fit(field.hint, column, rows):
            continue
        for i, value in enumerate(column):
            if not _all_fit(field.hint, (value,), rows):
                of = f"{field.name} of '{names[i]}'" if type(names[i]) is str else ""
                _fail_for(f"{what}[{i}].{field.name}", of, field.hint, value, rows)


def _limits(hint: Any, rows: Rows) -> tuple[int, int]:
    """The smallest number of a type, and one above the largest."""
    said = about(hint)
    if not said.of:
        low, end = _INT64
        return low if said.low is None else said.low, end if said.end is None else said.end
    low, end = rows[said.of]
    return (0, 1 << end) if said.is_set else (-1 if said.none else low, end)


def _all_fit(hint: Any, column: Collection[Any], rows: Rows) -> bool:
    """Whether all values are of a type, and the numbers in its range. True is not a number here."""
    kinds = set(map(type, column))
    if not kinds:
        return True
    kind = plain(hint)
    if kind is int:
        low, end = _limits(hint, rows)
        return kinds == {int} and low <= min(column) and max(column) < end
    if kind is str:
        one_of = about(hint).one_of
        if kinds != {str} or (one_of and not set(column) <= set(one_of)):
            return False
        return _is_text("".join(set(column)))
    if kind is bool:
        return kinds == {bool}
    if inner := optional(hint):
        return _all_fit(inner, [v for v in column if v is not None], rows)
    items = get_args(kind)
    if kinds != {tuple}:
        return False
    if items[-1] is Ellipsis:
        return _all_fit(items[0], list(chain.from_iterable(column)), rows)
    if set(map(len, column)) != {len(items)}:
        return False
    return all(_all_fit(*pair, rows) for pair in zip(items, zip(*column, strict=True), strict=True))


def _fail_for(what: str, of: str, hint: Any, value: Any, rows: Rows) -> NoReturn:
    """Fails with the reason for which a value does not fit: its type, or the first number or text
    out of range. `of` is a better name for an id or a text that may not be any."""
    for at, leaf, one in _leafs("", hint, value):
        kind, said = plain(leaf), about(leaf)
        name = of if of and (said.of or said.one_of) else what + at
        if kind is int and type(one) is int and _INT64[0] <= one < _INT64[1]:
            low, end = _limits(leaf, rows)
            if not low <= one < end:
                _fail(name, one, _range(low, end))
        elif said.one_of and type(one) is str and one not in said.one_of:
            _fail(name, one, f"one of {', '.join(word or repr(word) for word in said.one_of)}")
    _fail(what, value, _word(hint))


def _leafs(at: str, hint: Any, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """The numbers and texts in a value, each with its place ("[3]") and type."""
    hint = optional(hint) or hint
    items = get_args(plain(hint))
    if not items or not isinstance(value, tuple):
        yield at, hint, value
        return
    for i, one in enumerate(value):
        if items[-1] is Ellipsis or i < len(items):
            item = items[0] if items[-1] is Ellipsis else items[i]
            yield from _leafs(f"{at}[{i}]", item, one)


def _word(hint: Any) -> str:
    """What a type is called in JSON."""
    names = {int: "an integer of 64 bits", str: "text", bool: "true or false"}
    if plain(hint) in names:
        return names[plain(hint)]
    if inner := optional(hint):
        return f"{_word(inner)} or null"
    of = {_word(a).partition(" of ")[0] for a in get_args(plain(hint)) if a is not Ellipsis}
    return f"a list, each item {' or '.join(sorted(of))}"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


# --- what follows from more than one field


def _settings(plan: Planned) -> None:
    if plan.planner not in PLANNERS:
        _fail("planner", plan.planner, f"one of {', '.join(PLANNERS)}")
    parse_version(plan.settings.upstream)
    _in("settings.cur_copy", plan.settings.cur_copy, 0, plan.settings.n_copies)
    least = 0 if _is_scheduler(plan) else -1  # a debug log has no buffer types
    for b in plan.backends:
        _in(f"buft of '{b.name}'", b.buft, least, len(plan.capture.bufts))


def _is_scheduler(plan: Planned) -> bool:
    return plan.capture.source == "scheduler"


def _tensors(plan: Planned) -> None:
    capture, every = plan.capture, plan.tensors
    if [t.id for t in every] != list(range(len(every))):
        raise ValueError(f"its tensors are not numbered 0 to {len(every) - 1}")
    ranks = {NODE: 0, LEAF: 1, OTHER: 1, COPY: 2}
    order = [ranks[t.kind] for t in every]
    may_lack = capture.printed is not None and not capture.printed.has_nodes
    if order != sorted(order) or not (capture.n_nodes or may_lack):
        raise ValueError("its tensors are not in order: nodes, then leafs and others, then copies")
    leafs = [t.id for t in capture.tensors if t.kind == LEAF]
    if sorted(capture.leaf_ids) != leafs:
        _fail("leafs", list(capture.leaf_ids), "each leaf's id once")
    n_dims = 4 if _is_scheduler(plan) else 0
    for t in every:
        if len(t.ne) != n_dims or len(t.nb) != n_dims:
            field = "ne" if len(t.ne) != n_dims else "nb"
            _fail(f"{field} of '{t.name}'", getattr(t, field), f"{n_dims} numbers")
        if len(t.src) > MAX_SRC:
            _fail(f"src of '{t.name}'", t.src, f"at most {MAX_SRC} ids")


def _refusals(plan: Planned) -> None:
    for i, refusal in enumerate(plan.capture.refusals or ()):
        if plan.tensors[refusal.tensor].supports >> refusal.backend & 1:
            _fail(f"refusals[{i}]", refusal.tensor, "an op that the backend does not support")


def _placements(plan: Planned) -> None:
    whole = _is_scheduler(plan)
    n_passes = len(PASS_NAMES)
    placements = plan.outcome.placements
    told = any(placed.passes for placed in placements[plan.capture.n_nodes :])
    for t, placed in zip(plan.tensors, placements, strict=True):
        who, is_copy = f"'{t.name}'", t.kind == COPY
        needed = whole if t.kind == NODE else is_copy
        _in(f"backend of {who}", placed.backend, 0 if needed else -1, len(plan.backends))
        if t.kind == LEAF and not told:  # a file of schema 2
            _count_passes(who, placed.passes, 0)
        else:
            placed_by_passes = whole and t.kind in (NODE, LEAF)
            _count_passes(who, placed.passes, n_passes if placed_by_passes else 0)
        weight = causes.WEIGHT
        if causes.is_of(weight, placed.cause) and causes.source_of(weight, placed.cause) < 0:
            _fail(f"cause of {who}", placed.cause, f"{weight.code} and the number of a source")
        low, end = (0, len(plan.capture.tensors)) if is_copy else (-1, 0)
        _in(f"copy_of of {who}", placed.copy_of, low, end)
        end = plan.settings.n_copies if is_copy else 0
        _in(f"copy_index of {who}", placed.copy_index, low, end)


def _count_passes(who: str, passes: tuple[int, ...], expected: int) -> None:
    if len(passes) != expected:
        _fail(f"passes of {who}", passes, f"{expected} backends")


def _splits(plan: Planned) -> None:
    n, at = plan.capture.n_nodes, 0
    for i, split in enumerate(plan.outcome.splits):
        if split.start != at or not split.start <= split.end <= n:
            raise ValueError(
                f"splits[{i}] is nodes {split.start} to {split.end}, expected it to begin at {at} "
                f"and end at {n} or before"
            )
        at = split.end
    if at != n:
        raise ValueError(f"its splits end at node {at} of {n}")


def _optimized(plan: Planned) -> None:
    for i, answer in enumerate(plan.capture.optimized):
        what = f"optimized[{i}]"
        _in(f"{what}.start", answer.start, 0, answer.end + 1)
        _in(f"{what}.end", answer.end, 0, plan.capture.n_nodes + 1)
        if answer.order and sorted(answer.order) != list(range(answer.start, answer.end)):
            _fail(f"{what}.order", answer.order, f"{answer.start} to {answer.end - 1}, each once")
        for _tensor, until in answer.alloc_deps:
            _in(f"{what}.alloc_deps", until, answer.start, answer.end)


def _layout(plan: Planned) -> None:
    buffers, n_tensors = plan.capture.compute_buffers, len(plan.tensors)
    for i, buffer in enumerate(buffers):
        alignment = buffer.alignment
        if alignment < 1 or alignment & (alignment - 1):
            _fail(f"compute_buffers[{i}].alignment", alignment, "a power of two")
    if (layout := plan.layout) is None:
        return
    for i, id in enumerate(layout.order):
        _in(f"layout.order[{i}]", id, -1 - n_tensors, n_tensors)
    placed = set(layout.order)
    for node in (plan.order or ()) if buffers else ():
        if node.id not in placed:
            _fail("layout.order", layout.order, f"a step for node {node.id}, '{node.name}'")
    known = {buffer.backend for buffer in buffers}
    for i, event in enumerate(layout.events):
        _in(f"layout.events[{i}].step", event.step, -1, len(layout.order))
        if event.backend not in known:
            _fail(f"layout.events[{i}].backend", event.backend, "a backend of compute_buffers")
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


def _no_cycle(plan: Planned) -> None:
    """Raises for a tensor that depends on itself. A cast may: it is its own second source."""
    every = plan.capture.tensors
    needs = [{i for i in t.src if i not in (-1, t.id)} | {t.view_src} - {-1} for t in every]
    readers: list[list[int]] = [[] for _ in every]
    for t, ids in zip(every, needs, strict=True):
        for i in ids:
            readers[i].append(t.id)
    missing = [len(ids) for ids in needs]
    ready = [i for i, count in enumerate(missing) if not count]
    while ready:
        for reader in readers[ready.pop()]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    at = next((i for i, count in enumerate(missing) if count), None)
    way: list[int] = []
    while at is not None and at not in way:
        way.append(at)
        at = next(i for i in needs[at] if missing[i])
    if at is not None:
        raise ValueError(f"'{every[at].name}' depends on itself, through src and view_src")

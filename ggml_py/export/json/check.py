"""Checks that the content of a plan file can be a plan, before anything uses it.

A file may come from anywhere. A plan that passes is a graph without cycles, and every number in it
refers to an existing element. Questions about the plan then cannot go astray.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any, NoReturn, get_args, get_type_hints

from ...trace import causes
from ...trace.answers.passes import PASS_NAMES
from ...trace.planned import Planned
from ...trace.provenance import FACTS
from ...trace.record import COPY, LEAF, NODE, NOT_ON_RECORD, OTHER, TensorRecord
from ...trace.rules import parse_version
from . import layout

PLANNERS = ("native", "reference", "debug log", "snapshot")
SOURCES = ("scheduler", "debug log", "snapshot")
MAX_BACKENDS = 16  # GGML_SCHED_MAX_BACKENDS
MAX_COPIES = 16  # four times GGML_SCHED_MAX_COPIES
_INT64 = range(-(1 << 63), 1 << 64)
_COUNTS = frozenset({
    "ne", "nb", "nbytes", "view_offs", "use_count", "size", "hash_set_size", "hash_set_used",
    "pins_elsewhere", "cur_copy", "start", "end", "n_threads", "n_tasks", "work_size",
    "n_past", "memory_total", "memory_free",
})  # fmt: skip


def check(plan: Planned) -> None:
    """Raises ValueError that names the first thing that cannot be in a plan."""
    _types(plan)
    _settings(plan)
    _tensors(plan)
    _answers(plan)
    _placements(plan)
    _splits(plan)
    _optimized(plan)
    _cpu(plan)
    layout.check(plan)
    _no_cycle(plan)


def _fail(what: str, value: object, expected: str) -> NoReturn:
    text = repr(value)
    raise ValueError(f"{what} is {text[:80]}{'…' * (len(text) > 80)}, expected {expected}")


# --- types, as the records declare them


def _types(plan: Planned) -> None:
    capture, outcome = plan.capture, plan.outcome
    tables: list[tuple[str, Sequence[Any]]] = [
        ("settings", (capture.settings,)), ("backends", capture.backends),
        ("bufts", capture.bufts), ("buffers", capture.buffers), ("tensors", plan.tensors),
        ("tensors", outcome.placements), ("splits", outcome.splits),
        ("optimized", capture.optimized), ("cpu", capture.cpu), ("pins", capture.pins),
        ("promise", (plan.promise,)), ("memory", plan.breakdown),
        ("choices", plan.choices),
        ("compute_buffers", capture.compute_buffers), ("alloc_sizes", capture.alloc_sizes),
        ("refusals", capture.refusals or ()),
        ("layout.events", plan.layout.events if plan.layout else ()),
        ("provenance.devices", plan.provenance.devices or ()),
    ]  # fmt: skip
    for name, rows in tables:
        if not rows:
            continue
        record: Any = type(rows[0])
        hints = _hints(record)
        for field, column in zip(record._fields, zip(*rows, strict=True), strict=True):
            if _all_fit(hints[field], column, 0 if field in _COUNTS else None):
                continue
            fits = _fits(hints[field])
            for i, value in enumerate(column):
                if not fits(value):
                    _fail(f"{name}[{i}].{field}", value, str(_word(hints[field])))
                if field in _COUNTS and any(v < 0 for v in _flat(value)):
                    _fail(f"{name}[{i}].{field}", value, "0 or more")
    pair = tuple[int, int]
    for fact in FACTS:
        value = getattr(plan.provenance, fact.name)
        if value is None or fact.name == "devices":  # devices are rows
            continue
        if not _fits(fact.kind)(value):
            _fail(f"provenance.{fact.name}", value, f"{_word(fact.kind)} or null")
        if fact.kind is int and value < 0:
            _fail(f"provenance.{fact.name}", value, "0 or more")
    for name, value, hint in (
        ("leafs", capture.leaf_ids, tuple[int, ...]),
        ("split_capacities", capture.split_capacities, tuple[int, ...]),
        ("dropped_pins", capture.dropped_pins, tuple[pair, ...]),
        ("left_backend", capture.left_backend, int),
        ("optimizers", capture.optimizers, int),
        ("hash_set_used", outcome.hash_set_used, int),
        ("source", capture.source, str), ("planner", plan.planner, str),
    ):  # fmt: skip
        if not _fits(hint)(value):
            _fail(name, value, str(_word(hint)))


def _all_fit(hint: Any, column: Collection[Any], least: int | None) -> bool:
    """Whether all values are of a type, and none is below `least`. A quick answer: after False the
    values are looked at one by one."""
    kinds = set(map(type, column))
    if hint is int and kinds == {int}:
        low = min(column)
        return low in _INT64 and max(column) in _INT64 and (least is None or low >= least)
    if hint is str and kinds == {str}:
        return _is_text("".join(set(column)))
    if hint is bool:
        return kinds == {bool}
    items = get_args(hint)
    if kinds == {tuple} and items[-1:] == (...,):
        within = list(chain.from_iterable(column))
        return not within or _all_fit(items[0], within, least)
    return False


@cache
def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def _word(hint: Any) -> str:
    """What a type is called in JSON."""
    plain = {int: "an integer of 64 bits", str: "text", bool: "true or false"}
    if hint in plain:
        return plain[hint]
    if type(None) in get_args(hint):
        return f"{_word(get_args(hint)[0])} or null"
    of = {_word(a).partition(" of ")[0] for a in get_args(hint) if a is not Ellipsis}
    return f"a list, each item {' or '.join(sorted(of))}"


@cache
def _fits(hint: Any) -> Callable[[Any], bool]:
    """A function that tells whether a value is of a type. True is not a number here."""
    if hint is int:
        return lambda v: type(v) is int and v in _INT64
    if hint is str:
        return _is_text
    if hint is bool:
        return lambda v: type(v) is bool
    items = get_args(hint)
    if type(None) in items:
        number = _fits(items[0])
        return lambda v: v is None or number(v)
    each = [_fits(item) for item in items if item is not Ellipsis]
    if items[-1] is Ellipsis:
        return lambda v: type(v) is tuple and all(map(each[0], v))
    return lambda v: (
        type(v) is tuple and len(v) == len(each) and all(f(x) for f, x in zip(each, v, strict=True))
    )


def _is_text(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _flat(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


# --- numbers


def _in(what: str, value: int, low: int, end: int) -> None:
    if not low <= value < end:
        _fail(what, value, f"{low} to {end - 1}" if end > low else "none, because there are none")


def _each_in(
    field: str, rows: Sequence[TensorRecord], low: int, end: int, of: Sequence[Any] = ()
) -> None:
    """Fails for the first row whose `field`, a number or numbers, is not in the range. `of` are
    rows that have the field instead of the tensors."""
    column = [getattr(row, field) for row in of or rows]
    within = list(chain.from_iterable(column)) if column and type(column[0]) is tuple else column
    if not within or (low <= min(within) and max(within) < end):
        return
    for row, value in zip(rows, column, strict=True):
        for one in _flat(value):
            _in(f"{field} of '{row.name}'", one, low, end)


def _settings(plan: Planned) -> None:
    capture, settings = plan.capture, plan.settings
    if plan.planner not in PLANNERS:
        _fail("planner", plan.planner, f"one of {', '.join(PLANNERS)}")
    if capture.source not in SOURCES:
        _fail("source", capture.source, f"one of {', '.join(SOURCES)}")
    parse_version(settings.upstream)
    _in("settings.n_copies", settings.n_copies, 1, MAX_COPIES + 1)
    _in("settings.cur_copy", settings.cur_copy, 0, settings.n_copies)
    n = len(capture.backends)
    if not 1 <= n <= MAX_BACKENDS:
        _fail("the number of backends", n, f"1 to {MAX_BACKENDS}")
    _in("left_backend", capture.left_backend, 0, n)
    for i, room in enumerate(capture.split_capacities):
        _in(f"split_capacities[{i}]", room, 0, 1 << 31)
    least = 0 if _is_scheduler(plan) else -1  # a debug log has no buffer types
    for b in capture.backends:
        _in(f"buft of '{b.name}'", b.buft, least, len(capture.bufts))
    for i, buffer in enumerate(capture.buffers):
        _in(f"buffers[{i}].buft", buffer.buft, 0, len(capture.bufts))


def _is_scheduler(plan: Planned) -> bool:
    return plan.capture.source == "scheduler"


def _tensors(plan: Planned) -> None:
    capture, every = plan.capture, plan.tensors
    n, n_backends = len(capture.tensors), len(capture.backends)
    if [t.id for t in every] != list(range(len(every))):
        raise ValueError(f"its tensors are not numbered 0 to {len(every) - 1}")
    ranks = {NODE: 0, LEAF: 1, OTHER: 1, COPY: 2}
    for t in every:
        if t.kind not in ranks:
            _fail(f"kind of '{t.name}'", t.kind, f"one of {', '.join(ranks)}")
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
        if len(t.src) > _MAX_SRC:
            _fail(f"src of '{t.name}'", t.src, f"at most {_MAX_SRC} ids")
    _each_in("src", every, -1, n)
    _each_in("view_src", every, -1, n)
    _each_in("buffer", every, -1, len(capture.buffers))
    _each_in("pin", every, -1, n_backends)
    for pin in capture.pins:
        _in("a tensor in pins", pin.tensor, 0, n)
    for id, backend in capture.dropped_pins:
        _in("a tensor in dropped_pins", id, 0, n)
        _in("a backend in dropped_pins", backend, 0, n_backends)


_MAX_SRC = 16  # GGML_MAX_SRC is 10


def _answers(plan: Planned) -> None:
    """Checks that sets of backends contain only backends of the plan."""
    end = 1 << len(plan.backends)
    _each_in("supports", plan.tensors, 0, end)
    _each_in("offload", plan.tensors, 0, end)
    for buft in plan.capture.bufts:
        _in(f"readers of '{buft.name}'", buft.readers, 0, end)
    for i, refusal in enumerate(plan.capture.refusals or ()):
        _in(f"refusals[{i}].tensor", refusal.tensor, 0, len(plan.capture.tensors))
        _in(f"refusals[{i}].backend", refusal.backend, 0, len(plan.backends))
        _in(f"refusals[{i}].srcs", refusal.srcs, NOT_ON_RECORD, 1 << _MAX_SRC)
        if plan.tensors[refusal.tensor].supports >> refusal.backend & 1:
            _fail(f"refusals[{i}]", refusal.tensor, "an op that the backend does not support")


def _placements(plan: Planned) -> None:
    n, n_backends = len(plan.capture.tensors), len(plan.backends)
    whole = _is_scheduler(plan)
    n_passes = len(PASS_NAMES)
    told = any(placed.passes for placed in plan.outcome.placements[plan.capture.n_nodes :])
    placements = plan.outcome.placements
    _each_in("passes", plan.tensors, -1, n_backends, placements)
    _each_in("planned_src", plan.tensors, -1, len(plan.tensors), placements)
    for t, placed in zip(plan.tensors, placements, strict=True):
        who = f"'{t.name}'"
        needed = whole if t.kind == NODE else t.kind == COPY
        _in(f"backend of {who}", placed.backend, 0 if needed else -1, n_backends)
        if t.kind == LEAF and not told:  # a file of schema 2
            _count_passes(who, placed.passes, 0)
        else:
            placed_by_passes = whole and t.kind in (NODE, LEAF)
            _count_passes(who, placed.passes, n_passes if placed_by_passes else 0)
        weight = causes.WEIGHT
        if causes.is_of(weight, placed.cause) and causes.source_of(weight, placed.cause) < 0:
            _fail(f"cause of {who}", placed.cause, f"{weight.code} and the number of a source")
        low, end = (0, n) if t.kind == COPY else (-1, 0)
        _in(f"copy_of of {who}", placed.copy_of, low, end)
        _in(f"copy_index of {who}", placed.copy_index, low, plan.settings.n_copies if end else 0)


def _count_passes(who: str, passes: tuple[int, ...], expected: int) -> None:
    if len(passes) != expected:
        _fail(f"passes of {who}", passes, f"{expected} backends")


def _splits(plan: Planned) -> None:
    n, at = plan.capture.n_nodes, 0
    for i, split in enumerate(plan.outcome.splits):
        _in(f"splits[{i}].backend", split.backend, 0, len(plan.backends))
        if split.start != at or not split.start <= split.end <= n:
            raise ValueError(
                f"splits[{i}] is nodes {split.start} to {split.end}, expected it to begin at {at} "
                f"and end at {n} or before"
            )
        at = split.end
        for source, copy in split.inputs:
            _in(f"inputs of splits[{i}]", source, 0, len(plan.capture.tensors))
            _in(f"inputs of splits[{i}]", copy, len(plan.capture.tensors), len(plan.tensors))
    if at != n:
        raise ValueError(f"its splits end at node {at} of {n}")


def _optimized(plan: Planned) -> None:
    _in("optimizers", plan.capture.optimizers, 0, 1 << len(plan.backends))
    for i, answer in enumerate(plan.capture.optimized):
        what = f"optimized[{i}]"
        _in(f"{what}.backend", answer.backend, 0, len(plan.backends))
        _in(f"{what}.start", answer.start, 0, answer.end + 1)
        _in(f"{what}.end", answer.end, 0, plan.capture.n_nodes + 1)
        if answer.order and sorted(answer.order) != list(range(answer.start, answer.end)):
            _fail(f"{what}.order", answer.order, f"{answer.start} to {answer.end - 1}, each once")
        for tensor, until in answer.alloc_deps:
            _in(f"{what}.alloc_deps", tensor, 0, len(plan.tensors))
            _in(f"{what}.alloc_deps", until, answer.start, answer.end)


def _cpu(plan: Planned) -> None:
    n = plan.capture.n_nodes
    for i, record in enumerate(plan.capture.cpu):
        for id in (record.node, *record.fused):
            _in(f"cpu[{i}]", id, 0, n)


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

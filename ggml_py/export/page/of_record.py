"""The page's data for a record or a run: its plans as a list, and what ran when.

A page has a bounded size. Not everything of a long record is in it, and it says what is not.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from ...cost.machine import Machine
from ...cost.time_difference import known_cost
from ...trace.names import TOKEN_INPUTS, counted
from ...trace.planned import Planned
from ...trace.recorded import (
    COMPUTE,
    COPY,
    DOUBT,
    MEASURED,
    NODES,
    NOT_KNOWN,
    ComputeRun,
    Recorded,
)
from ..palette import lanes
from ..predicted_times import predicted_times
from ..run_times import median_of, times
from ..timeline import GIVE, SCHEDULER, Slice, of_computes
from . import columns
from .interning import Table

MOST_NODES = 10_000  # of all plans that are drawn, if it is more than one
MOST_SLICES = 6_000  # of all computes with their splits, if it is more than one
MOST_COMPUTES = 10_000  # of a process
_SLOWEST = 1_000  # of these


class PagePlan(NamedTuple):
    """A plan of a record or run, for the list."""

    number: int
    label: str  # "decode of 1"
    n_tokens: int | None
    n_nodes: int
    n_splits: int
    n_copies: int
    copy_bytes: int
    computed: int
    at_least: bool  # whether it may have been computed more often
    when: int  # ns since its process began; -1: not known
    difference: str  # from the plan before it; of several plans a verdict, beside the first
    plan: Callable[[], Planned]  # raises ValueError if it is damaged
    beside: Beside | None = None  # only of several plans, which nobody computed


class Beside(NamedTuple):
    """What a plan of several takes and needs."""

    ns: int  # predicted; -1: not known
    known_by: str
    memory: tuple[tuple[str, int, int | None], ...]  # of each device: name, needed, free


class PageProcess(NamedTuple):
    """A process of a record; a run has one."""

    name: str  # "llama-bench[4711]"
    about: tuple[str, ...]
    plans: tuple[PagePlan, ...]
    run: Recorded | None = None
    numbers: tuple[int, ...] = ()  # of the run's plans, in the list


class PageRecord(NamedTuple):
    """The content of the page of a record, a run or several plans."""

    kind: str  # "Record", "Run" or "3 plans"
    programs: tuple[PageProcess, ...]
    notes: tuple[str, ...] = ()  # what is wrong with it
    file: str = ""  # for command lines; "" if there is none


def of_run(run: Recorded) -> PageRecord:
    """The only program of a run, whose plans have their indices as numbers. Raises ValueError if no
    compute has a known plan."""
    run.most_computed()
    plans = tuple(_listed(run, i) for i in range(len(run.plans)))
    return PageRecord("Run", (PageProcess("", (), plans, run, tuple(range(len(plans)))),))


def _listed(run: Recorded, i: int) -> PagePlan:
    plan, computes = run.plans[i], run.by_plan.get(i, ())
    first = min((event.start for event in run.events), default=0)
    tokens = _tokens(plan)
    label = "plan" if tokens is None else f"{'decode' if tokens == 1 else 'prompt'} of {tokens}"
    return PagePlan(
        i, label, tokens, len(plan.nodes), plan.n_splits, plan.n_inputs,
        sum(one.nbytes for one in plan.copied), len(computes), False,
        computes[0].event.start - first if computes else -1, "", lambda: plan,
    )  # fmt: skip


def _tokens(plan: Planned) -> int | None:
    """Tokens of the batch, by an input with a known name."""
    for name in TOKEN_INPUTS:
        for t in plan.leafs:
            if t.name == name:  # ids are in one row; embeddings have a row for each token
                return t.ne[0 if t.type == "i32" else 1]
    return None


def data(given: PageRecord, machine: Machine | None = None) -> dict[str, Any]:
    """The list, the plans that are drawn, and the timelines. Raises ValueError if no plan can be
    read."""
    rows, drawn, damaged, first = _drawn(given, machine)
    if first is None:
        why = next(iter(damaged.values()), "it has no plan")
        raise ValueError(f"there is no plan to draw: {why}")
    shown = next(iter(drawn))
    label = next(one.label for one in rows if one.number == shown)
    names = ", ".join(dict.fromkeys(program.name for program in given.programs if program.name))
    return {
        "title": f"{given.kind} of {names and f'{names}: '}{what(first)}",
        "headline": f"Plan {shown}, {label}: {drawn[shown]['headline']}",
        "file": given.file,
        "shown": shown,
        "notes": [*given.notes, *_left_out(rows, drawn, damaged)],
        "drawn": drawn,
        "programs": [
            {
                "name": program.name,
                "about": [*program.about, *_doubts(program)],
                "plans": [_row(one, damaged) for one in program.plans],
                "run": None if program.run is None else _run(program, program.run),
            }
            for program in given.programs
        ],
        "command": f"ggml-py view {shlex.quote(given.file)} --plan N --open" if given.file else "",
    }


def what(plan: Planned) -> str:
    """What a page is of: the model, and the backends."""
    of = plan.provenance.model_text or counted(len(plan.nodes), "node")
    return f"{of} on {' + '.join(b.name for b in plan.backends)}"


def _row(one: PagePlan, damaged: Mapping[int, str]) -> dict[str, Any]:
    told = one._asdict()
    del told["plan"]
    beside = one.beside and one.beside._asdict()
    return told | {"damaged": damaged.get(one.number, ""), "beside": beside}


def _spent(program: PageProcess) -> dict[int, int]:
    """By number of a plan: the ns of all its computes."""
    if program.run is None:
        return {}
    by_plan = program.run.by_plan
    return {program.numbers[i]: sum(c.ns for c in by_plan[i]) for i in by_plan}


def _drawn(
    given: PageRecord, machine: Machine | None
) -> tuple[list[PagePlan], dict[int, dict[str, Any]], dict[int, str], Planned | None]:
    """All plans, in order of time or of computes. By number: the data of plans that are drawn, as
    long as there is room, and the reason where a plan cannot be read. The first drawn plan."""
    order: list[tuple[tuple[int, ...], PagePlan, PageProcess]] = []
    for program in given.programs:
        spent = _spent(program)
        for one in program.plans:
            rank = (-spent.get(one.number, 0), -one.computed, one.number)
            order.append((rank, one, program))
    order.sort(key=lambda row: row[0])
    drawn: dict[int, dict[str, Any]] = {}
    damaged: dict[int, str] = {}
    n_nodes, first = 0, None
    for _rank, one, program in order:
        if drawn and n_nodes + one.n_nodes > MOST_NODES:
            continue
        try:
            plan = one.plan()
        except ValueError as error:
            damaged[one.number] = str(error)
            continue
        n_nodes += one.n_nodes
        first = first or plan
        drawn[one.number] = _plan(plan, one.number, program, machine)
    return [one for _rank, one, _program in order], drawn, damaged, first


def _plan(
    plan: Planned, number: int, program: PageProcess, machine: Machine | None
) -> dict[str, Any]:
    cost = known_cost(plan, machine)
    predicted = None if cost is None else predicted_times(cost)
    run = program.run
    index = program.numbers.index(number) if number in program.numbers else -1
    measured = times(run, index) if run is not None and index in run.by_plan else None
    made = columns.data(plan, measured, None if measured else cost)
    if cost is not None and predicted is not None:
        made["predicted"] = {
            "total": predicted.total,
            "said": predicted.compute,
            "splits": [
                [record.backend, round(1e9 * split.start), round(1e9 * split.end)]
                for record, split in zip(plan.split_records, cost.splits, strict=True)
            ],
        }
    return made


def _left_out(
    rows: Sequence[PagePlan], drawn: Mapping[int, Any], damaged: Mapping[int, str]
) -> Iterator[str]:
    """A sentence for the plans that are listed but not drawn."""
    if n := len(rows) - len(drawn) - len(damaged):
        yield (
            f"{n} of {counted(len(rows), 'plan')} {'is' if n == 1 else 'are'} only listed: there is"
            f" room for {MOST_NODES:,} nodes, and the others "
            f"{'come first' if rows[0].beside else 'took more time or were computed more often'}"
        )


def _doubts(program: PageProcess) -> Iterator[str]:
    """What must be known to read its times."""
    run = program.run
    if run is None:
        return
    if run.per_op:
        yield "nodes were computed one by one, which takes longer than together"
    if run.lost:
        yield f"{counted(run.lost, 'event was', 'events were')} not kept, so times are missing"
    simulated = {
        device.name
        for plan in run.plans
        for device in plan.provenance.devices or ()
        if device.simulated
    }
    if simulated:
        names = ", ".join(sorted(simulated))
        yield f"{names}: simulated, so these are the times of a CPU that computed in its place"
    if unknown := sum(c.index < 0 for c in run.computes):
        yield f"{counted(unknown, 'compute')} without a plan that can be read"


# --- what ran when


def _run(program: PageProcess, run: Recorded) -> dict[str, Any]:
    chosen = _chosen(run)
    numbers = _kept(run.computes, {id(compute) for compute in chosen})
    kept = [run.computes[i] for i in numbers]
    kinds, strings = Table(), Table()
    slices, tracks = _slices(run, chosen, kinds, strings)
    place = {id(compute): i for i, compute in enumerate(kept)}
    starts = [c.event.start for c in kept]
    return {
        "n": len(run.computes),
        "number": numbers if len(kept) < len(run.computes) else None,
        "start": [b - a for a, b in zip([0, *starts], starts, strict=False)],
        "took": [c.ns for c in kept],
        "called": [c.event.ns for c in kept],
        "known": "".join(str(DOUBT.index(c.known)) for c in kept),
        "plan": [program.numbers[c.index] if c.index >= 0 else -1 for c in kept],
        "scheduler": [c.event.scheduler for c in kept],
        "stats": {program.numbers[i]: _stats(run.by_plan[i]) for i in run.by_plan},
        "slices": {place[id(compute)]: rows for compute, rows in slices},
        "tracks": tracks,
        "kinds": kinds.values(),
        "strings": strings.values(),
        "per_op": run.per_op,
    }


def _kept(computes: Sequence[ComputeRun], chosen: Collection[int]) -> list[int]:
    """The places of the chosen ones, the slowest, and others at equal distances, as far as there is
    room."""
    if len(computes) <= MOST_COMPUTES:
        return list(range(len(computes)))
    by_time = sorted(range(len(computes)), key=lambda i: -computes[i].ns)
    step = -(-len(computes) // (MOST_COMPUTES - _SLOWEST))
    kept = {*by_time[:_SLOWEST], *range(0, len(computes), step)}
    kept.update(i for i, compute in enumerate(computes) if id(compute) in chosen)
    return sorted(kept)


def _stats(computes: Sequence[ComputeRun]) -> dict[str, Any]:
    """Times of a plan's computes, in ns. `period` is from the begin of one to the next."""
    ended = [c for c in computes if c.known != NOT_KNOWN]
    took = sorted(c.ns for c in ended)
    periods = [
        b.event.start - a.event.start
        for a, b in pairwise(computes)
        if a.event.scheduler == b.event.scheduler and b.event.compute == a.event.compute + 1
    ]
    return {
        "n": len(computes),
        "unknown": len(computes) - len(ended),
        "bound": any(c.known != MEASURED for c in ended),
        "low": took[0] if took else -1,
        "median": median_of(computes).ns,
        "high": took[-1] if took else -1,
        "total": sum(c.ns for c in computes),
        "period": round(median(periods)) if len(periods) > 1 else -1,
    }


def _chosen(run: Recorded) -> list[ComputeRun]:
    """The computes whose splits are shown: of each plan the median and the slowest one, then the
    first and the last, as far as there is room."""
    by_time = sorted(run.by_plan.values(), key=lambda own: -sum(c.ns for c in own))
    wanted = [
        *(pick for own in by_time for pick in (median_of(own), max(own, key=lambda c: c.ns))),
        *(pick for own in by_time for pick in (own[0], own[-1])),
    ]
    found: dict[int, ComputeRun] = {}
    n = 0
    for compute in wanted:
        size = len(compute.events)
        if id(compute) not in found and (not found or n + size <= MOST_SLICES):
            found[id(compute)] = compute
            n += size
    return sorted(found.values(), key=lambda c: c.event.start)


def _slices(
    run: Recorded, computes: Sequence[ComputeRun], kinds: Table, strings: Table
) -> tuple[list[tuple[ComputeRun, list[Any]]], list[Any]]:
    """The slices of each compute, each with its time since the one before, and the tracks."""
    timeline = of_computes(run, computes)
    number = {track: i for i, track in enumerate(timeline.tracks)}
    found: list[tuple[ComputeRun, list[Any]]] = []
    rest, before = iter(computes), 0
    for one in timeline.slices:
        if one.what == COMPUTE:
            found.append((next(rest), []))
            before = found[-1][0].event.start
        found[-1][1].append(_slice(one, number[one.track], before, kinds, strings))
        before = one.start
    colors: dict[str, str] = {}
    for plan in run.plans:
        colors.update(zip((b.name for b in plan.backends), lanes(plan), strict=True))
    tracks = []
    for track in timeline.tracks:
        backend = track.name.removesuffix(" copies") if track.kind != SCHEDULER else ""
        tracks.append([track.scheduler, track.kind, track.name, colors.get(backend, "host")])
    return found, tracks


_WHAT = (COMPUTE, COPY, NODES, "wait", "event_record", "event_wait", GIVE)


def _slice(one: Slice, track: int, begin: int, kinds: Table, strings: Table) -> list[int]:
    """A row: a number in `kinds`, begin (ns after `begin`) and duration (ns). Nodes add the first
    index, the number of others and an upper bound of the time; a copy adds its name and bytes;
    anything else adds its name."""
    said = one.details
    names = [strings.number(said.get(key, "")) for key in ("from", "by")]
    kind = (track, _WHAT.index(one.what), DOUBT.index(one.known), said.get("split", -1), *names)
    row = [kinds.number(kind), one.start - begin, one.end - one.start]
    if one.what == NODES:
        first, last = said.get("nodes", [said.get("node", -1)] * 2)
        more = [last - first, one.most]
        return [*row, first, *(more if one.most >= 0 else more[:1] if last > first else ())]
    return [*row, strings.number(one.name), *([said["bytes"]] if one.what == COPY else ())]

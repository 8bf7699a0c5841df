"""A run, or a plan in computing order, as slices on tracks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..memory.plan_memory import memory_of
from ..trace.planned import Planned
from ..trace.recorded import (
    AT_MOST,
    COMPUTE,
    COPY,
    EVENT,
    MEASURED,
    NODES,
    NOT_KNOWN,
    QUEUE_WAIT,
    RECORD,
    WAIT,
    ComputeRun,
    CopyRun,
    Recorded,
    RunEvent,
)
from ..trace.units import with_bounds

SCHEDULER, COMPUTING, COPYING = "scheduler", "nodes", "copies"
GIVE = "give"
_STEP = 1000  # ns: the length of each node and copy where only the order is known


class Track(NamedTuple):
    """A line of the timeline. `backend` is -1 for the scheduler's own track."""

    scheduler: int
    kind: str  # SCHEDULER: computes and waits; COMPUTING; COPYING: into the backend
    backend: int
    name: str


class Slice(NamedTuple):
    """Something that took time. Slices of one track follow each other or are nested.

    `known` is "measured" in most cases. Nodes of an asynchronous backend may have "at most": their
    name gives an upper bound of their time. They have "not known" if nobody waited for them. Copies
    that were only handed over have "not known", too.
    """

    track: Track
    name: str
    what: str  # an event's `kind`, or "give": nodes handed to an asynchronous backend
    start: int  # ns
    end: int  # ns
    details: dict[str, Any]
    known: str = MEASURED
    # ns: what nodes took at most. The slice may be shorter, as it ends where the next ones began.
    most: int = -1


class Flow(NamedTuple):
    """The path of a copied tensor, as indices of slices: the nodes that made it (none for an
    input), the copy, the nodes that read it."""

    name: str
    slices: tuple[int, ...]


class Level(NamedTuple):
    """Bytes alive in a compute buffer from `start` on (`PlanMemory.live`)."""

    scheduler: int
    buft: str
    start: int  # ns
    nbytes: int


class Timeline(NamedTuple):
    """A whole timeline. `measured` is false if times show only the order."""

    tracks: tuple[Track, ...]
    slices: tuple[Slice, ...]
    flows: tuple[Flow, ...]
    levels: tuple[Level, ...]
    measured: bool


class _Rows:
    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.flows: list[Flow] = []
        self.levels: list[Level] = []
        self.tracks: dict[Track, None] = {}

    def add(self, *row: Any) -> int:
        self.slices.append(Slice(*row))
        self.tracks.setdefault(row[0])
        return len(self.slices) - 1

    def timeline(self, measured: bool) -> Timeline:
        order = (SCHEDULER, COPYING, COMPUTING)
        tracks = sorted(self.tracks, key=lambda t: (t.scheduler, t.backend, order.index(t.kind)))
        levels = sorted(self.levels, key=lambda level: level.start)  # backends overlap
        rows = (tuple(self.slices), tuple(self.flows), tuple(levels))
        return Timeline(tuple(tracks), *rows, measured)


def of_run(run: Recorded) -> Timeline:
    """The timeline of a run, as it was measured."""
    return of_computes(run, run.computes, [memory_of(plan).live for plan in run.plans])


def of_computes(
    run: Recorded,
    computes: Sequence[ComputeRun],
    live: Sequence[Sequence[Mapping[str, int]]] = (),
) -> Timeline:
    """The timeline of some of a run's computes, one after the other: each begins with the slice of
    the whole compute. `live` is, by plan, the bytes alive at each node; without it there are no
    levels."""
    rows = _Rows()
    begins: dict[tuple[int, int], list[int]] = {}  # of nodes, by scheduler and backend
    for event in run.events:
        if event.kind == NODES:
            begins.setdefault((event.scheduler, event.backend), []).append(event.start)
    for compute in computes:
        _compute(rows, compute, live[compute.index] if live and compute.index >= 0 else [], begins)
    return rows.timeline(measured=True)


def of_plan(plan: Planned) -> Timeline:
    """The timeline of a plan in the order it would run. Every copy and node takes 1 µs."""
    rows, now = _Rows(), 0
    live = memory_of(plan).live
    made: dict[int, int] = {}  # the slice of each node
    at = {node.id: i for i, node in enumerate(plan.order or plan.nodes)}
    names = [b.name for b in plan.backends]
    for split, record in zip(plan.splits, plan.split_records, strict=True):
        on = record.backend
        copying, computing = (_track(0, kind, on, names[on]) for kind in (COPYING, COMPUTING))
        waiting = []  # copies, for the split's first node
        for given in split.inputs:
            details = {"bytes": given.nbytes, "from": given.src_backend, "split": split.index}
            details = with_bounds(details)
            slice_ = rows.add(copying, given.tensor.name, COPY, now, now + _STEP, details)
            tensor = given.tensor.record
            source = made.get(tensor.view_src if tensor.view_src >= 0 else tensor.id)
            waiting.append((given.tensor.name, [slice_] if source is None else [source, slice_]))
            now += _STEP
        for node in split.order or split.nodes:
            if node.is_view_op:
                continue
            details = _node_details(plan, node.id)
            made[node.id] = rows.add(
                computing, node.name or node.op, NODES, now, now + _STEP, details
            )
            rows.flows += [Flow(name, (*slices, made[node.id])) for name, slices in waiting]
            waiting = []
            if live:
                rows.levels += [Level(0, buft, now, n) for buft, n in live[at[node.id]].items()]
            now += _STEP
    return rows.timeline(measured=False)


def _track(scheduler: int, kind: str, backend: int, name: str) -> Track:
    return Track(scheduler, kind, backend, f"{name} copies" if kind == COPYING else name)


def _compute(
    rows: _Rows,
    compute: ComputeRun,
    live: Sequence[Mapping[str, int]],
    begins: dict[tuple[int, int], list[int]],
) -> None:
    event, plan = compute.event, compute.plan
    own = Track(event.scheduler, SCHEDULER, -1, "scheduler")
    backends = compute.run.schedulers[event.scheduler].backends
    title = f"compute {event.compute}" + (f" (copy {event.copy})" if event.copy else "")
    rows.add(own, title, COMPUTE, event.start, event.end, {"splits": len(compute.splits)})
    for _i, each in compute.events:
        if each.kind in (WAIT, RECORD, QUEUE_WAIT):
            name, said = _sync(each, backends)
            rows.add(own, name, each.kind, each.start, each.end, said)
    made: dict[int, list[int]] = {}  # by the id of a node: its slices
    for split in compute.splits:
        copies = [(copy, _copy(rows, compute, copy)) for copy in split.copies]
        for i, nodes in enumerate(split.nodes):
            others = begins[event.scheduler, nodes.backend]
            next_ = bisect_right(others, nodes.start)  # queued work takes turns on its track
            until = min([split.done[i], *others[next_ : next_ + 1]])
            track = _track(event.scheduler, COMPUTING, nodes.backend, split.backend)
            details: dict[str, Any] = {"split": split.index, "nodes": [nodes.first, nodes.last - 1]}
            given = compute.given(nodes) or ()
            name = f"split {split.index}"
            if plan is not None and len(given) == 1:
                (node,) = given
                name, details = node.name or node.op, _node_details(plan, node.id)
            if fused := compute._fused(nodes):
                details["fused"] = [" + ".join(n.name or n.op for n in group) for group in fused]
            known, bound = split.known[i], -1
            if known != MEASURED:  # the caller's part is known
                rows.add(own, f"give {name} to {split.backend}", GIVE, nodes.start, nodes.end, {})
                bound = split.done[i] - nodes.start if known == AT_MOST else -1
                took = f"at most {bound / 1000:.1f} µs" if bound >= 0 else "an unknown time"
                details["took"] = took  # the slice also ends where the next nodes were given
                name = f"{name}, {took}"
            at = rows.add(track, name, NODES, nodes.start, until, details, known, bound)
            for copy, slice_ in copies if i == 0 else ():
                rows.flows.append(Flow(copy.name, (*_made(made, copy), slice_, at)))
            for node in given:
                made.setdefault(node.id, []).append(at)
            _levels(rows, event.scheduler, live, nodes.first, nodes.last, nodes.start, until)


def _copy(rows: _Rows, compute: ComputeRun, copy: CopyRun) -> int:
    event = copy.event
    name = compute.run.schedulers[event.scheduler].backends[event.backend]
    track = _track(event.scheduler, COPYING, event.backend, name)
    details: dict[str, Any] = {"bytes": event.nbytes, "split": event.split}
    if copy.input is not None:
        details["from"] = copy.input.src_backend
    if copy.how:
        details["by"] = copy.how
    # Waits come first and are not copying: they are on the scheduler's own track.
    start = max((wait.end for wait in copy.waits), default=event.start)
    known = NOT_KNOWN if copy.queued else MEASURED
    title = f"{copy.name}, handed over" if copy.queued else copy.name
    return rows.add(track, title, COPY, start, event.end, details, known)


def _sync(event: RunEvent, backends: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """A wait or an event, in words."""
    backend = backends[event.backend] if event.backend >= 0 else "?"
    details = {"how": event.how} if event.how else {}
    of = f"event {event.copy} of {backend}"
    if event.kind == RECORD:
        return f"record {of}", {"in the queue of": backends[event.by]}
    if event.kind == QUEUE_WAIT:
        return f"{backends[event.by]} will wait for {of}", {"in the queue of": backends[event.by]}
    if event.how == EVENT:
        return f"wait for {of}", details
    return f"wait for {backend}" if event.backend >= 0 else "wait", details


def _made(made: Mapping[int, Sequence[int]], copy: CopyRun) -> Sequence[int]:
    """The slices of the nodes that made what is copied; none for an input."""
    if copy.input is None:
        return ()
    tensor = copy.input.tensor.record
    id_ = tensor.view_src if tensor.view_src >= 0 else tensor.id
    return made.get(id_, ())


def _node_details(plan: Planned, id_: int) -> dict[str, Any]:
    node = plan.nodes[id_]
    record = node.record
    return {
        "op": record.op_desc, "type": node.type, "ne": list(node.ne), "node": id_,
        "cause": str(node.cause), "sources": [s.name for s in node.srcs],
    }  # fmt: skip


def _levels(
    rows: _Rows,
    scheduler: int,
    live: Sequence[Mapping[str, int]],
    first: int,
    last: int,
    start: int,
    end: int,
) -> None:
    """The most bytes live while nodes [first, last) run, and the bytes live after them."""
    if not live:
        return
    most: dict[str, int] = {}
    for levels in live[first:last]:
        for buft, nbytes in levels.items():
            most[buft] = max(most.get(buft, 0), nbytes)
    rows.levels += [Level(scheduler, buft, start, n) for buft, n in most.items()]
    rows.levels += [Level(scheduler, buft, end, n) for buft, n in live[last - 1].items()]

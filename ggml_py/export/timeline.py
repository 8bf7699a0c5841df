"""A run, or a plan in computing order, as slices on tracks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from ..cost.machine import Machine
from ..cost.time_difference import known_cost
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
from .layers import layers
from .predicted_times import predicted_times
from .run_times import Times

SCHEDULER, COMPUTING, COPYING = "scheduler", "nodes", "copies"
LAYER, SPLIT = "layer", "split"  # slices around others
GIVE = "give"
STEP = 1000  # ns: the length of each node and copy where only the order is known


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
    # An event's `kind`, "give" (nodes handed to an asynchronous backend), LAYER or SPLIT.
    what: str
    start: int  # ns
    end: int  # ns
    details: dict[str, Any]
    known: str = MEASURED
    # ns: what nodes took at most. The slice may be shorter, as it ends where the next ones began.
    most: int = -1
    within: tuple[str, ...] = ()  # the names of its layer and its split
    compute: int = 0  # of a run: the place of its compute

    @property
    def told(self) -> str:
        """The name, with the doubt about its time. It is the same for the same node."""
        return self.name if self.known == MEASURED else f"{self.name} ({self.known})"


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
    """A whole timeline. `measured` is false if times show only the order, or were predicted."""

    tracks: tuple[Track, ...]
    slices: tuple[Slice, ...]
    flows: tuple[Flow, ...]
    levels: tuple[Level, ...]
    measured: bool
    predicted: str = ""  # the source of the predicted times

    @property
    def is_timed(self) -> bool:
        """Whether times are more than an order."""
        return self.measured or bool(self.predicted)

    @property
    def times(self) -> str:
        """What the times are."""
        if self.measured:
            return "measured"
        return self.predicted or "only the order: 1 µs for each node and copy"

    def nested(self) -> list[Slice]:
        """All slices, track by track. Before the nodes of a layer is a slice of the layer, before
        those of a split one of the split."""
        found: list[Slice] = []
        for track in self.tracks:
            around: list[int] = []  # in `found`
            mine = (one for one in self.slices if one.track == track)
            for one in sorted(mine, key=lambda one: one.start):
                names = [found[i].name for i in around]
                same = 0
                if around and found[around[0]].compute == one.compute:
                    pairs = takewhile(lambda p: p[0] == p[1], zip(names, one.within, strict=False))
                    same = len(list(pairs))
                del around[same:]
                for i in around:
                    found[i] = found[i]._replace(end=max(found[i].end, one.end))
                for depth in range(same, len(one.within)):
                    around.append(len(found))
                    what, name = (LAYER, SPLIT)[depth], one.within[depth]
                    found.append(one._replace(what=what, name=name, details={}, known=MEASURED))
                found.append(one)
        return found


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

    def timed(
        self,
        track: Track,
        name: str,
        what: str,
        start: int,
        ns: int,
        details: dict[str, Any],
        within: tuple[str, ...] = (),
    ) -> int:
        """A slice of a plan; -1 ns: its time is not known."""
        if ns >= 0:
            return self.add(track, name, what, start, start + ns, details, MEASURED, -1, within)
        details["took"] = "an unknown time"
        return self.add(track, name, what, start, start, details, NOT_KNOWN, -1, within)

    def timeline(self, measured: bool, predicted: str = "") -> Timeline:
        order = (SCHEDULER, COPYING, COMPUTING)
        tracks = sorted(self.tracks, key=lambda t: (t.scheduler, t.backend, order.index(t.kind)))
        levels = sorted(self.levels, key=lambda level: level.start)  # backends overlap
        rows = (tuple(self.slices), tuple(self.flows), tuple(levels))
        return Timeline(tuple(tracks), *rows, measured, predicted)


def timeline_of(source: Recorded | Planned, machine: Machine | None = None) -> Timeline:
    """The timeline of a run; of a plan with its predicted times on `machine`, without one those by
    data sheets. If these do not know all of the plan, it shows the order. Raises ValueError with
    `machine` for a plan without shapes."""
    if isinstance(source, Recorded):
        return of_run(source)
    cost = known_cost(source, machine)
    return of_plan(source, None if cost is None else predicted_times(cost))


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
    layers_of = [layers(plan) for plan in run.plans]
    for i, compute in enumerate(computes):
        known = compute.index >= 0
        alive = live[compute.index] if live and known else []
        _compute(rows, i, compute, alive, layers_of[compute.index] if known else [], begins)
    return rows.timeline(measured=True)


def of_plan(plan: Planned, times: Times | None = None) -> Timeline:
    """The timeline of a plan in the order it would run. Every copy and node takes 1 µs, or its
    time: 0 if that is not known."""
    rows, now, copied = _Rows(), 0, 0
    layer_of = layers(plan)
    live = memory_of(plan).live
    made: dict[int, int] = {}  # the slice of each node
    at = {node.id: i for i, node in enumerate(plan.order or plan.nodes)}
    names = [b.name for b in plan.backends]
    for split, record in zip(plan.splits, plan.split_records, strict=True):
        on = record.backend
        copying, computing = (_track(0, kind, on, names[on]) for kind in (COPYING, COMPUTING))
        waiting = []  # copies, for the split's first node
        begin = now
        for given in split.inputs:
            details = {"bytes": given.nbytes, "from": given.src_backend, "split": split.index}
            details = with_bounds(details)
            ns = STEP if times is None else times.copies[copied]
            copied += 1
            slice_ = rows.timed(copying, given.tensor.name, COPY, now, ns, details)
            tensor = given.tensor.record
            source = made.get(tensor.view_src if tensor.view_src >= 0 else tensor.id)
            waiting.append((given.tensor.name, [slice_] if source is None else [source, slice_]))
            now += max(ns, 0)
        for node in split.order or split.nodes:
            if node.is_view_op:
                continue
            details = _node_details(plan, node.id)
            ns = STEP if times is None else times.nodes[node.id]
            around = _layers_named([layer_of[node.id]]), f"split {split.index}"
            name = node.name or node.op
            made[node.id] = rows.timed(computing, name, NODES, now, ns, details, around)
            rows.flows += [Flow(name, (*slices, made[node.id])) for name, slices in waiting]
            waiting = []
            if live:
                rows.levels += [Level(0, buft, now, n) for buft, n in live[at[node.id]].items()]
            now += max(ns, 0)
        if times is not None:  # a split takes longer than its nodes: it is started
            now = max(now, begin + times.splits[split.index].ns)
    said = "" if times is None else f"predicted: {times.compute}"
    return rows.timeline(measured=False, predicted=said)


def _layers_named(numbers: Sequence[int | None]) -> str:
    known = sorted({number for number in numbers if number is not None})
    if not known:
        return "no layer"
    return f"layer {known[0]}" if len(known) == 1 else f"layers {known[0]} to {known[-1]}"


def _track(scheduler: int, kind: str, backend: int, name: str) -> Track:
    return Track(scheduler, kind, backend, f"{name} copies" if kind == COPYING else name)


def _compute(
    rows: _Rows,
    place: int,
    compute: ComputeRun,
    live: Sequence[Mapping[str, int]],
    layer_of: Sequence[int | None],
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
            within: tuple[str, ...] = ()
            if given:
                within = (_layers_named([layer_of[node.id] for node in given]),)
            if plan is not None and len(given) == 1:
                (node,) = given
                within = (*within, name)
                name, details = node.name or node.op, _node_details(plan, node.id)
            if fused := compute._fused(nodes):
                details["fused"] = [" + ".join(n.name or n.op for n in group) for group in fused]
            known, bound = split.known[i], -1
            if known != MEASURED:  # the caller's part is known
                rows.add(own, f"give {name} to {split.backend}", GIVE, nodes.start, nodes.end, {})
                bound = split.done[i] - nodes.start if known == AT_MOST else -1
                took = f"at most {bound / 1000:.1f} µs" if bound >= 0 else "an unknown time"
                details["took"] = took  # the slice also ends where the next nodes were given
            how = known, bound, within, place
            at = rows.add(track, name, NODES, nodes.start, until, details, *how)
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

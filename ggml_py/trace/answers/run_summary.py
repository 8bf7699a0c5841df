"""Where the time of a run went."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...typed import typed
from ..names import counted
from ..planned import format_bytes
from ..recorded import (
    AT_MOST,
    COMPUTE,
    COPY,
    DOUBT,
    MEASURED,
    NODES,
    NOT_KNOWN,
    QUEUE_WAIT,
    RECORD,
    WAIT,
    ComputeRun,
    Recorded,
    RunEvent,
)
from ..units import format_time

MOST = 10  # rows of each kind: those that took longest
_GAP = 1000  # ns: shorter gaps are the cost of reading the clock
_QUEUED = ", queued"


class Spent(NamedTuple):
    """One tensor's time over all computes."""

    name: str
    what: str  # its op; for a copy "CPU -> gpu0", with ", queued" if it was only handed over
    backend: str
    times: int
    ns: int  # in total
    nbytes: int  # copied in total

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth of copying it; 0 for a node."""
        return self.nbytes / self.ns * 1e9 if self.ns else 0.0


class Synced(NamedTuple):
    """Waits and events of one kind, over all computes."""

    what: str  # "synchronize", "event_synchronize", "event_record", "event_wait"; "wait": unknown
    backend: str  # that is waited for, or has the event
    copy: int  # of an event: which of the scheduler's n_copies it belongs to; else -1
    by: str  # the backend in whose queue it is; "" if the caller waits
    times: int
    ns: int  # of the caller's time

    def __str__(self) -> str:
        of = f"event {self.copy} of {self.backend}"
        said = {
            "event_record": f"{of} recorded in the queue of {self.by}",
            "event_wait": f"{of} waited for by the queue of {self.by}",
            "event_synchronize": f"{of} waited for",
            "synchronize": f"{self.backend} synchronised in full",
        }.get(self.what, f"{self.backend} waited for")
        return f"{said}, {self.times} times" if self.times > 1 else said


class Gap(NamedTuple):
    """Time in which no activity of the scheduler was recorded."""

    start: int  # ns
    ns: int
    after: str  # what ended when it began


@dataclass(frozen=True)
class RunSummary:
    """Where the nanoseconds of a run went. `str` of it is a report.

    `computing` is, by backend, the time from when nodes were given to it until they were done.
    Backends may compute at the same time, and while the scheduler waits or copies. `known` says how
    well that time is known: "measured", "at most" (the nodes were known to be done by then, so
    `idle_on` is at least the given time) or "not known" (nothing waited). `idle_on` is, by backend,
    the rest of the time until each of its scheduler's computes was done. `copying` is the time of
    copies that were made at once, without the waits in them. `handing_over` is the time it took to
    give copies to backends that make them later. `waiting` is the time of all waits; `synced` says
    what they were for. `between` is the time when no scheduler computed or waited: the caller's own
    work, and reading the plans of new graphs. `idle` is the time within computes in which nothing
    was recorded, and `gaps` are its longest parts. `idles` is `idle_on` by the nodes after which a
    backend had nothing to do.
    """

    n_computes: int
    n_events: int
    lost: int
    wall: int
    between: int
    computing: dict[str, int]
    known: dict[str, str]
    idle_on: dict[str, int]
    copying: int
    handing_over: int
    waiting: int
    idle: int
    n_copies: int
    copied: int  # bytes
    queued: int  # the part of `copied` that asynchronous backends took to copy later
    memcpy: float  # bytes per second
    per_op: bool
    nodes: tuple[Spent, ...]
    ops: tuple[Spent, ...]
    copies: tuple[Spent, ...]
    gaps: tuple[Gap, ...]
    idles: tuple[Spent, ...]
    copy_bandwidth: float  # bytes per second of all copies except queued ones, without waits
    synced: tuple[Synced, ...]
    copied_how: dict[str, int]  # number of copies, by `RunEvent.how`
    fused: dict[str, int]  # how often CPUs fused nodes, by their ops: "RMS_NORM + MUL"

    def __repr__(self) -> str:
        return f"<RunSummary: {self.headline()}>"

    def headline(self) -> str:
        """One line."""
        words = {MEASURED: "", AT_MOST: "at most ", NOT_KNOWN: "not known, from "}
        times = ", ".join(
            f"{name} {words[self.known[name]]}{_time(ns)}" for name, ns in self.computing.items()
        )
        n_copies = counted(self.n_copies, "copy", "copies")
        n_computes = counted(self.n_computes, "compute")
        copies = f"{n_copies} {_time(self.copying)} ({format_bytes(self.copied)})"
        marked = ", nodes one by one (slower than they run together)" if self.per_op else ""
        return (
            f"{n_computes} in {_time(self.wall)}{marked}: {times or 'nothing'}; "
            f"{copies}; waits {_time(self.waiting)}"
        )

    def as_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        data = dict(vars(self))
        for name in ("nodes", "ops", "copies", "gaps", "idles", "synced"):
            data[name] = [row._asdict() for row in data[name]]
        return data

    def __str__(self) -> str:
        whole = max(self.wall, 1)
        rows = []
        for name, ns in self.computing.items():
            known = self.known[name]
            more = "" if known == MEASURED else f", {known}"
            rows.append((f"computing on {name}{more}", ns))
            least = ", at least" if known == AT_MOST else more
            rows.append((f"  idle meanwhile{least}", self.idle_on[name]))
        rows += [("copying", self.copying)]
        if self.handing_over:
            rows += [("handing copies over", self.handing_over)]
        rows += [("waiting", self.waiting), ("between", self.between)]
        rows += [("idle within computes", self.idle)]
        width = max(24, *(len(what) for what, _ns in rows))
        lines = [self.headline()]
        lines += [f"  {what:{width}} {_time(ns):>10} {ns / whole:6.1%}" for what, ns in rows]
        if self.copy_bandwidth:
            beside = ""
            if self.memcpy:  # a record of another program does not have it
                share = self.copy_bandwidth / self.memcpy
                beside = f", {share:.0%} of a plain memcpy here ({format_bytes(self.memcpy)}/s)"
            lines.append(f"  copies reach {format_bytes(self.copy_bandwidth)}/s{beside}")
        if self.queued:
            lines.append(
                f"  {format_bytes(self.queued)} more were handed over to backends that copy later"
            )
        if self.copied_how.keys() - {""}:
            each = ", ".join(f"{n} {how or 'not known'}" for how, n in self.copied_how.items())
            lines.append(f"  copies by {each}")
        lines += [
            f"  fused by the CPU: {ops}, {counted(n, 'time')}" for ops, n in self.fused.items()
        ]
        if self.synced:
            lines.append("waits and events")
            lines += [f"  {_time(s.ns):>10} {s.ns / whole:6.1%}  {s}" for s in self.synced]
        tables = {
            "ops that took longest": self.ops,
            "nodes that took longest": self.nodes,
            "copies that took longest": self.copies,
            "longest idle, by backend": tuple(idle for idle in self.idles if idle.ns >= _GAP),
        }
        for title, spent in tables.items():
            if spent:
                lines.append(title)
                lines += [_spent(s, whole) for s in spent]
        gaps = [gap for gap in self.gaps if gap.ns >= _GAP]
        if gaps:
            lines.append("longest gaps")
            lines += [f"  {_time(g.ns):>10}  after {g.after}" for g in gaps]
        if self.lost:
            lost = counted(self.lost, "event was", "events were")
            lines.append(f"{lost} not kept: record with a larger max_events")
        return "\n".join(lines)


@typed
def summarize(run: Recorded) -> RunSummary:
    """See `Run.summary`."""
    nodes: dict[tuple[str, ...], list[int]] = {}
    ops: dict[tuple[str, ...], list[int]] = {}
    copies: dict[tuple[str, ...], list[int]] = {}
    copying = handing_over = queued = 0
    for compute in run.computes:
        for split in compute.splits:
            for copy in split.copies:
                took, nbytes = copy.event.ns - copy.waited, copy.event.nbytes
                copying += 0 if copy.queued else took
                handing_over += took if copy.queued else 0
                queued += nbytes if copy.queued else 0
                source = copy.input.src_backend if copy.input else "?"
                what = f"{source} -> {split.backend}{_QUEUED if copy.queued else ''}"
                _add(copies, (copy.name, what, split.backend), took, nbytes)
        if run.per_op:
            for node in compute.nodes:
                backend = str(node.node.backend)
                _add(nodes, (node.node.name, node.node.record.op_desc, backend), node.ns)
                _add(ops, (node.node.record.op_desc, "", backend), node.ns)
    events = run.events
    copied = sum(e.nbytes for e in events)
    gaps = [gap for compute in run.computes for gap in _gaps(compute)]
    wall = max((e.end for e in events), default=0) - min((e.start for e in events), default=0)
    computing, known, idle_on, idles = _by_backend(run)
    return RunSummary(
        n_computes=len(run.computes),
        n_events=len(events),
        lost=run.lost,
        wall=wall,
        between=wall - _length((e.start, e.end) for e in events if e.kind in (COMPUTE, WAIT)),
        computing=computing,
        known=known,
        idle_on=idle_on,
        copying=copying,
        handing_over=handing_over,
        waiting=sum(e.ns for e in events if e.kind == WAIT),
        idle=sum(gap.ns for gap in gaps),
        n_copies=sum(e.kind == COPY for e in events),
        copied=copied,
        queued=queued,
        memcpy=run.memcpy,
        per_op=run.per_op,
        nodes=_longest(nodes),
        ops=_longest(ops),
        copies=_longest(copies),
        gaps=tuple(sorted(gaps, key=lambda gap: (-gap.ns, gap.start))[:MOST]),
        idles=_longest(idles),
        copy_bandwidth=(copied - queued) / copying * 1e9 if copying else 0.0,
        synced=_synced(run),
        fused=dict(_fused(run)),
        copied_how=dict(Counter(e.how for e in events if e.kind == COPY)),
    )


def _by_backend(
    run: Recorded,
) -> tuple[dict[str, int], dict[str, str], dict[str, int], dict[tuple[str, ...], list[int]]]:
    """By backend: the time with nodes, how well it is known, and the time without. Last, the time
    without nodes by what the backend had done before."""
    known: dict[str, str] = {}
    busy: dict[tuple[int, str], list[tuple[int, int, str]]] = {}
    spans: dict[int, list[tuple[int, int]]] = {}
    for compute in run.computes:
        scheduler = compute.event.scheduler
        spans.setdefault(scheduler, []).append((compute.event.start, compute.end))
        for split in compute.splits:
            worst = max((known.get(split.backend, MEASURED), *split.known), key=DOUBT.index)
            known[split.backend] = worst
            for event, done in zip(split.nodes, split.done, strict=True):
                what = f"after {_nodes(compute, event)}"
                busy.setdefault((scheduler, split.backend), []).append(
                    (event.start, max(event.start, done), what)
                )
    computing: dict[str, int] = defaultdict(int)
    idle_on: dict[str, int] = defaultdict(int)
    idles: dict[tuple[str, ...], list[int]] = {}
    for (scheduler, backend), given in busy.items():
        times = sorted(given)  # a damaged record may have computes twice
        computing[backend] += _length((start, end) for start, end, _what in times)
        idle_on[backend] += 0
        began = [start for start, _end, _what in times]
        for start, end in _merged(sorted(spans[scheduler])):
            at, after = start, "before its first nodes"
            within = times[bisect_left(began, start) : bisect_left(began, end)]
            for start_, done, what in (*within, (end, end, "")):
                if start_ > at:
                    idle_on[backend] += start_ - at
                    _add(idles, (after, "", backend), start_ - at)
                if done >= at:
                    at, after = done, what
    return dict(computing), known, dict(idle_on), idles


def _fused(run: Recorded) -> Counter[str]:
    return Counter(
        " + ".join(node.record.op_desc for node in group)
        for compute in run.computes
        for group in compute.fused
    )


def _synced(run: Recorded) -> tuple[Synced, ...]:
    """Waits and events by kind and backend, those that took the caller longest first."""
    found: dict[tuple[str, str, int, str], list[int]] = {}
    for event in run.events:
        if event.kind not in (WAIT, RECORD, QUEUE_WAIT):
            continue
        names = run.schedulers[event.scheduler].backends
        what = (event.how or "wait") if event.kind == WAIT else event.kind
        backend = names[event.backend] if event.backend >= 0 else "?"
        copy = event.copy if what.startswith("event") else -1
        by = names[event.by] if event.by >= 0 else ""
        row = found.setdefault((what, backend, copy, by), [0, 0])
        row[0] += 1
        row[1] += event.ns
    rows = [Synced(*key, *row) for key, row in found.items()]
    return tuple(sorted(rows, key=lambda s: (-s.ns, s[:4])))


def _merged(intervals: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Their union, in order."""
    at: tuple[int, int] | None = None
    for start, end in sorted(intervals):
        if at is None or start > at[1]:
            if at is not None:
                yield at
            at = start, end
        else:
            at = at[0], max(at[1], end)
    if at is not None:
        yield at


def _length(intervals: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in _merged(intervals))


def _add(
    table: dict[tuple[str, ...], list[int]], key: tuple[str, ...], ns: int, n: int = 0
) -> None:
    row = table.setdefault(key, [0, 0, 0])
    for i, value in enumerate((1, ns, n)):
        row[i] += value


def _longest(table: dict[tuple[str, ...], list[int]]) -> tuple[Spent, ...]:
    spent = [Spent(*key, *row) for key, row in table.items()]  # type: ignore[arg-type]
    return tuple(sorted(spent, key=lambda s: (-s.ns, s.name))[:MOST])


def _gaps(compute: ComputeRun) -> Iterable[Gap]:
    """The times within a compute in which nothing was recorded, until its call returned."""
    at, after, end = compute.event.start, "the start of the compute", compute.event.end
    inner = [e for _i, e in compute.events if e.kind != COMPUTE and e.start < end]
    for event in inner:
        if event.start > at:
            yield Gap(at, event.start - at, after)
        if event.end > at:
            at, after = event.end, _words(compute, event)
    if end > at:
        yield Gap(at, end - at, after)


def _nodes(compute: ComputeRun, event: RunEvent) -> str:
    """The numbers of the nodes, and the name of the last one."""
    last, given = event.last - 1, compute.given(event)
    which = f"node {last}" if event.first == last else f"nodes {event.first} to {last}"
    if given is None:
        return which
    if len(given) == 1:
        which = f"node {given[0].id}"
    return f"{which} ({given[-1].name})" if given[-1].name else which


def _words(compute: ComputeRun, event: RunEvent) -> str:
    backends = compute.run.schedulers[event.scheduler].backends
    backend = backends[event.backend] if event.backend >= 0 else "an unknown backend"
    if event.kind == NODES:
        return f"{_nodes(compute, event)} on {backend}"
    if event.kind == COPY:
        return f"the copy of input {event.input} of split {event.split} to {backend}"
    if event.kind == WAIT:
        return f"a wait for {backend}"
    return f"{event.kind} of event {event.copy} of {backend}"


def _spent(s: Spent, whole: int) -> str:
    moved = s.nbytes and not s.what.endswith(_QUEUED)
    rate = f", {format_bytes(s.bytes_per_s)}/s" if moved else ""
    where = f" on {s.backend}" if not s.nbytes else ""
    times = f", {s.times} times" if s.times > 1 else ""
    return (
        f"  {_time(s.ns):>10} {s.ns / whole:6.1%}  {f'{s.name} {s.what}'.rstrip()}{where}"
        f"{times}{rate}"
    )


def _time(ns: float) -> str:
    """Nanoseconds with a unit."""
    return format_time(ns * 1e-9)

"""Where the time of a run went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .plan import format_bytes
from .run import COMPUTE, COPY, NODES, WAIT, ComputeRun, Event, Run

MOST = 10  # of the dearest of each kind
_GAP = 1000  # ns: shorter ones are what reading the clock takes


class Spent(NamedTuple):
    """One tensor's time over all computes."""

    name: str
    what: str  # its op; of a copy "CPU -> gpu0"
    backend: str
    times: int
    ns: int  # of all of them together
    nbytes: int  # copied, together

    @property
    def bytes_per_s(self) -> float:
        """What copying it reached; 0 of a node."""
        return self.nbytes / self.ns * 1e9 if self.ns else 0.0


class Gap(NamedTuple):
    """Time in which the scheduler did nothing that was recorded."""

    start: int  # ns
    ns: int
    after: str  # what ended when it began


@dataclass(frozen=True)
class RunSummary:
    """Nanoseconds by what they went into. `str` of it is a report.

    `computing` is the time by backend between nodes given to it and those done (of asynchronous
    backends: known to be done); they may compute at the same time. `copying` is that of copies
    without the waits in them; `waiting` of all waits; `between` what passed from one compute to the
    next: the caller's own work. `gaps` are the longest of the times that are none of these.
    """

    n_computes: int
    n_events: int
    lost: int
    wall: int
    between: int
    computing: dict[str, int]
    copying: int
    waiting: int
    idle: int
    n_copies: int
    copied: int  # bytes
    memcpy: float  # bytes per second
    per_op: bool
    nodes: tuple[Spent, ...]
    ops: tuple[Spent, ...]
    copies: tuple[Spent, ...]
    gaps: tuple[Gap, ...]

    @property
    def copy_bandwidth(self) -> float:
        """Bytes per second of all copies, waits left out; 0 without any."""
        return self.copied / self.copying * 1e9 if self.copying else 0.0

    def headline(self) -> str:
        """One line."""
        times = ", ".join(f"{name} {_time(ns)}" for name, ns in self.computing.items())
        copies = f"{self.n_copies} copies {_time(self.copying)} ({format_bytes(self.copied)})"
        marked = ", nodes one by one" if self.per_op else ""
        return (
            f"{self.n_computes} computes in {_time(self.wall)}{marked}: {times or 'nothing'}; "
            f"{copies}; waits {_time(self.waiting)}"
        )

    def as_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        data = {**vars(self), "copy_bandwidth": self.copy_bandwidth}
        for name in ("nodes", "ops", "copies", "gaps"):
            data[name] = [row._asdict() for row in data[name]]
        return data

    def __str__(self) -> str:
        whole = max(self.wall, 1)
        rows = [(f"computing on {name}", ns) for name, ns in self.computing.items()]
        rows += [("copying", self.copying), ("waiting", self.waiting), ("between", self.between)]
        rows += [("idle within computes", self.idle)]
        lines = [self.headline()]
        lines += [f"  {what:24} {_time(ns):>10} {ns / whole:6.1%}" for what, ns in rows]
        if self.n_copies:
            share = self.copy_bandwidth / self.memcpy if self.memcpy else 0
            lines.append(
                f"  copies reach {format_bytes(self.copy_bandwidth)}/s, "
                f"{share:.0%} of a plain memcpy here ({format_bytes(self.memcpy)}/s)"
            )
        for title, spent in (("ops", self.ops), ("nodes", self.nodes), ("copies", self.copies)):
            if spent:
                lines.append(f"dearest {title}")
                lines += [_spent(s, whole) for s in spent]
        gaps = [gap for gap in self.gaps if gap.ns >= _GAP]
        if gaps:
            lines.append("longest gaps")
            lines += [f"  {_time(g.ns):>10}  after {g.after}" for g in gaps]
        if self.lost:
            lines.append(f"{self.lost} events were not kept: record with a larger max_events")
        return "\n".join(lines)


def summarize(run: Run) -> RunSummary:
    """See `Run.summary`."""
    computes = run.computes
    computing: dict[str, int] = defaultdict(int)
    nodes: dict[tuple[str, ...], list[int]] = {}
    ops: dict[tuple[str, ...], list[int]] = {}
    copies: dict[tuple[str, ...], list[int]] = {}
    waited_in_copies = 0
    for compute in computes:
        for split in compute.splits:
            computing[split.backend] += sum(e.ns for e in split.nodes)
            if split.nodes:  # what an asynchronous backend went on with
                computing[split.backend] += max(split.end - split.nodes[-1].end, 0)
            for copy in split.copies:
                waited_in_copies += copy.waited
                source = copy.input.src_backend if copy.input else "?"
                key = (copy.name, f"{source} -> {split.backend}", split.backend)
                _add(copies, key, copy.event.ns - copy.waited, copy.event.nbytes)
        if run.per_op:
            for node in compute.nodes:
                backend = str(node.node.backend)
                _add(nodes, (node.node.name, node.node.record.op_desc, backend), node.event.ns)
                _add(ops, (node.node.record.op_desc, "", backend), node.event.ns)
    events = run.events
    copying = sum(e.ns for e in events if e.kind == COPY) - waited_in_copies
    gaps = [gap for compute in computes for gap in _gaps(compute)]
    wall = max((e.end for e in events), default=0) - min((e.start for e in events), default=0)
    return RunSummary(
        n_computes=len(computes),
        n_events=len(events),
        lost=run.lost,
        wall=wall,
        between=_between(computes),
        computing=dict(computing),
        copying=copying,
        waiting=sum(e.ns for e in events if e.kind == WAIT),
        idle=sum(gap.ns for gap in gaps),
        n_copies=sum(e.kind == COPY for e in events),
        copied=sum(e.nbytes for e in events),
        memcpy=run.memcpy,
        per_op=run.per_op,
        nodes=_dearest(nodes),
        ops=_dearest(ops),
        copies=_dearest(copies),
        gaps=tuple(sorted(gaps, key=lambda g: (-g.ns, g.start))[:MOST]),
    )


def _add(
    table: dict[tuple[str, ...], list[int]], key: tuple[str, ...], ns: int, n: int = 0
) -> None:
    row = table.setdefault(key, [0, 0, 0])
    for i, value in enumerate((1, ns, n)):
        row[i] += value


def _dearest(table: dict[tuple[str, ...], list[int]]) -> tuple[Spent, ...]:
    spent = [Spent(*key, *row) for key, row in table.items()]  # type: ignore[arg-type]
    return tuple(sorted(spent, key=lambda s: (-s.ns, s.name))[:MOST])


def _between(computes: Iterable[ComputeRun]) -> int:
    """From the end of each compute of a scheduler to the start of its next."""
    total = 0
    ended: dict[int, int] = {}
    for compute in computes:
        scheduler = compute.event.scheduler
        total += max(compute.event.start - ended.get(scheduler, compute.event.start), 0)
        ended[scheduler] = compute.end
    return total


def _gaps(compute: ComputeRun) -> Iterable[Gap]:
    """The times of a compute in which nothing else was recorded."""
    at, after = compute.event.start, "the start of the compute"
    inner = [e for _i, e in compute.events if e.kind != COMPUTE]
    for event in inner:
        if event.start > at:
            yield Gap(at, event.start - at, after)
        if event.end > at:
            at, after = event.end, _words(compute, event)
    if compute.end > at:
        yield Gap(at, compute.end - at, after)


def _words(compute: ComputeRun, event: Event) -> str:
    backend = compute.run.schedulers[event.scheduler].backends[event.backend]
    if event.kind == NODES:
        return f"nodes {event.first} to {event.last - 1} on {backend}"
    if event.kind == COPY:
        return f"the copy of input {event.input} of split {event.split} to {backend}"
    return f"a wait for {backend}"


def _spent(s: Spent, whole: int) -> str:
    rate = f", {format_bytes(s.bytes_per_s)}/s" if s.nbytes else ""
    where = f" on {s.backend}" if not s.nbytes else ""
    times = f", {s.times} times" if s.times > 1 else ""
    return (
        f"  {_time(s.ns):>10} {s.ns / whole:6.1%}  {s.name} {s.what}{where}{times}{rate}".rstrip()
    )


def _time(ns: float) -> str:
    """Nanoseconds with a unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"

"""What a scheduler did while it computed: when, on which backend and for how long, with its plan.

Plain data, recorded by `ggml_py.Recording`. Times are nanoseconds of one clock. In a `Run` they
start at 0 with its first event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple

from ..typed import typed
from .fields import About
from .plan_tensor import PlanTensor
from .planned import Planned
from .split import SplitInput

if TYPE_CHECKING:
    from .answers.run_ends import Ends

COMPUTE, COPY, NODES, WAIT, RECORD, QUEUE_WAIT = EVENT_KINDS = (
    "compute", "copy", "nodes", "wait", "event_record", "event_wait"
)  # fmt: skip
MEASURED, AT_MOST, NOT_KNOWN = DOUBT = ("measured", "at most", "not known")
# How a wait or a copy was made, by upstream's name if it has one.
SYNCHRONIZE, EVENT, ASYNC, REFUSED, AT_ONCE, PARTS, CALLBACK = HOWS = (
    "synchronize", "event_synchronize", "cpy_tensor_async", "cpy_tensor_async refused",
    "tensor_copy", "set_tensor_async", "copy_callback",
)  # fmt: skip


class RunEvent(NamedTuple):
    """One thing that a scheduler did. -1 means none.

    The kinds: "compute" gives a whole graph to its backends. "copy" brings an input of a split to
    the split's backend, including the waits that this takes. "nodes" gives nodes to a backend: at
    the end of the event they are computed or, if the backend is asynchronous, queued. "wait" lasts
    until a backend is done. "event_record" puts an event into a backend's queue, behind the work it
    was given. "event_wait" makes a backend wait for an event, while the caller goes on.

    `how` says more. A wait is "synchronize" (for all work that the backend was given) or
    "event_synchronize" (for its event). A copy is "cpy_tensor_async" if the backend accepted it, to
    make it later, or "cpy_tensor_async refused" if it did not and the copy was made at once. A
    "tensor_copy" was made at once without asking a backend: it is an input set by the user, or the
    backend has no such function. "set_tensor_async" copies are made in parts, and "copy_callback"
    copies by the user's function. Files of older versions have "" here and no events.
    """

    kind: Annotated[str, About(one_of=EVENT_KINDS)]
    start: int  # ns
    end: int  # ns
    scheduler: int  # index into Run.schedulers
    compute: int  # which compute of its scheduler; for a wait after a compute, that one
    split: int
    # Index into the scheduler's backends: copied to, computing, waited for, or owner of the event.
    backend: int
    copy: int  # which of the scheduler's n_copies; for an event, the one it belongs to
    input: int  # copies: which of the split's inputs
    nbytes: Annotated[int, About("bytes")]  # copies: bytes moved
    first: int  # nodes: [first, last) of the graph
    last: int
    inside: int  # waits: index of the copy that they belong to
    how: Annotated[str, About(one_of=("", *HOWS), since=2)] = ""
    # events: the backend in whose queue they are recorded or waited for
    by: Annotated[int, About(since=2)] = -1

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end - self.start


class SchedulerRecord(NamedTuple):
    """One scheduler that was recorded."""

    backends: tuple[str, ...]
    asynchronous: tuple[bool, ...]  # whether the backend computes nodes after the call returned
    plans: tuple[int, ...]  # by compute, index into Run.plans; -1 if the plan could not be read
    lost: int = 0  # events that there was no room for


@dataclass(frozen=True)
class NodeRun:
    """One node's time in one compute of a run recorded with `per_op`."""

    node: PlanTensor
    event: RunEvent  # that gave it to its backend
    end: int  # ns: when it was done; on an asynchronous backend, when that was known
    known: str = "measured"  # or "at most", or "not known": nothing waited for it

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end - self.event.start


@dataclass(frozen=True)
class CopyRun:
    """One input of a split, brought to the split's backend."""

    input: SplitInput | None  # None if the plan is not known
    event: RunEvent
    waits: tuple[RunEvent, ...]  # waits for backends within the copy
    queued: bool = False  # handed to an asynchronous backend: the time is not that of the transfer
    # How it was made, as `RunEvent.how`; "" in a file of an older version.
    how: str = ""

    @property
    def waited(self) -> int:
        """The part of its time spent in waits, ns."""
        return sum(wait.ns for wait in self.waits)

    @property
    def name(self) -> str:
        """The name of the copied tensor."""
        return self.input.tensor.name if self.input else "?"


@dataclass(frozen=True)
class SplitRun:
    """One split in one compute: its copies in, then its nodes."""

    index: int
    backend: str
    copies: tuple[CopyRun, ...]
    nodes: tuple[RunEvent, ...]
    done: tuple[int, ...]  # ns, for each of `nodes`: when it was done, or known to be
    known: tuple[str, ...] = ()  # for each of `nodes`, as `NodeRun.known`

    @property
    def end(self) -> int:
        """When its nodes were done, ns; if it did not get to its nodes, when its copies were."""
        return max(self.done, default=max((c.event.end for c in self.copies), default=0))

    @property
    def start(self) -> int:
        """When its first copy or node began, ns."""
        return min(e.start for e in (*(c.event for c in self.copies), *self.nodes))


_WORK = (COPY, NODES)


@dataclass(frozen=True)
class ComputeRun:
    """One compute of one scheduler."""

    run: Recorded
    event: RunEvent
    events: tuple[tuple[int, RunEvent], ...]  # its events, with their indices in the run

    @property
    def index(self) -> int:
        """The index in `Run.plans` of the computed graph's plan; -1 if it could not be read."""
        return self.run.schedulers[self.event.scheduler].plans[self.event.compute]

    @property
    def plan(self) -> Planned | None:
        """The plan of the computed graph; None if it could not be read."""
        return None if self.index < 0 else self.run.plans[self.index]

    @cached_property
    def end(self) -> int:
        """When everything was known to be done, ns."""
        at, own = self.run._ends.at, [(i, e) for i, e in self.events if e.split >= 0]
        done = [at.get(i, e.end) if e.kind == NODES else e.end for i, e in own if e.kind in _WORK]
        return max((self.event.end, *done))

    @property
    def ns(self) -> int:
        """How long it took, until everything was known to be done."""
        return self.end - self.event.start

    @cached_property
    def known(self) -> str:
        """How well `ns` is known: "measured"; "at most" if its last nodes were done by then; "not
        known" if nothing waited for some of its nodes, so that it may have taken longer."""
        ends, worst = self.run._ends, MEASURED
        for i, event in self.events:
            known = ends.known(i) if event.kind == NODES else MEASURED
            if known == NOT_KNOWN:
                return NOT_KNOWN
            if known == AT_MOST and ends.at[i] > self.event.end:
                worst = AT_MOST
        return worst

    @cached_property
    def splits(self) -> tuple[SplitRun, ...]:
        """The splits that the compute reached, in the order it reached them."""
        by_split: dict[int, list[tuple[int, RunEvent]]] = {}
        for i, event in self.events:
            if event.split >= 0:
                by_split.setdefault(event.split, []).append((i, event))
        return tuple(self._split(index, events) for index, events in by_split.items())

    def _split(self, index: int, events: Sequence[tuple[int, RunEvent]]) -> SplitRun:
        nodes = [(i, e) for i, e in events if e.kind == NODES]
        ends = self.run._ends
        done = tuple(ends.at.get(i, e.end) for i, e in nodes)
        known = tuple(ends.known(i) for i, _e in nodes)
        backend = self.run.schedulers[self.event.scheduler].backends[events[0][1].backend]
        copies = tuple(self._copy(i, e) for i, e in events if e.kind == COPY)
        return SplitRun(index, backend, copies, tuple(e for _i, e in nodes), done, known)

    def _copy(self, index: int, event: RunEvent) -> CopyRun:
        plan, waits = self.plan, tuple(self._waits.get(index, ()))
        if plan is None:
            return CopyRun(None, event, waits, event.how == ASYNC, event.how)
        input = plan.splits[event.split].inputs[event.input]
        if event.how:
            return CopyRun(input, event, waits, event.how == ASYNC, event.how)
        scheduler = self.run.schedulers[self.event.scheduler]
        # A file of an older version. Upstream copies inputs set by the user at once. Other inputs
        # are copied after a wait for the source's backend, unless the backend takes them itself
        # (ggml_backend_sched_copy_input).
        waited = {scheduler.backends[wait.backend] for wait in waits if wait.backend >= 0}
        at_once = "input" in input.tensor.record.flags or input.src_backend in waited
        queued = scheduler.asynchronous[event.backend] and not at_once
        return CopyRun(input, event, waits, queued)

    @cached_property
    def _waits(self) -> dict[int, list[RunEvent]]:
        """The waits within copies, by the index of the copy."""
        found: dict[int, list[RunEvent]] = {}
        for _i, event in self.events:
            if event.kind == WAIT and event.inside >= 0:
                found.setdefault(event.inside, []).append(event)
        return found

    @typed
    def given(self, event: RunEvent) -> tuple[PlanTensor, ...] | None:
        """The nodes that an event gave to their backend, in the order it computes them. None if
        that is not known: there is no plan, or the backend may have reordered them and the file
        does not say how."""
        if self.plan is None or event.split < 0:
            return None
        split = self.plan.splits[event.split]
        order, start = split.order, split.start
        return None if order is None else order[event.first - start : event.last - start]

    @property
    def fused(self) -> tuple[tuple[PlanTensor, ...], ...]:
        """The groups of nodes that a CPU backend fused, in its order. There are none if nodes were
        computed one by one, and none are known of other backends. C: ggml_cpu_try_fuse_ops"""
        return tuple(group for _i, e in self.events if e.kind == NODES for group in self._fused(e))

    def _fused(self, event: RunEvent) -> tuple[tuple[PlanTensor, ...], ...]:
        given = self.given(event) or ()
        ids = {node.id for node in given}
        groups = dict.fromkeys(node.cpu.fused for node in given if node.cpu and node.cpu.fused)
        tensor = self.plan.tensor if self.plan is not None else None
        whole = [group for group in groups if ids.issuperset(group)]
        return tuple(tuple(map(tensor, group)) for group in whole) if tensor else ()

    @property
    def nodes(self) -> Iterator[NodeRun]:
        """Each node's time, if nodes were computed one by one. Left out are views, nodes of the
        graph that are not computed, and events whose node is not known."""
        plan = self.plan
        if plan is None:
            return
        for i, event in self.events:
            if event.kind == NODES and event.last - event.first == 1:
                given = self.given(event)
                if given is None:
                    continue
                (node,) = given
                idle = plan.has_compute_flags and "compute" not in node.flags
                if not node.is_view_op and not idle:
                    ends = self.run._ends
                    yield NodeRun(node, event, ends.at.get(i, event.end), ends.known(i))


@dataclass(frozen=True)
class Recorded:
    """A recording: the events of each scheduler, in the order in which they began, and their plans.

    `per_op` says that nodes were computed one by one, which takes longer than the scheduler's own
    way. `memcpy` is the bandwidth of copying memory on that machine, in bytes per second.
    """

    plans: tuple[Planned, ...]
    schedulers: tuple[SchedulerRecord, ...]
    events: tuple[RunEvent, ...]
    per_op: bool = False
    memcpy: float = 0.0

    @cached_property
    def computes(self) -> tuple[ComputeRun, ...]:
        """All computes, in the order they began."""
        found: dict[tuple[int, int], list[tuple[int, RunEvent]]] = {}
        for i, event in enumerate(self.events):
            if event.compute >= 0:
                found.setdefault((event.scheduler, event.compute), []).append((i, event))
        groups = ((next((e for _i, e in g if e.kind == COMPUTE), None), g) for g in found.values())
        computes = [ComputeRun(self, head, tuple(g)) for head, g in groups if head is not None]
        return tuple(sorted(computes, key=lambda compute: compute.event.start))

    def most_computed(self) -> tuple[int, tuple[ComputeRun, ...]]:
        """The index in `plans` of the plan that took the most time, and its computes.

        Raises ValueError if no compute has a known plan.
        """
        by_plan = self.by_plan
        if not by_plan:
            raise ValueError("this run has no plan of what it computed: record it with a plan")
        index = max(by_plan, key=lambda i: sum(c.ns for c in by_plan[i]))
        return index, by_plan[index]

    @cached_property
    def by_plan(self) -> dict[int, tuple[ComputeRun, ...]]:
        """The computes of each known plan, by its index in `plans`."""
        found: dict[int, list[ComputeRun]] = {}
        for compute in self.computes:
            if compute.index >= 0:
                found.setdefault(compute.index, []).append(compute)
        return {index: tuple(computes) for index, computes in found.items()}

    @cached_property
    def _ends(self) -> Ends:
        """When the nodes of the run were done."""
        from .answers.run_ends import ends_of

        return ends_of(self.events, self.schedulers)

    @property
    def lost(self) -> int:
        """Number of events that there was no room for: the last ones."""
        return sum(s.lost for s in self.schedulers)

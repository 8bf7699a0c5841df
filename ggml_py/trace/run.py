"""What a scheduler did while it computed: when, on which backend, for how long, beside its plan.

Plain data, recorded by `ggml_py.Recording`. Times are nanoseconds of one clock; those in a `Run`
begin at 0 with its first event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from .above import ABOVE
from .plan_tensor import PlanTensor
from .planned import Planned
from .split import SplitInput

if TYPE_CHECKING:
    from .answers.run_ends import Ends

COMPUTE, COPY, NODES, WAIT, RECORD, QUEUE_WAIT = EVENT_KINDS = (
    "compute", "copy", "nodes", "wait", "event_record", "event_wait"
)  # fmt: skip
MEASURED, AT_MOST, NOT_KNOWN = DOUBT = ("measured", "at most", "not known")
# How a wait was made, and a copy; by upstream's names, as far as it has one.
SYNCHRONIZE, EVENT, ASYNC, REFUSED, AT_ONCE, PARTS, CALLBACK = HOWS = (
    "synchronize", "event_synchronize", "cpy_tensor_async", "cpy_tensor_async refused",
    "tensor_copy", "set_tensor_async", "copy_callback",
)  # fmt: skip


class RunEvent(NamedTuple):
    """One thing that a scheduler did. -1 means none.

    The kinds: "compute" is a whole graph that is given to its backends. "copy" brings an input of a
    split to the split's backend, with the waits that this takes. "nodes" gives nodes to a backend:
    they are computed when the event ends, or queued where the backend is asynchronous. "wait" lasts
    until a backend is done. "event_record" puts an event behind what a backend was given.
    "event_wait" tells a backend to wait for one, and the caller goes on.

    `how` says more. A wait is "synchronize" (for all that the backend was given) or
    "event_synchronize" (for its event). A copy is "cpy_tensor_async" when the backend took it, to
    make it later, and "cpy_tensor_async refused" when it was then made at once. "tensor_copy" was
    made at once and no backend was asked: an input of the user's, or a backend without such a
    function. "set_tensor_async" copies are made in parts, and "copy_callback" ones by the user's
    function. Files of older versions have "" and no events.
    """

    kind: str
    start: int  # ns
    end: int  # ns
    scheduler: int  # index into Run.schedulers
    compute: int  # which compute of its scheduler; of a wait after it, that one
    split: int
    # Index into the scheduler's backends: copied to, computing, waited for, or whose event it is.
    backend: int
    copy: int  # which of the scheduler's n_copies; of an event, whose it is
    input: int  # copies: which of the split's inputs
    nbytes: int  # copies: moved
    first: int  # nodes: [first, last) of the graph
    last: int
    inside: int  # waits: index of the copy that they are a part of
    how: str = ""
    by: int = -1  # events: the backend in whose queue they are recorded, or waited for

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end - self.start


class SchedulerRecord(NamedTuple):
    """One scheduler that was recorded."""

    backends: tuple[str, ...]
    asynchronous: tuple[bool, ...]  # whether the backend goes on computing after it was given nodes
    plans: tuple[int, ...]  # by compute, index into Run.plans; -1 where the plan could not be read
    lost: int = 0  # events that there was no room for


@dataclass(frozen=True)
class NodeRun:
    """One node's time in one compute, of a run that was recorded with `per_op`."""

    node: PlanTensor
    event: RunEvent  # given to its backend
    end: int  # ns: when it was done; of an asynchronous backend, when that was known
    known: str = "measured"  # or "at most", or "not known": nobody waited for it

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end - self.event.start


@dataclass(frozen=True)
class CopyRun:
    """One input of a split, brought to the split's backend."""

    input: SplitInput | None  # None where the plan is not known
    event: RunEvent
    waits: tuple[RunEvent, ...]  # for backends to finish, within it
    queued: bool = False  # handed to an asynchronous backend: its time is not that of moving bytes
    # How it was made, as `Event.how`; "" where the file is of an older version.
    how: str = ""

    @property
    def waited(self) -> int:
        """ns of it in which it waited."""
        return sum(wait.ns for wait in self.waits)

    @property
    def name(self) -> str:
        """Of the tensor."""
        return self.input.tensor.name if self.input else "?"


@dataclass(frozen=True)
class SplitRun:
    """One split in one compute: its copies in, then its nodes."""

    index: int
    backend: str
    copies: tuple[CopyRun, ...]
    nodes: tuple[RunEvent, ...]
    done: tuple[int, ...]  # ns, of each of `nodes`: of an asynchronous backend when it was known
    known: tuple[str, ...] = ()  # of each of `nodes`, as `NodeRun.known`

    @property
    def end(self) -> int:
        """When its nodes were done, ns; of a split that got no further, when its copies were."""
        return max(self.done, default=max((c.event.end for c in self.copies), default=0))

    @property
    def start(self) -> int:
        """When the first of them began, ns."""
        return min(e.start for e in (*(c.event for c in self.copies), *self.nodes))


@dataclass(frozen=True)
class ComputeRun:
    """One compute of one scheduler."""

    run: Recorded
    event: RunEvent
    events: tuple[tuple[int, RunEvent], ...]  # of it, with their index in the run

    @property
    def plan(self) -> Planned | None:
        """Of the graph that was computed; None where it could not be read."""
        index = self.run.schedulers[self.event.scheduler].plans[self.event.compute]
        return None if index < 0 else self.run.plans[index]

    @property
    def end(self) -> int:
        """ns: when everything was known to be done."""
        return max((self.event.end, *(split.end for split in self.splits)))

    @cached_property
    def splits(self) -> tuple[SplitRun, ...]:
        """In the order that they were computed in; those that the compute reached."""
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
        # In a file of an older version. Upstream copies what the user sets at once, and waits for
        # the other side before it copies anything else that the backend does not take itself
        # (ggml_backend_sched_copy_input).
        waited = {scheduler.backends[wait.backend] for wait in waits if wait.backend >= 0}
        at_once = "input" in input.tensor.record.flags or input.src_backend in waited
        queued = scheduler.asynchronous[event.backend] and not at_once
        return CopyRun(input, event, waits, queued)

    @cached_property
    def _waits(self) -> dict[int, list[RunEvent]]:
        """By the event that they are a part of."""
        found: dict[int, list[RunEvent]] = {}
        for _i, event in self.events:
            if event.kind == WAIT and event.inside >= 0:
                found.setdefault(event.inside, []).append(event)
        return found

    def given(self, event: RunEvent) -> tuple[PlanTensor, ...] | None:
        """The nodes that an event gave to their backend, as it computes them; None where nobody
        knows: without a plan, and where the backend may have reordered them and the file does not
        say how."""
        if self.plan is None or event.split < 0:
            return None
        split = self.plan.splits[event.split]
        order, start = split.order, split.start
        return None if order is None else order[event.first - start : event.last - start]

    @property
    def fused(self) -> tuple[tuple[PlanTensor, ...], ...]:
        """The groups of nodes that a CPU backend computed as one, in its order. None are where
        nodes were computed one by one, and none are known of other backends.
        C: ggml_cpu_try_fuse_ops"""
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
        """Each node's time, where they were computed one by one. Views are left out, and nodes
        that the graph carries and nobody computes, or of which nobody knows which they are."""
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
    """What was recorded: events in the order that they began, scheduler by scheduler, and the plans
    that they belong to.

    `per_op` says that nodes were computed one by one, which takes longer than computing them as the
    scheduler would; `memcpy` is what copying memory reached on that machine, bytes per second.
    """

    plans: tuple[Planned, ...]
    schedulers: tuple[SchedulerRecord, ...]
    events: tuple[RunEvent, ...]
    per_op: bool = False
    memcpy: float = 0.0

    @cached_property
    def computes(self) -> tuple[ComputeRun, ...]:
        """In the order that they began."""
        found: dict[tuple[int, int], list[tuple[int, RunEvent]]] = {}
        for i, event in enumerate(self.events):
            if event.compute >= 0:
                found.setdefault((event.scheduler, event.compute), []).append((i, event))
        groups = ((next((e for _i, e in g if e.kind == COMPUTE), None), g) for g in found.values())
        computes = [ComputeRun(self, head, tuple(g)) for head, g in groups if head is not None]
        return tuple(sorted(computes, key=lambda compute: compute.event.start))

    @cached_property
    def _ends(self) -> Ends:
        """When its nodes were done."""
        from .answers.run_ends import ends_of

        return ends_of(self.events, self.schedulers)

    @property
    def lost(self) -> int:
        """Events that there was no room for: the last ones."""
        return sum(s.lost for s in self.schedulers)


def make_run(
    plans: tuple[Planned, ...],
    schedulers: tuple[SchedulerRecord, ...],
    events: tuple[RunEvent, ...],
    per_op: bool = False,
    memcpy: float = 0.0,
) -> Recorded:
    """A run, of the class that users know."""
    face: type[Recorded] = ABOVE["Run"]()
    return face(plans, schedulers, events, per_op, memcpy)

"""When the nodes of a run were done: measured, or known to be done by then.

A backend that works asynchronously is given its nodes and goes on alone. That they are done is
known when somebody has waited for it, so the time until then is a bound: they took no longer. It is
what they took where the backend had nothing else to do when it got them, and was waited for at
once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ..run import (
    ASYNC,
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
    RunEvent,
)
from ..run import SchedulerRecord as Scheduler


class Ends(NamedTuple):
    """By the index of an event that gave nodes to a backend."""

    at: dict[int, int]  # ns: when they were known to be done; not there where nobody waited
    measured: frozenset[int]  # those that took until then, and no less

    def known(self, index: int) -> str:
        """How well the end of these nodes is known."""
        if index in self.measured:
            return MEASURED
        return AT_MOST if index in self.at else NOT_KNOWN


class _Queue:
    """What one backend was given."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, int]] = []  # index of the event, and which copy
        self.n_done = 0  # of all that it was given
        self.recorded: dict[int, int] = {}  # by copy: how many it had been given at its event
        self.busy = False  # may have something to do

    @property
    def n_given(self) -> int:
        return self.n_done + len(self.pending)


def ends_of(events: Sequence[RunEvent], schedulers: Sequence[Scheduler]) -> Ends:
    """Of all nodes in a run's events."""
    at: dict[int, int] = {}
    measured: set[int] = set()
    queues: dict[tuple[int, int], _Queue] = defaultdict(_Queue)
    ended: dict[int, int] = {}  # of each scheduler, the compute that began last
    last: dict[int, int] = {}  # nodes that nothing has come after yet
    for i, event in enumerate(events):
        scheduler = event.scheduler
        queue = queues[scheduler, event.backend]
        if event.kind == COMPUTE:
            ended[scheduler] = event.end
        elif event.kind == NODES:
            if schedulers[scheduler].asynchronous[event.backend]:
                last.pop(scheduler, None)
                if not queue.busy:
                    last[scheduler] = i
                queue.pending.append((i, event.copy))
                queue.busy = True
            else:
                at[i] = event.end
                measured.add(i)
        elif event.kind == RECORD:
            queue.recorded[event.copy] = queue.n_given
        elif (event.kind == COPY and event.how in (ASYNC, "")) or event.kind == QUEUE_WAIT:
            last.pop(scheduler, None)
            for b, works_alone in enumerate(schedulers[scheduler].asynchronous):
                queues[scheduler, b].busy |= works_alone  # the source's, too
        elif event.kind == WAIT:
            known = _known(queue, event, ended.get(scheduler, 0))
            for j, _copy in queue.pending[:known]:
                at[j] = event.end
                if last.get(scheduler) == j and _at_once(events[j], event):
                    measured.add(j)
            if queue.busy:
                last.pop(scheduler, None)
            queue.n_done += known
            del queue.pending[:known]
            if event.how != EVENT and not queue.pending:
                queue.busy = False
    return Ends(at, frozenset(measured))


def _at_once(nodes: RunEvent, wait: RunEvent) -> bool:
    """Whether somebody began to wait for nodes as soon as they were given: what passed between is
    nothing beside the time that is told."""
    return wait.start - nodes.end <= _SHORT + (wait.end - nodes.start) // 100


_SHORT = 1000  # ns: what returning from one call and making another takes


def _known(queue: _Queue, event: RunEvent, ended: int) -> int:
    """How many of what is pending are done when a wait has ended. Backends do one thing after the
    other."""
    if event.how == EVENT:
        return max(queue.recorded.get(event.copy, 0) - queue.n_done, 0)
    if event.how or event.start >= ended:
        return len(queue.pending)
    # A file that does not say how: within a compute it may be for an event, of one copy only.
    known = [n for n, (_i, copy) in enumerate(queue.pending) if copy == event.copy]
    return known[-1] + 1 if known else 0

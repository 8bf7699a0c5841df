"""When the nodes of a run were done: measured, or as an upper bound.

An asynchronous backend is given its nodes and computes them while the scheduler goes on. Only a
wait for the backend shows that they are done, so the time until the end of that wait is an upper
bound. It is the measured time if the backend was idle when it got the nodes and the wait began at
once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ..recorded import (
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
from ..recorded import SchedulerRecord as Scheduler


class Ends(NamedTuple):
    """By the index of an event that gave nodes to a backend."""

    at: dict[int, int]  # ns: when they were known to be done; missing if nothing waited
    measured: frozenset[int]  # the events whose time is exact

    def known(self, index: int) -> str:
        """How well the end of these nodes is known."""
        if index in self.measured:
            return MEASURED
        return AT_MOST if index in self.at else NOT_KNOWN


class _Queue:
    """The nodes that one backend was given."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, int]] = []  # index of the event, and which copy
        self.n_done = 0  # of all nodes that it was given
        self.recorded: dict[int, int] = {}  # by copy: `n_given` when its event was recorded
        self.busy = False  # may still have work

    @property
    def n_given(self) -> int:
        return self.n_done + len(self.pending)


def ends_of(events: Sequence[RunEvent], schedulers: Sequence[Scheduler]) -> Ends:
    """The ends of all nodes in a run's events."""
    at: dict[int, int] = {}
    measured: set[int] = set()
    queues: dict[tuple[int, int], _Queue] = defaultdict(_Queue)
    ended: dict[int, int] = {}  # by scheduler: when its latest compute ended
    last: dict[int, int] = {}  # by scheduler: nodes that nothing has followed yet
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
                queues[scheduler, b].busy |= works_alone  # the source's too
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
    """Whether a wait began as soon as the nodes were given: the time between is negligible beside
    the time of the nodes."""
    return wait.start - nodes.end <= _SHORT + (wait.end - nodes.start) // 100


_SHORT = 1000  # ns: time to return from one call and make another


def _known(queue: _Queue, event: RunEvent, ended: int) -> int:
    """How many pending entries are done when a wait has ended. A backend works through them in
    order."""
    if event.how == EVENT:
        return max(queue.recorded.get(event.copy, 0) - queue.n_done, 0)
    if event.how or event.start >= ended:
        return len(queue.pending)
    # The file does not say how: within a compute it may be a wait for the event of one copy.
    known = [n for n, (_i, copy) in enumerate(queue.pending) if copy == event.copy]
    return known[-1] + 1 if known else 0

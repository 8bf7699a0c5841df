"""Records what schedulers do while they compute."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..boundary.arguments import describe, integer
from ..boundary.ffi import NULL, ffi, lib
from ..errors import ArgumentError, MissingFunctionError
from ..trace.structs import Rows
from .reallocations import labels

if TYPE_CHECKING:
    from ..graphs.graph import Graph
    from ..plan import Plan
    from ..run import Run
    from ..trace.recorded import RunEvent, SchedulerRecord
    from .borrowed import BorrowedScheduler
    from .scheduler import Scheduler

    Recorded: TypeAlias = Scheduler | BorrowedScheduler

_MEMCPY_BYTES = 32 << 20
_RECENT = 16  # plans that a new one is compared with: enough for the n_copies of some schedulers


class Recording:
    """Records every compute of some schedulers during a `with` block. Afterwards `run` has it all.

        with ggml.Recording(sched) as recording:
            sched.compute(graph)
        print(recording.run.summary())

    Recording does not change how graphs are computed. It reads a clock twice per split, copy and
    wait, and it reads the plan of each allocation before its first compute. With `per_op` each node
    is computed alone and waited for: this gives the time of each node, but takes longer overall. At
    most `max_events` events are kept per scheduler; `Run.lost` counts the others.

    Raises `ArgumentError` for a scheduler that is already being recorded, and with `per_op` for one
    that has an eval callback; `MissingFunctionError` in a build without instrumentation.
    C: gp_run_start
    """

    def __init__(
        self, *schedulers: Recorded, per_op: bool = False, max_events: int = 1 << 20
    ) -> None:
        if not schedulers:
            raise TypeError("expected at least one Scheduler to record")
        for scheduler in schedulers:
            if not hasattr(scheduler, "_recording"):
                raise TypeError(f"expected Schedulers, got {describe(scheduler)}")
        self._max_events = integer("max_events", max_events, 1, 1 << 31)
        self._schedulers = tuple(dict.fromkeys(schedulers))
        self._per_op = per_op
        self._plans: list[Plan] = []
        self._computed: dict[Recorded, dict[int, int]] = {}  # compute -> index of its plan
        self._last: dict[Recorded, tuple[int, int]] = {}  # allocation and its plan's index
        self._names: dict[Recorded, list[str]] = {}
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """What was recorded. Raises `ArgumentError` before the block has ended."""
        if self._run is None:
            raise ArgumentError("this Recording has no run yet: read it after the `with` block")
        return self._run

    def __enter__(self) -> Recording:
        if not lib.gp_trace_present():
            raise MissingFunctionError(
                "this build of ggml is not instrumented, so it cannot record"
            )
        started = []
        try:
            for scheduler in self._schedulers:
                if scheduler._recording is not None:
                    raise ArgumentError(f"{scheduler!r} is being recorded already")
                if not lib.gp_run_start(scheduler.ptr, self._per_op, self._max_events):
                    raise ArgumentError(
                        "per_op computes nodes one by one through an eval callback, but this "
                        "scheduler has one: call set_eval_callback(None), or record without per_op"
                    )
                scheduler._recording = self
                started.append(scheduler)
        except BaseException:
            for scheduler in started:
                _stop(scheduler)
            raise
        self._run = None
        self._plans.clear()
        self._computed = {scheduler: {} for scheduler in self._schedulers}
        self._last.clear()
        self._names = {s: labels(s) for s in self._schedulers}
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        from ..run import Run
        from ..trace.decode import run_events

        raw = [_taken(scheduler) for scheduler in self._schedulers]
        began = min((rows["start"][0] for rows, _lost in raw if len(rows)), default=0)
        events: list[RunEvent] = []
        schedulers = []
        plans, index_of = _distinct(self._plans)
        for index, (scheduler, (rows, lost)) in enumerate(zip(self._schedulers, raw, strict=True)):
            events += run_events(rows, index, began, len(events))
            schedulers.append(self._record(scheduler, rows, lost, index_of))
        memcpy = _memcpy()
        self._run = Run(tuple(plans), tuple(schedulers), tuple(events), self._per_op, memcpy)

    def _computing(self, scheduler: Scheduler, graph: Graph) -> None:
        """Notes the plan of the compute that `scheduler` is about to start."""
        compute = lib.gp_run_computes(scheduler.ptr)
        self.note(scheduler, scheduler._n_allocs, compute, lambda: scheduler.plan(graph))

    def note(
        self, scheduler: Recorded, allocation: int, compute: int, plan: Callable[[], Plan]
    ) -> None:
        """Notes the plan of a scheduler's compute: that of an allocation, which is read once."""
        before, index = self._last.get(scheduler, (-1, -1))
        if before != allocation:
            index = len(self._plans)
            self._plans.append(plan())
            self._last[scheduler] = allocation, index
        self._computed[scheduler][compute] = index

    def _record(
        self, scheduler: Recorded, rows: Rows, lost: int, index_of: Sequence[int]
    ) -> SchedulerRecord:
        from ..trace.recorded import SchedulerRecord

        devices = [backend.device for backend in scheduler.backends]
        n_computes = max(rows["compute"], default=-1) + 1
        plan_of = self._computed[scheduler]
        return SchedulerRecord(
            tuple(self._names[scheduler]),
            tuple(device.props.caps.async_ for device in devices),
            tuple(index_of[plan_of[i]] if i in plan_of else -1 for i in range(n_computes)),
            lost,
        )


def _distinct(plans: Sequence[Plan]) -> tuple[list[Plan], list[int]]:
    """The distinct plans, and for each plan its index among them. A graph that is allocated for
    each compute, as in a pipeline, has few. This runs after the computes because comparing plans
    converts their records."""
    found: list[Plan] = []
    index_of = []
    for plan in plans:
        first = max(len(found) - _RECENT, 0)
        same = (first + i for i, other in enumerate(found[first:]) if other == plan)
        index = next(same, len(found))
        if index == len(found):
            found.append(plan)
        index_of.append(index)
    return found, index_of


def events_of(scheduler: Scheduler, work: Callable[[], object]) -> list[RunEvent]:
    """The scheduler's events while `work` runs, without a `Run`. C: gp_run_start"""
    from ..trace.decode import run_events

    lib.gp_run_start(scheduler.ptr, False, 1 << 20)
    try:
        work()
    finally:
        rows, _lost = _taken(scheduler)
    return list(run_events(rows, 0, rows["start"][0] if len(rows) else 0, 0))


def _stop(scheduler: Recorded) -> None:
    scheduler._recording = None
    lib.gp_run_stop(scheduler.ptr)


def _taken(scheduler: Recorded) -> tuple[Rows, int]:
    """The recorded events, and the number of events that there was no room for."""
    from .capture import layout_of

    layout = layout_of("gp_run_event")
    if scheduler.closed:
        return Rows(layout, b""), 0
    _stop(scheduler)
    lost = ffi.new("size_t *")
    n = lib.gp_run_events(scheduler.ptr, NULL, 0, lost)
    rows = ffi.new("struct gp_run_event[]", n)
    lib.gp_run_events(scheduler.ptr, rows, n, lost)
    return Rows(layout, bytes(ffi.buffer(rows))), int(lost[0])


def _memcpy() -> float:
    """Bytes per second of a plain memory copy on this machine: the best of three."""
    source = np.ones(_MEMCPY_BYTES, np.uint8)
    target = np.zeros_like(source)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return _MEMCPY_BYTES / min(seconds)

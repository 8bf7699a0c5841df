"""The computes of a recorded process, as a `Run`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..export.json.run_file import check
from ..files.damage import INTERNAL, said
from ..run import Run
from ..trace.decode import run_events
from ..trace.recorded import RunEvent, SchedulerRecord
from ..trace.structs import Rows

if TYPE_CHECKING:
    from .session import Process, RecordedPlan


def run_of(process: Process) -> Run:
    """All timed computes of a process. Raises ValueError if there are none, or damaged ones."""
    if not process.runs:
        raise ValueError(
            f"{process.program}[{process.pid}] has no computes in this record: they are recorded "
            "with --run"
        )
    try:
        run = _run_of(process)
        check(run)
    except INTERNAL as error:
        raise ValueError(f"the computes of {process} are damaged: {said(error)}") from error
    return run


def _run_of(process: Process) -> Run:
    parts = _parts(process)
    computes = [c for rows, _events in parts for c in rows]
    numbers = sorted({int(c["scheduler"]) for c in computes})
    plans = {one.number: one.plan for one in computed_plans(process)}
    index_of = {number: i for i, number in enumerate(plans)}
    began = min((start for _rows, events in parts for start in events["start"]), default=0)
    found: list[RunEvent] = []
    for rows, events in parts:
        base, first = len(found), 0
        for compute in rows:
            end = first + int(compute["n_events"])
            scheduler = numbers.index(int(compute["scheduler"]))
            found += run_events(events.at(range(first, end)), scheduler, began, base)
            first = end
    schedulers = tuple(_scheduler(process, n, computes, index_of) for n in numbers)
    return Run(tuple(plans.values()), schedulers, tuple(found))


def computed_plans(process: Process) -> list[RecordedPlan]:
    """The plans of the timed computes that can be read, as `run_of` has them."""
    numbers = {int(c["plan"]) for rows, _events in _parts(process) for c in rows}
    found = []
    for number in sorted(numbers & set(process.plans)):
        with contextlib.suppress(ValueError):  # it is damaged
            _ = process.plans[number].plan
            found.append(process.plans[number])
    return found


def _parts(process: Process) -> list[tuple[Rows, Rows]]:
    """The computes and events of each chunk."""
    layouts = process.layouts
    return [
        (Rows(layouts["gp_record_compute"], computes), Rows(layouts["gp_run_event"], events))
        for computes, events in process.runs
    ]


def _scheduler(
    process: Process,
    number: int,
    computes: list[dict[str, Any]],
    index_of: dict[int, int],
) -> SchedulerRecord:
    mine = [c for c in computes if int(c["scheduler"]) == number]
    plans = [-1] * (1 + max(int(c["compute"]) for c in mine))
    for c in mine:
        plans[int(c["compute"])] = index_of.get(int(c["plan"]), -1)
    if number not in process.schedulers:
        raise ValueError(f"what the record says of scheduler {number} is damaged")
    backends = process.schedulers[number]["backends"]
    return SchedulerRecord(
        tuple(str(b["name"]) for b in backends), tuple(bool(b["async"]) for b in backends),
        tuple(plans), sum(int(c["lost"]) for c in mine),
    )  # fmt: skip

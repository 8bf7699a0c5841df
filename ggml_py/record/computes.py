"""The computes of a recorded process, as a `Run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..run import Run
from ..trace.decode import run_events
from ..trace.recorded import RunEvent, SchedulerRecord

if TYPE_CHECKING:
    from .session import Process


def run_of(process: Process) -> Run:
    """All timed computes of a process. Raises ValueError if there are none."""
    if not process.runs:
        raise ValueError(
            f"{process.program}[{process.pid}] has no computes in this record: they are recorded "
            "with --run"
        )
    computes = np.concatenate(
        [np.frombuffer(c, process.layouts["gp_record_compute"]) for c, _e in process.runs]
    )
    events = [np.frombuffer(e, process.layouts["gp_run_event"]) for _c, e in process.runs]
    numbers = sorted({int(c["scheduler"]) for c in computes})
    used = sorted({int(c["plan"]) for c in computes} & set(process.plans))
    index_of = {number: i for i, number in enumerate(used)}
    began = min((int(e["start"].min()) for e in events if len(e)), default=0)
    found: list[RunEvent] = []
    for (rows, _), batch in zip(process.runs, events, strict=True):
        base, first = len(found), 0
        for compute in np.frombuffer(rows, process.layouts["gp_record_compute"]):
            end = first + int(compute["n_events"])
            scheduler = numbers.index(int(compute["scheduler"]))
            found += run_events(batch[first:end], scheduler, began, base)
            first = end
    plans = tuple(process.plans[number].plan for number in used)
    schedulers = tuple(_scheduler(process, n, computes, index_of) for n in numbers)
    return Run(plans, schedulers, tuple(found))


def _scheduler(
    process: Process,
    number: int,
    computes: np.ndarray[tuple[int], np.dtype[np.void]],
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

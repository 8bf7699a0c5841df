"""The page of a record."""

from __future__ import annotations

from collections.abc import Iterator

from ..cost.machine import Machine
from ..export.page.of_record import PagePlan, PageProcess, PageRecord
from ..export.page.to_html import render_recording
from .computes import computed_plans
from .session import Process, Record, RecordedPlan


def page(record: Record, machine: Machine | None = None) -> str:
    """The page: the list of its plans, what ran when, and the plans that took the most time or were
    computed most often. With `machine` they have their predicted times. Raises ValueError if no
    plan can be read."""
    if not record.plans:
        raise ValueError(f"{record.path}: the record has no plan that can be read")
    programs = tuple(_program(record, process) for process in record.processes)
    notes = *map(str, record.damage), *filter(None, [record.damaged_plans])
    return render_recording(PageRecord("Record", programs, notes, record.path.name), machine)


def _program(record: Record, process: Process) -> PageProcess:
    own = [one for one in record.plans if one.process is process]
    listed = tuple(map(_listed, own))
    if not process.runs:
        return PageProcess(str(process), tuple(_about(process)), listed)
    try:
        run = process.run
    except ValueError as error:
        return PageProcess(str(process), (*_about(process), str(error)), listed)
    numbers = tuple(one.index for one in computed_plans(process))
    return PageProcess(str(process), tuple(_about(process)), listed, run, numbers)


def _about(process: Process) -> Iterator[str]:
    yield f"ggml {process.upstream}"
    if process.argv:
        yield " ".join(process.argv)
    if doubt := (process.head.get("about") or {}).get("doubt"):
        yield str(doubt)
    if not process.ended:
        yield "its end was not recorded, so these counts are lower bounds"
    if process.left_out:
        yield (
            f"{process.left_out:,} plans or computes were not written (--max-size, --first, or a "
            "full disk)"
        )
    if not process.runs:
        yield "no times: `ggml-py record --run` records them"


def _listed(one: RecordedPlan) -> PagePlan:
    began = one.process.started
    return PagePlan(
        one.index, one.label, one.n_tokens, one.n_nodes, one.n_splits, one.n_copies,
        one.copy_bytes, one.computed, not one.process.ended,
        one.first - began if 0 < began <= one.first else -1, _unlike(one), lambda: one.plan,
    )  # fmt: skip


def _unlike(one: RecordedPlan) -> str:
    """A plan's difference from the one before, and the reason if memory was laid out again."""
    laid_out = f"; memory laid out: {one.reasons[0]}" if one.reasons else ""
    return f"{one.difference}{laid_out}"

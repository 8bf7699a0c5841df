"""The public `Run`: the data of `trace.recorded`, and methods to query it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .plan import Plan
from .trace.recorded import Recorded
from .typed import typed

if TYPE_CHECKING:
    from .trace.answers.run_summary import RunSummary


class Run(Recorded):
    """A recorded run: events in the order in which they began, scheduler by scheduler, and the
    plans that they belong to.

    `per_op` says whether nodes were computed one by one, which takes longer than the scheduler's
    usual way. `memcpy` is the copying speed of that machine's memory, in bytes per second.
    """

    plans: tuple[Plan, ...]

    def __repr__(self) -> str:
        return f"<Run: {self.summary().headline()}>"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        from .export import to_notebook

        return to_notebook.run(self)

    def summary(self) -> RunSummary:
        """The time by backend, in copies, in waits and idle, with the most expensive of each."""
        from .trace.answers.run_summary import summarize

        return summarize(self)

    @typed
    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """The run as JSON data. With `path` it is also written there, completely or not at all."""
        from .export.json import run_file as run_json

        return run_json.write(self, path) if path is not None else run_json.render(self)

    @typed
    def export(self, path: str | Path, format: str | None = None, *, force: bool = False) -> None:
        """Like `Plan.export`: "run.trace.json" is for Perfetto, "run.html" is the page of the plan
        that took the most time, with each node's time in the plan's median compute."""
        from .export import formats

        formats.export(self, path, format, force=force)

    @staticmethod
    @typed
    def from_json(path: str | Path) -> Run:
        """Reads a run that `to_json` wrote. Raises ValueError for anything else."""
        from .export.json import run_file as run_json

        return Run.of(run_json.read(path))

    @classmethod
    def of(cls, recorded: Recorded) -> Run:
        """`recorded` as an object of this class."""
        if not isinstance(recorded, Recorded):
            raise TypeError(f"expected a run, got {type(recorded).__name__}")
        plans = tuple(map(Plan.of, recorded.plans))
        return cls(plans, recorded.schedulers, recorded.events, recorded.per_op, recorded.memcpy)

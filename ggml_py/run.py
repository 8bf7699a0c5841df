"""What a scheduler did, as users have it: the data of `trace.run`, and what can be asked of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .plan import Plan
from .trace.run import Recorded

if TYPE_CHECKING:
    from .trace.answers.run_summary import RunSummary


class Run(Recorded):
    """What was recorded: events in the order that they began, scheduler by scheduler, and the plans
    that they belong to.

    `per_op` says that nodes were computed one by one, which takes longer than computing them as the
    scheduler would; `memcpy` is what copying memory reached on that machine, bytes per second.
    """

    plans: tuple[Plan, ...]

    def __repr__(self) -> str:
        return f"<Run: {self.summary().headline()}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from .export import to_notebook

        return to_notebook.run(self)

    def summary(self) -> RunSummary:
        """Time by backend, in copies, in waits, in nothing; the dearest of each."""
        from .trace.answers.run_summary import summarize

        return summarize(self)

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """The run as JSON data; written to `path` when one is given (whole or not at all)."""
        from .export.json import run as run_json

        return run_json.write(self, path) if path is not None else run_json.render(self)

    def export(self, path: str | Path, format: str | None = None, *, force: bool = False) -> None:
        """As `Plan.export`: "run.trace.json" is for Perfetto, "run.html" the page of the plan that
        took the most time, with what each node took in its median compute."""
        from .export import formats

        formats.export(self, path, format, force=force)

    @staticmethod
    def from_json(path: str | Path) -> Run:
        """A run that `to_json` wrote. Raises ValueError for anything else."""
        from .export.json import run as run_json

        return as_run(run_json.read(path))


def as_run(recorded: Recorded) -> Run:
    """What a layer below made, by the class that it has."""
    assert isinstance(recorded, Run)  # `make_run` makes no other
    return recorded

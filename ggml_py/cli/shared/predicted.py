"""--machine: the predicted time of plans that a verb shows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ...advice.finding import Finding
    from ...cost import Cost, Machine
    from ...plan import Plan
    from ...trace.planned import Planned
    from .remedies import Remedies

machine_option = click.option(
    "--machine",
    "machine_path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="What `ggml-py calibrate` wrote: predict how long it takes.",
)


def load_machine(path: str | None) -> Machine:
    """The machine in a file; without one everything is from data sheets. Plans know the cards that
    their simulated devices stand for."""
    from ...cost import Machine

    if path is None:
        return Machine.of_sheets({}, _n_threads())
    try:
        return Machine.load(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: there is no such file; `ggml-py calibrate -o FILE` writes one"
        ) from None


def _n_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def said_of(cost: Cost) -> list[str]:
    """Assumptions of a prediction, reasons why the calibration may not apply, and doubts about
    it."""
    stale = (f"stale: {one}; the interval does not count that" for one in cost.stale)
    doubts = cost.machine.doubts_about({split.backend for split in cost.splits})
    return [*cost.assumed, *stale, *(f"doubt: {one}" for one in doubts)]


class Predictions:
    """Predicted times, if a machine's file was given."""

    def __init__(self, path: str | None) -> None:
        """Raises what `Machine.load` raises."""
        self.machine = None if path is None else load_machine(path)
        self.remedies: Remedies | None = None  # of a model

    @cached_property
    def judging(self) -> Machine:
        """What advice about a model rests on: the machine's file, or data sheets."""
        return self.machine or load_machine(None)

    def of(self, plan: Plan) -> str:
        """A sentence; "" without a machine."""
        from ...cost.time_difference import predicted

        if self.machine is None:
            return ""
        cost = plan.cost(self.machine)
        return "\n".join((predicted(cost), *said_of(cost)))

    def change(self, before: Plan, after: Plan) -> str:
        """What a plan in the place of another changes, in a sentence; "" without a machine."""
        from ...cost.time_difference import predicted_time

        if self.machine is None:
            return ""
        said = said_of(after.cost(self.machine))
        return "\n".join((str(predicted_time(before, after, self.machine)), *said))

    def cost(self, plan: Planned) -> Cost | None:
        """Cost of the plan, by the machine's file or by data sheets; None if a time is not
        known."""
        from ...cost.cost import cost_of
        from ...cost.time_difference import n_unknown

        if plan.capture.source != "scheduler":
            return None
        found = cost_of(plan, self.judging)
        return None if n_unknown(found) else found

    def advice(self, plan: Plan) -> Sequence[Finding]:
        """The plan's findings; those of a model with the changes that were tried."""
        findings = self.findings(plan)
        return findings if self.remedies is None else self.remedies.judged(findings)

    def findings(self, plan: Plan) -> Sequence[Finding]:
        """The plan's findings by the time that they are about: by the machine's file, or by data
        sheets of the cards if all times are then known."""
        return plan.advice(machine=self.machine or (self.judging if self.cost(plan) else None))

    def data(self, plan: Plan, before: Plan | None = None) -> dict[str, Any]:
        """What --json has besides: {} without a machine."""
        from ...cost.cost import limits
        from ...cost.time_difference import predicted_time

        if self.machine is None:
            return {}
        if before is not None:
            return {"predicted": predicted_time(before, plan, self.machine).to_dict()}
        cost = plan.cost(self.machine)
        return {"predicted": {"seconds": cost.seconds, "interval": limits(cost.interval),
                              "bound": cost.bound, "unknown_nodes": len(cost.unknown),
                              "unknown_copies": len(cost.missing_copies),
                              "assumed": list(cost.assumed),
                              "stale": list(cost.stale)}}  # fmt: skip

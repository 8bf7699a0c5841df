"""--machine: the predicted time of plans that a verb shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ...plan import Plan

machine_option = click.option(
    "--machine",
    "machine_path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="What `ggml-py calibrate` wrote: predict how long it takes.",
)


class Predictions:
    """Predicted times, if a machine's file was given."""

    def __init__(self, path: str | None) -> None:
        """Raises what `Machine.load` raises."""
        from ...cost import Machine

        self._machine = None if path is None else Machine.load(path)

    def of(self, plan: Plan) -> str:
        """A sentence; "" without a machine."""
        from ...cost.change import predicted

        return "" if self._machine is None else predicted(plan.cost(self._machine))

    def change(self, before: Plan, after: Plan) -> str:
        """What a plan in the place of another changes, in a sentence; "" without a machine."""
        from ...cost.change import predicted_time

        if self._machine is None:
            return ""
        return str(predicted_time(before, after, self._machine))

    def data(self, plan: Plan, before: Plan | None = None) -> dict[str, Any]:
        """What --json has besides: {} without a machine."""
        from ...cost.change import predicted_time

        if self._machine is None:
            return {}
        if before is not None:
            return {"predicted": predicted_time(before, plan, self._machine).to_dict()}
        cost = plan.cost(self._machine)
        return {"predicted": {"seconds": cost.seconds, "interval": list(cost.interval),
                              "bound": cost.bound, "unknown_nodes": len(cost.unknown),
                              "unknown_copies": len(cost.missing_copies)}}  # fmt: skip

"""The predicted times of a plan, in the form in which a page shows those of a run."""

from __future__ import annotations

from ..cost.cost import PREDICTED, Cost
from ..cost.unmeasured import no_total
from ..trace.units import format_interval
from .run_times import SplitTime, Times


def predicted_times(cost: Cost) -> Times:
    """The times of one compute. Nodes and copies of which nothing was measured have none (-1)."""
    plan = cost.plan
    nodes = [-1 if n.is_computed else 0 for n in plan.nodes]
    for node in cost.nodes:
        nodes[node.id] = _ns(node.seconds)
    why = no_total(cost)
    said = (
        f"{cost.known_by} ({format_interval(cost.seconds, cost.interval)}), bound by {cost.bound}"
    )
    said = why or said
    if lacks := len(cost.unknown) + len(cost.missing_copies):
        said += f"; without {lacks} nodes and copies of which nothing was measured"
    return Times(
        plan,
        tuple(nodes),
        tuple(_ns(copy.seconds) for copy in cost.copies),
        (0,) * len(cost.copies),
        tuple(SplitTime(_ns(split.seconds), PREDICTED) for split in cost.splits),
        _ns(None if why else cost.seconds),
        True,
        said,
    )


def _ns(seconds: float | None) -> int:
    return -1 if seconds is None else round(1e9 * seconds)

"""Predicted beside measured: a plan's cost and what a run of it took, node by node."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..trace.planned import Planned
from ..trace.recorded import MEASURED, ComputeRun, Recorded
from .cost import Cost, NodeCost, cost_of, limits
from .machine import Machine


@dataclass(frozen=True, slots=True)
class NodeMiss:
    """A node that was predicted and measured. `predicted` is None if nothing like it was
    calibrated, `measured` if the run has no time of its own for it."""

    id: int
    predicted: float | None  # seconds
    measured: float | None  # seconds: the median of the run's computes
    inside: bool  # whether the measured time is in the predicted interval

    @property
    def miss(self) -> float:
        """Seconds between prediction and measurement; an unknown one counts as 0."""
        return abs((self.predicted or 0.0) - (self.measured or 0.0))


@dataclass(frozen=True)
class Analysis:
    """A cost and what a run took for the same plan, the greatest misses first."""

    cost: Cost
    n_computes: int
    seconds: float | None  # the median compute as a whole; None if nodes were computed one by one
    nodes: tuple[NodeMiss, ...]

    @property
    def measured(self) -> float:
        """The measured seconds of all nodes that have some."""
        return sum(node.measured or 0.0 for node in self.nodes)

    @property
    def predicted(self) -> float:
        """The predicted seconds of the nodes that were measured."""
        return sum(node.predicted or 0.0 for node in self.nodes if node.measured is not None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "n_computes": self.n_computes,
            "assumed": list(self.cost.assumed),
            "seconds": self.seconds,
            "predicted": self.cost.seconds,
            "interval": limits(self.cost.interval),
            "nodes": [
                {"id": n.id, "predicted": n.predicted, "measured": n.measured, "inside": n.inside}
                for n in self.nodes
            ],
        }  # fmt: skip


def analysis_of(run: Recorded, machine: Machine, n_past: int | None = None) -> Analysis:
    """The cost of the plan that took most of a run's time, beside its measured time.

    Raises ValueError for a run without plans.
    """
    index, computes = run.most_computed()
    cost = cost_of(run.plans[index], machine, n_past)
    whole = statistics.median(c.end - c.event.start for c in computes) * 1e-9
    nodes = _beside(cost, computes) if run.per_op else ()
    return Analysis(cost, len(computes), None if run.per_op else whole, nodes)


def _beside(cost: Cost, computes: Iterable[ComputeRun]) -> tuple[NodeMiss, ...]:
    taken: dict[int, list[float]] = {}
    for compute in computes:
        for ran in compute.nodes:
            if ran.known == MEASURED:
                taken.setdefault(ran.node.id, []).append(ran.ns * 1e-9)
    # Nodes that the CPU fuses are computed one by one in such a run: their time is the sum.
    groups = _groups(cost.plan)
    found = []
    for node in cost.nodes:
        if node.bound == "fused":
            continue
        ids = groups.get(node.id, (node.id,))
        measured = [statistics.median(taken[i]) for i in ids if i in taken]
        found.append(_miss(node, sum(measured) if len(measured) == len(ids) else None))
    return tuple(sorted(found, key=lambda miss: -miss.miss))


def _miss(node: NodeCost, measured: float | None) -> NodeMiss:
    inside = False
    if node.interval is not None and measured is not None:
        inside = node.interval[0] <= measured <= node.interval[1]
    return NodeMiss(node.id, node.seconds, measured, inside)


def _groups(plan: Planned) -> dict[int, tuple[int, ...]]:
    return {cpu.fused[0]: cpu.fused for cpu in plan.capture.cpu if cpu.fused}

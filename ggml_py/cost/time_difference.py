"""What two plans are predicted to take on the same machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..trace.names import counted
from ..trace.planned import Planned
from ..trace.units import format_times
from .cost import BETWEEN_RUNS, Cost, cost_of, limits
from .machine import Machine
from .unmeasured import unmeasured


class PredictedTime(NamedTuple):
    """Seconds of one compute by two plans, with the samples of one machine: what another release's
    kernels take is not in it."""

    before: float
    after: float
    before_interval: tuple[float, float]  # nine of ten measurements are in it
    after_interval: tuple[float, float]
    unknown: tuple[int, int]  # nodes and copies of which nothing was measured, in each plan

    @property
    def ratio(self) -> float | None:
        """after / before; None if a plan has nodes of which nothing was measured."""
        return None if any(self.unknown) or not self.before else self.after / self.before

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        intervals = (self.before_interval, self.after_interval)
        before, after = map(limits, intervals)
        return {
            **self._asdict(), "before_interval": before, "after_interval": after,
            "ratio": self.ratio,
        }  # fmt: skip

    def __str__(self) -> str:
        if any(self.unknown):
            return f"how long a compute takes is not known: {_lack(max(self.unknown))}"
        return (
            f"a compute is predicted to take {self.ratio:.2f} times as long: "
            f"{format_times(self.before, self.before_interval)} → "
            f"{format_times(self.after, self.after_interval)}, by the plan alone"
        )


def predicted_time(before: Planned, after: Planned, machine: Machine) -> PredictedTime:
    """The predicted time of both. Raises ValueError for a plan without shapes."""
    a, b = cost_of(before, machine), cost_of(after, machine)
    return PredictedTime(a.seconds, b.seconds, a.interval, b.interval, (n_unknown(a), n_unknown(b)))


def predict_with(
    machine: Machine,
    note: Callable[[Cost], object] = lambda _cost: None,
) -> Callable[[Planned, Mapping[str, Any]], tuple[float, float, float] | None]:
    """A function for `sweep(predict=...)`: it returns the seconds of a plan, and their low and high
    end. The shape's n_past tokens are before the graph. None if nothing was measured of some nodes
    or copies. `note` is called with each prediction: it has its samples and its doubts."""

    def predict(plan: Planned, shape: Mapping[str, Any]) -> tuple[float, float, float] | None:
        cost = cost_of(plan, machine, shape.get("n_past"))
        note(cost)
        return None if n_unknown(cost) else (cost.seconds, *cost.interval)

    return predict


def deviation(
    before: Mapping[tuple[str, str], float],
    after: Mapping[tuple[str, str], float],
    seconds: tuple[float, float],
) -> float:
    """Seconds by which the difference of two predictions may be wrong (one standard deviation).
    `before` and `after` are their `Cost.errors`: an error of one kind of work is in both."""
    own = sum((before.get(k, 0.0) - after.get(k, 0.0)) ** 2 for k in {*before, *after})
    return math.sqrt(own + sum((BETWEEN_RUNS * s) ** 2 for s in seconds))


def n_unknown(cost: Cost) -> int:
    """How many nodes and copies nothing was measured of."""
    return len(cost.unknown) + len(cost.missing_copies)


def known_cost(plan: Planned, machine: Machine | None) -> Cost | None:
    """The plan's cost on a machine; without one that by data sheets, or None if these do not know
    all of the plan. Raises ValueError with `machine` for a plan without shapes."""
    if machine is not None:
        return cost_of(plan, machine)
    if plan.capture.source != "scheduler":
        return None
    cost = cost_of(plan, Machine.of_sheets({}))
    return None if n_unknown(cost) else cost


def predicted(cost: Cost) -> str:
    """A sentence."""
    if n := n_unknown(cost):
        share = f"{unmeasured(cost):.0%} of the work"
        return f"how long a compute takes is not known: {_lack(n)}, {share}"
    return (
        f"a compute is predicted to take {format_times(cost.seconds, cost.interval)}: {cost.bound}"
    )


def _lack(n: int) -> str:
    return f"of {counted(n, 'node or copy', 'nodes and copies')} nothing was measured"

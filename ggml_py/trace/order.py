"""In which order backends compute their splits' nodes: the graph's, unless they have a
`graph_optimize`, which upstream asks once a graph is split."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .record import OptimizedRecord

if TYPE_CHECKING:
    from .plan import Plan, Split
    from .plan_tensor import PlanTensor

# Upstream's backends without a graph_optimize whose names nobody else can have, for files and logs
# that do not say who has one. Any other name may be a simulated device's.
_IN_ORDER = ("CPU", "BLAS")


class AllocDep(NamedTuple):
    """The memory of `tensor` is kept until the node `until` is computed. C: add_alloc_dep"""

    tensor: PlanTensor
    until: PlanTensor


def possible_optimizers(names: Sequence[str]) -> int:
    """The backends, as a set of bits, that may reorder nodes, by their names."""
    return sum(1 << b for b, name in enumerate(names) if name not in _IN_ORDER)


def answer_of(split: Split) -> OptimizedRecord | None:
    """What the split's backend made of its nodes; None where nobody knows."""
    capture = split.plan.capture
    backend = split.plan.split_records[split.index].backend
    if not capture.optimizers >> backend & 1:
        return OptimizedRecord(backend, split.start, split.end, (), ())
    known = (backend, split.start, split.end)
    return next((a for a in capture.optimized if a[:3] == known), None)


def order_of(split: Split) -> tuple[int, ...] | None:
    """The ids of its nodes in the order that they are computed; None where nobody knows."""
    answer = answer_of(split)
    if answer is None:
        return None
    return answer.order or tuple(range(split.start, split.end))


def order_of_plan(plan: Plan) -> tuple[int, ...] | None:
    """Of all nodes; None where that of a split is not known."""
    found: list[int] = []
    for split in plan.splits:
        order = order_of(split)
        if order is None:
            return None
        found += order
    return tuple(found)


def moved(order: Sequence[int]) -> tuple[int, ...]:
    """The fewest ids that have to be taken out of their graph's order and put elsewhere to get this
    one: those outside of a longest rising part of it."""
    ends: list[int] = []  # of the rising parts of each length, the least last one
    at: list[int] = []  # and where it is
    before: list[int] = []
    for i, id in enumerate(order):
        n = bisect_left(ends, id)
        before.append(at[n - 1] if n else -1)
        ends[n : n + 1], at[n : n + 1] = [id], [i]
    stays = set()
    i = at[-1] if at else -1
    while i >= 0:
        stays.add(order[i])
        i = before[i]
    return tuple(id for id in order if id not in stays)

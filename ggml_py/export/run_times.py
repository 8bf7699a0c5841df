"""What nodes and copies took in one compute of a run: the median one of the plan that took the most
time."""

from __future__ import annotations

from typing import NamedTuple

from ..trace.plan import Plan
from ..trace.run import ComputeRun, Run


class Times(NamedTuple):
    """ns by node and by copy (in the order of `rows.copy_rows`), and of all. Where nodes were not
    computed one by one (`per_op`) each has an equal part of what its split took."""

    plan: Plan
    nodes: tuple[int, ...]
    copies: tuple[int, ...]
    total: int
    per_op: bool
    compute: str  # which one it is


def times(run: Run) -> Times:
    """Raises ValueError for a run without a compute of which the plan is known."""
    by_plan: dict[int, list[ComputeRun]] = {}
    for compute in run.computes:
        index = run.schedulers[compute.event.scheduler].plans[compute.event.compute]
        if index >= 0:
            by_plan.setdefault(index, []).append(compute)
    if not by_plan:
        raise ValueError("the run has no compute of which the plan is known: nothing to draw")
    most = max(by_plan.values(), key=lambda computes: sum(map(_took, computes)))
    chosen = sorted(most, key=_took)[len(most) // 2]
    plan = chosen.plan
    assert plan is not None
    said = f"compute {chosen.event.compute} of {len(run.computes)}"
    if len(most) > 1:
        said += f", the median of the {len(most)} with this plan"
    nodes, copies = [0] * len(plan.nodes), [0] * plan.n_inputs
    first_copy = [0]
    for record in plan.split_records:
        first_copy.append(first_copy[-1] + len(record.inputs))
    for split in chosen.splits:
        for copy in split.copies:
            copies[first_copy[split.index] + copy.event.input] += copy.event.ns
        for event, done in zip(split.nodes, split.done, strict=True):
            computed = [n.id for n in chosen.given(event) or () if n.is_computed]
            for id in computed:
                nodes[id] += (done - event.start) // len(computed)
    return Times(plan, tuple(nodes), tuple(copies), _took(chosen), run.per_op, said)


def _took(compute: ComputeRun) -> int:
    return compute.end - compute.event.start

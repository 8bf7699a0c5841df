"""The times of nodes and copies in one compute of a run: the median compute of the plan that took
the most time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..trace.planned import Planned
from ..trace.recorded import DOUBT, MEASURED, NOT_KNOWN, ComputeRun, Recorded


class SplitTime(NamedTuple):
    """The time of a split's nodes together; `known` is as in `NodeRun`, or "predicted"."""

    ns: int  # -1 if the compute did not reach it
    known: str


class Times(NamedTuple):
    """Times in ns: by node, by copy (in the order of `rows.copy_rows`), by split, and in total.

    -1 means not known: a node that was computed together with others or has only an upper bound,
    and a copy that was handed to an asynchronous backend. `waits` are what copies had to wait
    before they began.
    """

    plan: Planned
    nodes: tuple[int, ...]
    copies: tuple[int, ...]
    waits: tuple[int, ...]
    splits: tuple[SplitTime, ...]
    total: int
    per_op: bool
    compute: str  # which compute it is


def times(run: Recorded, index: int | None = None) -> Times:
    """The times of a run, for the plan with that index instead of the one that took the most.
    Raises ValueError if no compute of it has a known plan."""
    most = run.most_computed()[1] if index is None else run.by_plan[index]
    chosen = median_of(most)
    plan = chosen.plan
    assert plan is not None
    number = next(i for i, compute in enumerate(run.computes) if compute is chosen)
    said = f"compute {number + 1} of {len(run.computes)}"
    if len(most) > 1:
        said += f", the median of the {len(most)} with this plan"
    nodes = [-1 if n.is_computed else 0 for n in plan.nodes]
    copies, waits = [0] * plan.n_inputs, [0] * plan.n_inputs
    splits = [SplitTime(-1, NOT_KNOWN)] * plan.n_splits
    first_copy = [0]
    for record in plan.split_records:
        first_copy.append(first_copy[-1] + len(record.inputs))
    for split in chosen.splits:
        for copy in split.copies:
            i = first_copy[split.index] + copy.event.input
            copies[i] = -1 if copy.queued else copy.event.ns - copy.waited
            waits[i] = copy.waited
        took = [done - event.start for event, done in zip(split.nodes, split.done, strict=True)]
        for event, ns, known in zip(split.nodes, took, split.known, strict=True):
            computed = [n.id for n in chosen.given(event) or () if n.is_computed]
            if len(computed) == 1 and known == MEASURED:
                nodes[computed[0]] = ns
        if took:
            splits[split.index] = SplitTime(sum(took), max(split.known, key=DOUBT.index))
    every = tuple(nodes), tuple(copies), tuple(waits), tuple(splits)
    return Times(plan, *every, chosen.ns, run.per_op, said)


def median_of(computes: Sequence[ComputeRun]) -> ComputeRun:
    """The median one, without those that may have taken longer than is known."""
    ended = [c for c in computes if c.known != NOT_KNOWN] or computes
    return sorted(ended, key=lambda c: c.ns)[len(ended) // 2]

"""The part of a plan that can be compared with an excerpt of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..planned import Planned
from ..split import Split


@dataclass(frozen=True, slots=True)
class Scope:
    """Nodes and splits of a plan that can be compared with another plan: all of them, unless one of
    both is an excerpt."""

    ids: range  # of nodes, and of other tensors if all nodes are in it
    splits: tuple[Split, ...]  # with a node in it
    begun: tuple[Split, ...]  # whose first node and inputs are in it


def scope(plan: Planned, other: Planned, pairs: Mapping[int, int]) -> Scope:
    """The part of `plan` that can be compared with `other`. `pairs` are the ids of tensors of
    `plan` that `other` has, too."""
    ids, splits, first_known = range(len(plan.tensors)), plan.splits, 0
    printed = other.capture.printed
    if printed is not None and printed.is_partial:
        if by_number(plan, other):
            first = max(0, printed.first_split)
            numbers, ids = range(first, first + other.n_splits), range(0)
            splits = tuple(s for s in splits if s.number in numbers)
        else:
            both = [id for id in pairs if id < len(plan.nodes)]
            start = min(both, default=0) if other.capture.begins_late else 0
            stop = max(both, default=-1) + 1 if printed.end else len(plan.nodes)
            ids = range(start, stop)
            splits = tuple(s for s in splits if s.start < stop and s.end > start)
            first_known = start + printed.begins_inside
    own = plan.capture.printed
    begun = splits[1:] if own is not None and own.begins_inside else splits
    if not by_number(plan, other):
        begun = tuple(s for s in begun if s.nodes and first_known <= s.start < ids.stop)
    return Scope(ids, splits, begun)


def by_number(plan: Planned, other: Planned) -> bool:
    """Whether splits can be compared only by their numbers, because nodes are not printed."""
    return not (plan.nodes and other.nodes)

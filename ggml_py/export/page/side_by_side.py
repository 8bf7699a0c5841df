"""The page's data for two plans side by side."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from ...advice.two_plans import phase_with, verdict_of_two
from ...cost.cost import Cost
from ...trace.answers.diff import diff as compare
from ...trace.answers.match import match_tensors
from ...trace.planned import Planned


def data(
    before: Planned, after: Planned, costs: tuple[Cost | None, Cost | None] = (None, None)
) -> dict[str, Any]:
    """The differences, the pairs of nodes, and the slots that nodes of both plans share. The
    verdict has the times of `costs`."""
    pairs = {
        i: j
        for i, j in match_tensors(before.capture, after.capture).pairs.items()
        if i < len(before.nodes) and j < len(after.nodes)
    }
    diff = compare(before, after)
    one, two = (phase_with(plan, cost) for plan, cost in zip((before, after), costs, strict=True))
    changed = [
        sorted({side.index for c in diff.changed if (side := getattr(c, which)).index is not None})
        for which in ("before", "after")
    ]
    for ids, only in zip(changed, (diff.removed, diff.added), strict=True):
        ids += [t.index for t in only if t.index is not None]
    return {
        "verdict": verdict_of_two(one, two, diff),
        "made": diff.made_with(),
        "sections": [[title, rows] for title, rows in diff.sections() if title != "made with"],
        "pairs": [pairs.get(i, -1) for i in range(len(before.nodes))],
        "changed": changed,
        "slots": slots(pairs, len(before.nodes), len(after.nodes)),
    }


def slots(pairs: dict[int, int], n_before: int, n_after: int) -> list[list[int]]:
    """The slot of each node, for both plans. The nodes of a pair have the same slot, as far as the
    order of both plans allows."""
    kept = _rising(pairs)
    mine, theirs, slot, at = [], [], 0, 0
    for i in range(n_before):
        if i in kept:
            while at < kept[i]:
                theirs.append(slot)
                slot, at = slot + 1, at + 1
            theirs.append(slot)
            at += 1
        mine.append(slot)
        slot += 1
    theirs += range(slot, slot + n_after - at)
    return [mine, theirs]


def _rising(pairs: dict[int, int]) -> dict[int, int]:
    """The most pairs in the same order in both plans (longest increasing subsequence)."""
    ends: list[int] = []  # the smallest end of a rising run of each length
    last: list[int] = []  # and the node that has it
    before: dict[int, int] = {}
    for i in sorted(pairs):
        k = bisect_left(ends, pairs[i])
        ends[k : k + 1] = [pairs[i]]
        last[k : k + 1] = [i]
        before[i] = last[k - 1] if k else -1
    kept, i = {}, last[-1] if last else -1
    while i >= 0:
        kept[i] = pairs[i]
        i = before[i]
    return kept

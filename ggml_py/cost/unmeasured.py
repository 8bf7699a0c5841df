"""The share of a graph's work of which nothing was measured. A total without more than a tenth of
the work says nothing, so it is not shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..trace.answers.shares import bytes_moved

if TYPE_CHECKING:
    from .cost import Cost

MOST = 0.1  # of the work; with more missing there is no total


def unmeasured(cost: Cost) -> float:
    """The share of the work without a time, from 0 to 1: of the nodes and copies, or of the bytes
    that they move, whichever is more."""
    capture = cost.plan.capture
    counts, moved = [0, 0], [0, 0]  # in all, and without a time
    for node in cost.nodes:
        record = capture.tensors[node.id]
        nbytes = bytes_moved(record, [capture.tensors[i] for i in record.src if i >= 0])
        for column, n in ((counts, 1), (moved, nbytes)):
            column[0] += n
            column[1] += n * (node.seconds is None)
    for copy in (*cost.copies, *cost.outputs):
        for column, n in ((counts, 1), (moved, copy.bytes)):
            column[0] += n
            column[1] += n * (copy.seconds is None)
    return max((missing / whole for whole, missing in (counts, moved) if whole), default=0.0)


def no_total(cost: Cost) -> str:
    """Why a cost has no total that says something; "" if it has one."""
    share = unmeasured(cost)
    if share <= MOST:
        return ""
    n, c = len(cost.unknown), len(cost.missing_copies)
    parts = [f"{n} of {len(cost.nodes)} nodes"] * bool(n) + [f"{c} copies"] * bool(c)
    return f"not known: {' and '.join(parts)}, {share:.0%} of the work"

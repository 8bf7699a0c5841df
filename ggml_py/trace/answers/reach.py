"""Nodes that use memory that their backend cannot reach, or whose writes are lost.

The scheduler copies a node's sources to the node's backend, but copies no result back. The result
of an op in place, or of an op on a view, is in its source's memory, whichever backend computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..record import OTHER, TensorRecord

if TYPE_CHECKING:
    from ..planned import Planned

WRITES, READS, UPDATES = "writes to", "reads", "updates a copy of"
# Optimizer steps write through these sources: the weights and the momenta.
_UPDATED = {"OPT_STEP_ADAMW": (0, 2, 3), "OPT_STEP_SGD": (0,)}


class Unreached(NamedTuple):
    """A node, what it does, and the tensor whose memory it uses."""

    node: TensorRecord
    what: str
    tensor: TensorRecord
    buft: int  # index into Capture.bufts


def unreached(plan: Planned) -> list[Unreached]:
    """One for each such node, in graph order. Empty for a plan that was read from a log, which does
    not say what the backends can read."""
    if plan.capture.source != "scheduler":
        return []
    found = (next(_of(plan, n.record), None) for n in plan.nodes if n.is_computed)
    return [u for u in found if u is not None]


def _of(plan: Planned, node: TensorRecord) -> Iterator[Unreached]:
    placement = plan.outcome.placements[node.id]
    bufts = plan.capture.bufts
    used = [(WRITES, node.id)]
    used += [(READS, i) for i in placement.planned_src or node.src if i >= 0]
    for what, id in used:
        holder, buft = _memory(plan, id)
        if buft >= 0 and holder.nbytes and not bufts[buft].readers >> placement.backend & 1:
            yield Unreached(node, what, holder, buft)
    for j in _UPDATED.get(node.op, ()):
        src, planned = (ids[j] if j < len(ids) else -1 for ids in (node.src, placement.planned_src))
        if -1 not in (src, planned) and src != planned:
            yield Unreached(node, UPDATES, *_memory(plan, src))


def _memory(plan: Planned, id: int) -> tuple[TensorRecord, int]:
    """The tensor that has the memory, and its buffer type; -1 if that is not known."""
    capture, outcome = plan.capture, plan.outcome
    n = len(capture.tensors)
    if id >= n:
        return outcome.copies[id - n], capture.backends[outcome.placements[id].backend].buft
    t = capture.tensors[id]
    holder = capture.tensors[t.view_src] if t.view_src >= 0 else t
    if holder.buffer >= 0:
        return holder, capture.buffers[holder.buffer].buft
    backend = outcome.placements[holder.id].backend
    known = backend >= 0 and holder.kind != OTHER
    return holder, capture.backends[backend].buft if known else -1


def said(plan: Planned, u: Unreached) -> str:
    """ "SCALE on CPU writes to gpu0 memory"."""
    on = plan.backends[plan.outcome.placements[u.node.id].backend].name
    memory = plan.capture.bufts[u.buft].name if u.buft >= 0 else "other"
    return f"{u.node.op_desc} on {on} {u.what} {memory} memory"

"""A plan as rows of plain values, from which its pictures and tables are made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..trace.answers.explain import has_steps
from ..trace.answers.reasons import AppliedRule, first_reason
from ..trace.answers.shares import bytes_moved
from ..trace.answers.why_splits import planned
from ..trace.facts import Facts
from ..trace.flops import flops
from ..trace.names import short_label
from ..trace.planned import Planned, PlanTensor
from ..trace.record import NODE
from .layers import layers


class NodeRow(NamedTuple):
    """One node. `flops` and `bytes` (read and written) are estimates, None where shapes are not
    known; both are 0 for a node that is not computed."""

    node: int
    name: str
    op: str  # its description: SILU rather than UNARY
    type: str
    ne: tuple[int, ...]
    backend: str | None
    cause: str
    split: int
    layer: int | None
    is_computed: bool
    flops: int | None
    bytes: int | None


class SplitRow(NamedTuple):
    """One split: nodes [start, end), of which `n_computed` are computed, and what is copied in."""

    split: int
    backend: str
    start: int
    end: int
    n_computed: int
    flops: int | None
    bytes: int | None
    n_copies: int
    copy_bytes: int


class CopyRow(NamedTuple):
    """One tensor that is copied for a split. `what` is "weight", "state" (a KV cache), "input" or
    "result". `node` is the copied node, or the node that a copied view shows, otherwise None.
    `src_backend` is the backend whose memory it is in, None where a log does not tell."""

    split: int
    tensor: str
    id: int
    copy_id: int
    what: str
    node: int | None
    src_backend: str | None
    dst_backend: str
    nbytes: int


class OffRow(NamedTuple):
    """Computed nodes of one op that are on a host backend instead of `device`, which has memory of
    its own, all for the reason `reason` (docs/EXPLAIN.md lists the reasons)."""

    device: str
    backend: str
    reason: str
    op: str
    nodes: tuple[int, ...]
    flops: int
    bytes: int
    text: str  # of the first node


def node_rows(plan: Planned) -> list[NodeRow]:
    """Every node, in graph order."""
    known = plan.capture.source == "scheduler"
    tensors = plan.capture.tensors
    split_of = [i for i, s in enumerate(plan.split_records) for _ in range(s.start, s.end)]
    rows = []
    for node, layer, split in zip(plan.nodes, layers(plan), split_of, strict=True):
        t = node.record
        sources = [tensors[i] for i in t.src if i >= 0]
        cost: tuple[int | None, int | None] = (None, None)
        if not node.is_computed:
            cost = (0, 0)
        elif known:
            cost = flops(t, sources), bytes_moved(t, sources)
        rows.append(
            NodeRow(
                t.id, t.name, t.op_desc, t.type, t.ne, node.backend, node.placement.cause,
                split, layer, node.is_computed, *cost,
            )
        )  # fmt: skip
    return rows


def split_rows(plan: Planned, nodes: list[NodeRow] | None = None) -> list[SplitRow]:
    """Every split, in computing order."""
    nodes = node_rows(plan) if nodes is None else nodes
    known = plan.capture.source == "scheduler"
    rows = []
    for s in plan.splits:
        mine = nodes[s.start : s.end]
        rows.append(
            SplitRow(
                s.index, s.backend, s.start, s.end, sum(n.is_computed for n in mine),
                sum(n.flops or 0 for n in mine) if known else None,
                sum(n.bytes or 0 for n in mine) if known else None,
                len(s.inputs), s.copy_bytes,
            )
        )  # fmt: skip
    return rows


def copy_rows(plan: Planned) -> list[CopyRow]:
    """Every copy, in the order they are made."""
    facts = Facts(plan, 0)
    rows = []
    for given in plan.copied:
        t = given.tensor
        holder = facts.holder(t.record)
        node = t.id if t.index is not None else holder.id if holder.kind == NODE else None
        what = "input"
        if facts.is_weight(holder):
            what = "weight"
        elif facts.is_state(holder):
            what = "state"
        elif node is not None:
            what = "result"
        rows.append(
            CopyRow(
                given.split.index, short_label(t), t.id, given.copy.id, what, node,
                _home(t), given.dst_backend, given.nbytes,
            )
        )  # fmt: skip
    return rows


def _home(t: PlanTensor) -> str | None:
    """The backend whose memory it is in. For the CPU's memory the scheduler would say BLAS."""
    readers = t.plan.capture.names(t.buft.readers) if t.buft else []
    return readers[-1] if readers else t.backend


def devices(plan: Planned) -> list[int]:
    """The backends with memory of their own (GPUs, not BLAS), highest priority first."""
    return Facts(plan, 0).devices


def off_rows(
    plan: Planned, nodes: Iterable[NodeRow], reasons: dict[int, AppliedRule]
) -> list[OffRow]:
    """The nodes on a host backend although there is a device, by reason, op and backend, most bytes
    moved first. `reasons` tells, by node, why they are not on the first device."""
    found: dict[tuple[str, str, str], list[NodeRow]] = {}
    for n in nodes:
        if n.node in reasons:
            key = reasons[n.node].id, n.op, n.backend or ""
            found.setdefault(key, []).append(n)
    there = devices(plan)
    device = plan.backends[there[0]].name if there else ""
    rows = [
        OffRow(
            device, backend, reason, op, tuple(n.node for n in group),
            sum(n.flops or 0 for n in group), sum(n.bytes or 0 for n in group),
            reasons[group[0].node].text,
        )
        for (reason, op, backend), group in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda r: (-r.bytes, -r.flops, r.nodes))


def off_reasons(plan: Planned, nodes: Iterable[NodeRow]) -> dict[int, AppliedRule]:
    """Why computed nodes on a host backend are not on the first device, by node index."""
    there = devices(plan)
    if not there or not has_steps(plan):
        return {}
    reference = planned(plan)
    host = {b.name for i, b in enumerate(plan.backends) if i not in there}
    reasons = {}
    for n in nodes:
        if n.is_computed and n.backend in host:
            found = first_reason(reference, reference.tensor(n.node), there[0])
            if found is not None:
                reasons[n.node] = found
    return reasons

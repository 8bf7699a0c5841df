"""The share of each backend in a graph: nodes, arithmetic, memory read and written."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ..expert_cache import expert_cache
from ..flops import flops
from ..names import counted
from ..planned import Planned, format_bytes
from ..record import NODE, Capture, TensorRecord
from .excerpt import mark


class DeviceShare(NamedTuple):
    """One backend's part of a plan. Shares are fractions of the plan's total, 0 to 1."""

    backend: str
    nodes: int  # that it computes
    node_share: float
    flops: int  # estimated
    flops_share: float
    bytes: int  # that its nodes read and write, estimated
    bytes_share: float
    weight_bytes: int  # of the graph's weights in its memory


def shares(plan: Planned) -> list[DeviceShare] | None:
    """The part of each backend, highest priority first; None if shapes are not known. Cached."""
    return plan.derived(_shares)


def _shares(plan: Planned) -> list[DeviceShare] | None:
    capture = plan.capture
    if capture.source != "scheduler":
        return None
    n = len(plan.backends)
    nodes, arithmetic, traffic, weights = [0] * n, [0] * n, [0] * n, [0] * n
    for t, place in zip(capture.tensors, plan.outcome.placements, strict=False):
        if t.kind == NODE:
            if t.is_view_op or (plan.has_compute_flags and "compute" not in t.flags):
                continue
            sources = [capture.tensors[i] for i in t.src if i >= 0]
            nodes[place.backend] += 1
            arithmetic[place.backend] += flops(t, sources)
            traffic[place.backend] += bytes_moved(t, sources)
        elif capture.is_weight(t):
            weights[_holder(capture, t)] += t.nbytes
    totals = [sum(column) or 1 for column in (nodes, arithmetic, traffic)]
    return [
        DeviceShare(
            backend.name,
            nodes[b], nodes[b] / totals[0],
            arithmetic[b], arithmetic[b] / totals[1],
            traffic[b], traffic[b] / totals[2],
            weights[b],
        )
        for b, backend in enumerate(plan.backends)
    ]  # fmt: skip


def bytes_moved(t: TensorRecord, sources: Sequence[TensorRecord]) -> int:
    """Roughly the bytes that computing `t` reads and writes: each source once, and `t`. Of tables,
    caches and experts only as many rows or matrices as there are indices."""
    if t.op == "GET_ROWS" and len(sources) > 1:
        rows = prod(sources[1].ne)
        return min(sources[0].nbytes, rows * sources[0].nb[1]) + sources[1].nbytes + t.nbytes
    if t.op == "SET_ROWS" and len(sources) > 1:
        written = prod(sources[0].ne[1:]) * t.nb[1]
        return sources[0].nbytes + sources[1].nbytes + min(t.nbytes, written)
    if t.op == "MUL_MAT_ID" and len(sources) > 2:
        experts = prod(sources[2].ne) * sources[0].nb[2]
        return min(sources[0].nbytes, experts) + sources[1].nbytes + sources[2].nbytes + t.nbytes
    if t.op == "CPY" and sources:
        return sources[0].nbytes + t.nbytes  # src[1] is overwritten, not read
    return sum({s.id: s.nbytes for s in sources}.values()) + t.nbytes


def _holder(capture: Capture, t: TensorRecord) -> int:
    """The backend whose memory a weight is in: the last one that can read it."""
    readers = capture.bufts[capture.buffers[t.buffer].buft].readers
    return readers.bit_length() - 1 if readers else len(capture.backends) - 1


def headline(plan: Planned) -> str:
    """See `Plan.headline`."""
    per_backend = plan.nodes_per_backend()
    total = sum(per_backend.values()) or 1
    nodes = ", ".join(f"{name} {n} ({n / total:.0%})" for name, n in per_backend.items())
    nodes = nodes if plan.nodes else "not printed"
    parts = shares(plan)
    splits, copies = counted(plan.n_splits, "split"), counted(plan.n_inputs, "copy", "copies")
    start = f"{splits}, {copies} ({format_bytes(plan.copy_bytes)}){_uploads(plan)}, nodes: {nodes}"
    assumed = "".join(f"{p}: " for p in (mark(plan.capture), plan.promise.headline) if p)
    return assumed + (start if parts is None else f"{start}; {in_words(parts)}")


def _uploads(plan: Planned) -> str:
    """Bytes that the expert cache may upload besides the copies, in words; "" without a cache."""
    caches = expert_cache(plan)
    if not caches:
        return ""
    most = sum(cache.upload_at_most for cache in caches)
    return f" and uploads of 0 to {format_bytes(most)} to the expert cache"


def in_words(parts: Sequence[DeviceShare]) -> str:
    """FLOPs and bytes by backend, for the headline."""
    arithmetic = ", ".join(f"{s.backend} {s.flops_share:.0%}" for s in parts)
    traffic = ", ".join(f"{s.backend} {s.bytes_share:.0%}" for s in parts)
    return f"FLOPs: {arithmetic}; bytes: {traffic}"


def format_count(n: float) -> str:
    """A number with a unit: 1.5 G."""
    for unit in ("", " k", " M", " G", " T"):
        if n < 1000 or unit == " T":
            return f"{n:.0f}" if not unit else f"{n:.1f}{unit}"
        n /= 1000
    raise AssertionError

"""The times of a plan's nodes and copies in a profile that upstream's profiler wrote."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .profile_file import COPY, ProfileRecord, UpstreamProfile
from .profile_file import read_profile as read_profile
from .profile_places import RecordFits, computes_in, is_view, record_places

if TYPE_CHECKING:
    from ..plan import Plan
    from ..trace.plan_tensor import PlanTensor

SHOWN = 5  # of the unmatched records
_OTHER = "in a compute of another graph"
_VIEW = "a view, which computes nothing"


class NodeTimes(NamedTuple):
    """The times of a node, or of the copy of a tensor to a backend, in ns, one for each compute
    that recorded it."""

    tensor: PlanTensor
    kind: str  # "op" or "copy"
    backend: str  # that computes it, or that it is copied to
    ns: tuple[int, ...]

    @property
    def total(self) -> int:
        """In all computes, ns."""
        return sum(self.ns)

    @property
    def mean(self) -> float | None:
        """In one compute, ns; None without a record."""
        return self.total / len(self.ns) if self.ns else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.tensor.id, "name": self.tensor.name, "kind": self.kind,
            "op": self.tensor.record.op_desc, "backend": self.backend, "ns": list(self.ns),
            "total_ns": self.total, "mean_ns": self.mean,
        }  # fmt: skip


class Unmatched(NamedTuple):
    """A record that belongs to no node or copy of the plan."""

    at: int  # index into the profile's records
    record: ProfileRecord
    why: str

    def __str__(self) -> str:
        tensor = f" '{self.record.tensor}'" if self.record.tensor else ""
        return f"record {self.at}, {self.record.name}{tensor}: {self.why}"


@dataclass(frozen=True)
class Joined:
    """A profile's times by the nodes and copies of a plan.

    Each record is matched by name, by order, or not: the three numbers add up to all records. By
    name: the record has the tensor's name, and no other node of that op, backend and shape has it.
    By order: the record has no name or several nodes have it, so that only its place tells which.
    """

    computes: int  # of this plan, as far as records tell
    nodes: tuple[NodeTimes, ...]  # that are computed, in the plan's order
    copies: tuple[NodeTimes, ...]  # in the order of splits and their inputs
    by_name: int
    by_order: int
    unmatched: int
    first_unmatched: tuple[Unmatched, ...]
    reasons: dict[str, int] = field(default_factory=dict)  # why records are unmatched, how many

    @property
    def matched(self) -> int:
        """Records that belong to a node or copy."""
        return self.by_name + self.by_order

    def headline(self) -> str:
        """The counts, in a line."""
        n_timed = sum(bool(t.ns) for t in self.nodes)
        return (
            f"{self.computes} computes, {n_timed} of {len(self.nodes)} nodes with times; records: "
            f"{self.by_name} matched by name, {self.by_order} by order only, "
            f"{self.unmatched} unmatched"
        )

    def __str__(self) -> str:
        rows = [("node", "op", "backend", "n", "total us", "mean us")]
        for t in (*self.nodes, *self.copies):
            op = "copy" if t.kind == COPY else t.tensor.record.op_desc
            mean = "-" if t.mean is None else f"{t.mean / 1e3:.1f}"
            total = f"{t.total / 1e3:.1f}" if t.ns else "-"
            name = " ".join(t.tensor.name.split())
            rows.append((name, op, t.backend, str(len(t.ns)), total, mean))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self.headline()]
        for row in rows:
            cells = [c.ljust(w) if i < 3 else c.rjust(w)
                     for i, (c, w) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
            lines.append("  ".join(cells).rstrip())
        lines += [f"unmatched: {n} {why}" for why, n in self.reasons.items()]
        lines += [f"  {one}" for one in self.first_unmatched]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "computes": self.computes, "matched": self.matched, "by_name": self.by_name,
            "by_order": self.by_order, "unmatched": self.unmatched, "reasons": dict(self.reasons),
            "first_unmatched": [
                {"index": u.at, "why": u.why, "record": u.record._asdict()}
                for u in self.first_unmatched
            ],
            "nodes": [t.to_dict() for t in self.nodes],
            "copies": [t.to_dict() for t in self.copies],
        }  # fmt: skip


def join(profile: UpstreamProfile, plan: Plan) -> Joined:
    """The times of a plan's nodes and copies in a profile.

    A record belongs to a node if backend (by name) and op agree, and whatever else the record
    tells: the tensor's name, the shapes of result and sources. Of several such nodes it is the next
    in the order of computation.

    Only whole computes count. They begin with the first node that any record could be of, end with
    the last node or copy, and in between follow the plan's order. They may lack nodes (fused, or on
    a backend that is not profiled), but none that other computes have for certain; and each of
    their records has a node. Otherwise these records are unmatched: they are another graph's.
    Graphs whose records look the same cannot be told apart.

    Raises ValueError for a plan without shapes, which was read from a log or snapshot.
    """
    if plan.capture.source != "scheduler":
        raise ValueError(
            f"this plan was read from a {plan.capture.source}, which does not have the shapes of "
            "all tensors: plan the graph, or load a record or a .json file"
        )
    places, n_nodes = record_places(profile, plan)
    fits = RecordFits(profile, plan, places)
    of_record = [fits.of(record) for record in profile.records]
    times: list[list[int]] = [[] for _ in places]
    by_name = by_order = computes = 0
    matched: set[int] = set()
    for compute in computes_in(profile.records, of_record):
        computes += 1
        for i, place in compute:
            matched.add(i)
            times[place].append(profile.records[i].duration_ns)
            if profile.records[i].tensor and len(of_record[i].places) == 1:
                by_name += 1
            else:
                by_order += 1
    why = {
        i: _VIEW if is_view(record) else of_record[i].why or _OTHER
        for i, record in enumerate(profile.records)
        if i not in matched
    }
    rows = [NodeTimes(*place, tuple(ns)) for place, ns in zip(places, times, strict=True)]
    nodes = sorted(rows[:n_nodes], key=lambda row: row.tensor.id)
    first = [Unmatched(i, profile.records[i], why[i]) for i in list(why)[:SHOWN]]
    reasons = dict(Counter(why.values()).most_common())
    return Joined(
        computes, tuple(nodes), tuple(rows[n_nodes:]), by_name, by_order, len(why), tuple(first),
        reasons,
    )  # fmt: skip

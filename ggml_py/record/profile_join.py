"""The records of a profile by the nodes of a plan: what `profile.join` returns, and how."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .profile import COPY, OP, Profile, ProfileRecord

if TYPE_CHECKING:
    from ..plan import Plan
    from ..trace.plan_tensor import PlanTensor

SHOWN = 5  # of the unmatched records
_OTHER = "in a compute of another graph"


class Times(NamedTuple):
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
    name: the record has the tensor's name, and no other node of that op and backend has it. By
    order: the record has no name or several nodes have it, so that only its place tells which.
    """

    computes: int  # of this plan, as far as records tell
    nodes: tuple[Times, ...]  # that are computed, in the plan's order
    copies: tuple[Times, ...]  # in the order of splits and their inputs
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


class _Place(NamedTuple):
    """A node or copy at its place in the records of one compute."""

    tensor: PlanTensor
    kind: str
    backend: str


class _Fit(NamedTuple):
    """The places that a record could have, in order, or why it has none."""

    places: tuple[int, ...]
    why: str


class _Run(NamedTuple):
    """Records in a row that may be one compute: their indices, and places if it is the plan's."""

    records: list[tuple[int, int]]
    is_plans: bool


def joined(profile: Profile, plan: Plan) -> Joined:
    """What `profile.join` says."""
    if plan.capture.source != "scheduler":
        raise ValueError(
            f"this plan was read from a {plan.capture.source}, which does not have the shapes of "
            "all tensors: plan the graph, or load a record or a .json file"
        )
    places, n_nodes = _places(profile, plan)
    fits = _Fits(profile, plan, places)
    of_record = [fits.of(record) for record in profile.records]
    times: list[list[int]] = [[] for _ in places]
    by_name = by_order = computes = 0
    why: dict[int, str] = {}
    for run in _runs(profile.records, of_record):
        computes += run.is_plans
        for i, place in run.records:
            if not run.is_plans:
                why[i] = of_record[i].why or _OTHER
                continue
            times[place].append(profile.records[i].duration_ns)
            if profile.records[i].tensor and len(of_record[i].places) == 1:
                by_name += 1
            else:
                by_order += 1
    rows = [Times(*place, tuple(ns)) for place, ns in zip(places, times, strict=True)]
    nodes = sorted(rows[:n_nodes], key=lambda row: row.tensor.id)
    first = [Unmatched(i, profile.records[i], why[i]) for i in sorted(why)[:SHOWN]]
    reasons = dict(Counter(why[i] for i in sorted(why)).most_common())
    return Joined(
        computes, tuple(nodes), tuple(rows[n_nodes:]), by_name, by_order, len(why), tuple(first),
        reasons,
    )  # fmt: skip


def _places(profile: Profile, plan: Plan) -> tuple[list[_Place], int]:
    """The nodes and copies in the order in which a compute's records are written; how many of them
    are nodes."""
    backends = profile.backends or tuple(b.name for b in plan.backends)
    rank = {name: i for i, name in enumerate(backends)}
    nodes = [
        _Place(node, OP, node.backend or "")
        for node in plan.order or plan.nodes
        if node.is_computed
    ]
    nodes.sort(key=lambda place: rank.get(place.backend, len(rank)))
    copies = [
        _Place(given.tensor, COPY, split.backend) for split in plan.splits for given in split.inputs
    ]
    return nodes + copies, len(nodes)


class _Fits:
    """Finds the places of records. Records that look the same have the same."""

    def __init__(self, profile: Profile, plan: Plan, places: Sequence[_Place]) -> None:
        self.places = places
        self.backends = profile.backends or tuple(b.name for b in plan.backends)
        self.known = {b.name for b in plan.backends}
        self.found: dict[tuple[object, ...], _Fit] = {}
        self.by_op: dict[tuple[str, str, str], list[int]] = {}
        for i, place in enumerate(places):
            record = place.tensor.record
            ops = {COPY} if place.kind == COPY else {record.op, record.op_desc}
            for op in ops:
                self.by_op.setdefault((place.kind, place.backend, op), []).append(i)

    def of(self, r: ProfileRecord) -> _Fit:
        key = (r.type, r.name, r.backend_id, r.tensor, r.ne, r.ne_src)
        if key not in self.found:
            self.found[key] = self._find(r)
        return self.found[key]

    def _find(self, r: ProfileRecord) -> _Fit:
        if not 0 <= r.backend_id < len(self.backends):
            return _Fit((), f"there is no backend {r.backend_id}")
        backend = self.backends[r.backend_id]
        if backend not in self.known:
            return _Fit((), f"the plan has no backend {backend}")
        op = COPY if r.type == COPY else r.name
        places = self.by_op.get((r.type, backend, op), [])
        if not places:
            said = "nothing is copied to" if op == COPY else f"no {op} is computed on"
            return _Fit((), f"{said} {backend} in the plan")
        if r.tensor:
            places = [i for i in places if self.places[i].tensor.name == r.tensor]
            if not places:
                return _Fit((), f"the plan has no such {op} on {backend} with that name")
        places = [i for i in places if _same_shapes(r, self.places[i])]
        why = "" if places else f"the plan has no such {op} on {backend} with these shapes"
        return _Fit(tuple(places), why)


def _same_shapes(r: ProfileRecord, place: _Place) -> bool:
    tensor = place.tensor
    if place.kind == COPY:
        return not r.ne_src or r.ne_src[0] in ((), tensor.ne)
    if r.ne and r.ne != tensor.ne:
        return False
    src, tensors = tensor.record.src, tensor.plan.tensors
    for s, ne in enumerate(r.ne_src):
        if ne and (s >= len(src) or src[s] < 0 or tensors[src[s]].ne != ne):
            return False
    return True


def _runs(records: Sequence[ProfileRecord], fits: Sequence[_Fit]) -> list[_Run]:
    """All records, cut into computes of the plan and stretches of other graphs' computes."""
    used = {place for fit in set(fits) for place in fit.places}
    first, last = min(used, default=0), max(used, default=-1)
    runs: list[_Run] = []
    now: list[tuple[int, int]] = []
    place, is_plans = -1, True  # the place of the last record

    def close() -> None:
        nonlocal now, place, is_plans
        if now:
            runs.append(_Run(now, is_plans))
        now, place, is_plans = [], -1, True

    for i, (record, fit) in enumerate(zip(records, fits, strict=True)):
        before = records[i - 1] if i else record
        if record.type == OP and (before.type == COPY or record.backend_id < before.backend_id):
            close()  # the order of backends begins again
        at = bisect_left(fit.places, place + 1)
        if not (is_plans and at < len(fit.places)):
            begins = bool(fit.places) and fit.places[0] == first
            if begins or (is_plans and place == last):
                close()
            at = 0
        is_plans = is_plans and at < len(fit.places) and fit.places[at] > place
        place = fit.places[at] if is_plans else place
        now.append((i, place))
    close()
    return runs

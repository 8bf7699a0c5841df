"""Where each record of a profile could be in a compute of a plan, and which are one compute."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..trace.record import VIEW_OPS
from .profile_file import COPY, OP, ProfileRecord, UpstreamProfile

if TYPE_CHECKING:
    from ..plan import Plan
    from ..trace.plan_tensor import PlanTensor


class RecordPlace(NamedTuple):
    """A node or copy at its place in the records of one compute."""

    tensor: PlanTensor
    kind: str
    backend: str


class RecordFit(NamedTuple):
    """The places that a record could have, in order, or why it has none."""

    places: tuple[int, ...]
    why: str


def record_places(profile: UpstreamProfile, plan: Plan) -> tuple[list[RecordPlace], int]:
    """The nodes and copies in the order in which a compute's records are written; how many of them
    are nodes."""
    backends = profile.backends or tuple(b.name for b in plan.backends)
    rank = {name: i for i, name in enumerate(backends)}
    nodes = [
        RecordPlace(node, OP, node.backend or "")
        for node in plan.order or plan.nodes
        if node.is_computed
    ]
    nodes.sort(key=lambda place: rank.get(place.backend, len(rank)))
    copies = [
        RecordPlace(given.tensor, COPY, split.backend)
        for split in plan.splits
        for given in split.inputs
    ]
    return nodes + copies, len(nodes)


class RecordFits:
    """Finds the places of records. Records that look the same have the same."""

    def __init__(self, profile: UpstreamProfile, plan: Plan, places: Sequence[RecordPlace]) -> None:
        self.places = places
        self.backends = profile.backends or tuple(b.name for b in plan.backends)
        self.known = {b.name for b in plan.backends}
        self.found: dict[tuple[object, ...], RecordFit] = {}
        self.by_op: dict[tuple[str, str, str], list[int]] = {}
        for i, place in enumerate(places):
            record = place.tensor.record
            ops = {COPY} if place.kind == COPY else {record.op, record.op_desc}
            for op in ops:
                self.by_op.setdefault((place.kind, place.backend, op), []).append(i)

    def of(self, r: ProfileRecord) -> RecordFit:
        key = (r.type, r.name, r.backend_id, r.tensor, r.ne, r.ne_src)
        if key not in self.found:
            self.found[key] = self._find(r)
        return self.found[key]

    def _find(self, r: ProfileRecord) -> RecordFit:
        if not 0 <= r.backend_id < len(self.backends):
            return RecordFit((), f"there is no backend {r.backend_id}")
        backend = self.backends[r.backend_id]
        if backend not in self.known:
            return RecordFit((), f"the plan has no backend {backend}")
        op = COPY if r.type == COPY else r.name
        places = self.by_op.get((r.type, backend, op), [])
        if not places:
            said = "nothing is copied to" if op == COPY else f"no {op} is computed on"
            return RecordFit((), f"{said} {backend} in the plan")
        if r.tensor:
            places = [i for i in places if self.places[i].tensor.name == r.tensor]
            if not places:
                return RecordFit((), f"the plan has no such {op} on {backend} with that name")
        places = [i for i in places if _same_shapes(r, self.places[i])]
        why = "" if places else f"the plan has no such {op} on {backend} with these shapes"
        return RecordFit(tuple(places), why)


def is_view(record: ProfileRecord) -> bool:
    """Whether it is of a node that computes nothing, whether or not a profile has it."""
    return record.type == OP and (record.name in VIEW_OPS or record.name == "NONE")


def _same_shapes(r: ProfileRecord, place: RecordPlace) -> bool:
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


def computes_in(
    records: Sequence[ProfileRecord], fits: Sequence[RecordFit]
) -> Iterator[list[tuple[int, int]]]:
    """The computes of the plan that are in the records: the index and place of each record."""
    used = {place for fit in set(fits) for place in fit.places}
    first, last = min(used, default=0), max(used, default=-1)
    # Nodes that a record can only belong to. Computes of one plan have records of the same nodes.
    sure = sorted({fit.places[0] for fit in set(fits) if len(fit.places) == 1})
    rows = [i for i, record in enumerate(records) if not is_view(record)]

    def compute_at(at: int) -> list[tuple[int, int]]:
        """The compute that begins with a row; [] if none does."""
        found: list[tuple[int, int]] = []
        place = first - 1
        for n in range(at, len(rows)):
            i = rows[n]
            places = fits[i].places
            next_ = bisect_left(places, place + 1)
            if next_ == len(places) or (not found and places[next_] != first):
                return []
            if found and _begins_again(records[found[-1][0]], records[i]):
                return []
            if bisect_left(sure, place + 1) != bisect_left(sure, places[next_]):
                return []
            place = places[next_]
            found.append((i, place))
            if place == last:
                return found
        return []

    at = 0
    while at < len(rows):
        found = compute_at(at)
        if found:
            yield found
        at += len(found) or 1


def _begins_again(before: ProfileRecord, record: ProfileRecord) -> bool:
    """Whether the order in which a compute is written begins again."""
    return record.type == OP and (before.type == COPY or record.backend_id < before.backend_id)

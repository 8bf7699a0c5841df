"""How much of what a graph reads no cache still has, by the bytes that it reads.

A model that generates reads the same weights for each token. If a device reads 20 MiB of them and
the cache has 32, it finds them there; but the CPU of the same machine may have read 20 others
meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..trace.planned import Planned
from ..trace.record import NODE
from .datasheets import SheetEstimator
from .estimate import Estimator
from .work import LEAST_KEPT


def coldnesses(
    plan: Planned, estimators: Sequence[Estimator | SheetEstimator | None]
) -> list[float]:
    """Part of each backend's reads that no cache still has, from 0 to 1. Backends that share the
    CPU's cache add up their reads."""
    read = _read(plan)
    shared = [e is not None and e.device.shares_cache for e in estimators]
    together: dict[int, int] = {}
    for mine, is_shared in zip(read, shared, strict=True):
        for holder, nbytes in mine.items() if is_shared else ():
            together[holder] = max(together.get(holder, 0), nbytes)
    return [
        1.0 if e is None else e.coldness(sum((together if is_shared else mine).values()))
        for e, is_shared, mine in zip(estimators, shared, read, strict=True)
    ]


def _read(plan: Planned) -> list[dict[int, int]]:
    """Bytes that each backend's nodes read of tensors with memory before the graph, by tensor."""
    read = [dict[int, int]() for _ in plan.backends]
    tensors, placed = plan.capture.tensors, plan.outcome.placements
    for t in tensors:
        if t.kind != NODE:
            break  # nodes come first
        if t.is_view_op or t.op in ("GET_ROWS", "SET_ROWS"):
            continue
        seen = read[placed[t.id].backend]
        for i in t.src:
            if i >= 0 and (s := tensors[i]).nbytes > LEAST_KEPT:
                holder = s.view_src if s.view_src >= 0 else i
                if tensors[holder].buffer >= 0:
                    seen[holder] = max(seen.get(holder, 0), s.nbytes)
    return read

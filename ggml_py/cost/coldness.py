"""How much of what a graph reads no cache still has, by the bytes that it reads.

A model that generates reads the same weights for each token. If a device reads 20 MiB of them and
the cache has 32, it finds them there; but the CPU of the same machine may have read 20 others
meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..trace.planned import Planned
from ..trace.record import NODE
from .datasheets import SheetEstimator
from .estimate import Estimator
from .work import EXPERTS, experts_read

_LEAST = 4096  # bytes of a tensor that counts


class Coldness(NamedTuple):
    """The part of what a backend reads that no cache still has, from 0 to 1."""

    usual: float
    # Of experts: one that a token does not choose was read longer ago.
    experts: float


class _Read(NamedTuple):
    """The bytes of a tensor that was there before the graph: those that the graph reads, and those
    that some graphs later all have been read."""

    now: float
    all: float


def coldnesses(
    plan: Planned, estimators: Sequence[Estimator | SheetEstimator | None]
) -> list[Coldness]:
    """For each backend. Those that share the CPU's cache count what they read together."""
    read = _read(plan)
    shared = [e is not None and e.device.shares_cache for e in estimators]
    together: dict[int, _Read] = {}
    for mine, is_shared in zip(read, shared, strict=True):
        for holder, one in mine.items() if is_shared else ():
            _more(together, holder, one)
    found = []
    for e, is_shared, mine in zip(estimators, shared, read, strict=True):
        of = (together if is_shared else mine).values()
        now, all_ = sum(one.now for one in of), sum(one.all for one in of)
        found.append(Coldness(1.0, 1.0) if e is None else
                     Coldness(e.coldness(int(now)), e.coldness(int(all_))))  # fmt: skip
    return found


def _more(read: dict[int, _Read], holder: int, one: _Read) -> None:
    before = read.get(holder, one)
    read[holder] = _Read(max(before.now, one.now), max(before.all, one.all))


def _read(plan: Planned) -> list[dict[int, _Read]]:
    """For each backend what its nodes read, by tensor."""
    read = [dict[int, _Read]() for _ in plan.backends]
    tensors, placed = plan.capture.tensors, plan.outcome.placements
    for t in tensors:
        if t.kind != NODE:
            break  # nodes come first
        if t.is_view_op or t.op in ("GET_ROWS", "SET_ROWS"):
            continue
        seen = read[placed[t.id].backend]
        for nth, i in enumerate(t.src):
            if i >= 0 and (s := tensors[i]).nbytes > _LEAST:
                holder = s.view_src if s.view_src >= 0 else i
                if tensors[holder].buffer >= 0:
                    part = 1.0
                    if t.op == EXPERTS and nth == 0:
                        used, n_tokens = tensors[t.src[2]].ne[:2]
                        part = experts_read(s.ne[2], used, n_tokens) / s.ne[2]
                    _more(seen, holder, _Read(s.nbytes * part, s.nbytes))
    return read

"""Single nodes that would lower a compute buffer if another backend computed them, each tried."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..trace.answers.what_if import what_if
from ..trace.planned import Planned
from ..trace.planning import CannotPlanError
from .compute_buffer import ComputeBuffer
from .plan_memory import memory_of

_TRIED = 3  # nodes of each buffer
_LEAST = 100  # a part of the buffer: less is not worth a pin


class NodeMove(NamedTuple):
    """A node pinned to another backend, and the compute buffers' sizes before and then."""

    node: str
    op: str
    backend: str  # where it would be computed
    before: dict[str, int]  # bytes by buffer type
    after: dict[str, int]

    @property
    def saved(self) -> dict[str, int]:
        """Bytes by buffer type; negative: it needs more there."""
        sizes = {name: self.before[name] - self.after.get(name, 0) for name in self.before}
        return {name: size for name, size in sizes.items() if size}

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {**self._asdict(), "saved": self.saved}


def node_moves(plan: Planned) -> tuple[NodeMove, ...]:
    """The largest nodes alive at each device's peak, pinned to the last backend: those with which
    the device's buffer is a hundredth smaller, or more; the best first. Weights, pins and all else
    stay.

    What `Plan.what_if` says of the plan then holds: it is the scheduler's promise alone.
    """
    memory = memory_of(plan)
    last = plan.backends[-1]
    before = {buffer.name: buffer.size for buffer in memory.buffers}
    found = []
    for buffer in memory.buffers:
        if buffer.size and last.name not in buffer.backends:
            found += _moves_of(plan, buffer, last.name, before)
    found.sort(key=lambda move: -max(move.saved.values()))
    return tuple(found)


def _moves_of(
    plan: Planned, buffer: ComputeBuffer, to: str, before: dict[str, int]
) -> list[NodeMove]:
    found: list[NodeMove] = []
    blocks = [b for b in buffer.alive(buffer.peak_step) if plan.tensor(b.tensor).is_computed]
    for block in blocks[:_TRIED]:
        t = plan.tensor(block.tensor)
        try:
            memory = memory_of(what_if(plan, pins={t.id: to}))
        except (CannotPlanError, ValueError):
            continue
        after = {b.name: b.size for b in memory.buffers}
        saved = buffer.size - after.get(buffer.name, 0)
        if not memory.unknown and saved * _LEAST > buffer.size:
            found.append(NodeMove(t.name, t.record.op_desc, to, before, after))
    return found

"""The compute buffers of a plan for the page: which tensor has which bytes, from when to when."""

from __future__ import annotations

from typing import Any

from ...memory.compute_buffer import ComputeBuffer
from ...memory.plan_memory import PlanMemory, memory_of
from ...trace.planned import Planned
from ...trace.record import COPY
from .interning import Table


def memory_map(plan: Planned) -> dict[str, Any]:
    """Columns for memory.js. Numbers that rise are stored as differences."""
    memory = memory_of(plan)
    return {
        "note": memory.note or memory.unknown,
        "steps": differences([_step(memory, i) for i in range(len(memory.steps))]),
        "buffers": [_buffer(buffer, len(plan.nodes)) for buffer in memory.buffers if buffer.size],
    }


def _step(memory: PlanMemory, i: int) -> int:
    """Twice the id of the step's tensor, one more for a copy of it; -1 for a node of another
    graph."""
    t, layout = memory.steps[i], memory.layout
    assert layout is not None
    if t is None:
        return -1
    if t.record.kind == COPY:
        return 2 * t.placement.copy_of + 1
    return 2 * t.id + (layout.order[i] < 0)


def _buffer(buffer: ComputeBuffer, n_nodes: int) -> dict[str, Any]:
    """A block is the number of a kind. A kind has eight numbers:

    1. 1 for a node, 0 for another tensor.
    2. The difference from the number of the last such tensor.
    3. The difference from the first step of the last block.
    4. The chunk.
    5. The offset, in units of the alignment.
    6. Bytes.
    7. Steps after the first; -1: until the end, because nothing frees it.
    8. The tensor whose place it takes. 0: none, 1: the last node, 2: the node before it, and so on;
       -1: the last other tensor.
    """
    kinds, numbers = Table(), []
    last, first = [0, 0], 0
    for b in buffer.blocks:
        is_node, added = int(b.tensor < n_nodes), b.first - first
        by = b.tensor - last[is_node]
        last[is_node], first = b.tensor, b.first
        place = 0
        if b.place_of >= 0:
            of_node = b.place_of < n_nodes
            place = (last[of_node] - b.place_of + 1) * (1 if of_node else -1)
        later = -1 if b.kept else b.last - b.first
        offset = b.offset // buffer.alignment
        numbers.append(kinds.number((is_node, by, added, b.chunk, offset, b.size, later, place)))
    return {
        "name": buffer.name, "device": buffer.device, "chunks": list(buffer.chunk_sizes),
        "alignment": buffer.alignment, "peak": buffer.peak, "peakStep": buffer.peak_step,
        "kinds": kinds.values(), "blocks": numbers,
    }  # fmt: skip


def differences(values: list[int]) -> list[int]:
    """The first value, then differences: these are shorter where the values rise."""
    return [value - before for before, value in zip([0, *values], values, strict=False)]

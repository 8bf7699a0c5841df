"""The memory of a plan as a page: addresses against nodes, and the bytes alive.

It consists of memory.html, memory.css and memory.js in this folder, with the plan's data inserted.
The same plan gives the same bytes.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from ...memory import PlanMemory
from ...trace.answers.shares import headline
from ...trace.names import counted
from ...trace.planned import format_bytes
from ..page.whole import whole


def page(memory: PlanMemory) -> str:
    """The page. Raises ValueError for a plan whose compute buffers are not known."""
    if memory.unknown:
        raise ValueError(f"nothing to draw: {memory.unknown}")
    sizes = ", ".join(f"{b.name} {format_bytes(b.size)}" for b in memory.buffers if b.size)
    title = f"Memory of {counted(len(memory.plan.nodes), 'node')}: {sizes or 'none'}"
    parts = [_part("memory.js")]
    return whole(
        title,
        headline(memory.plan),
        _part("memory.html"),
        _part("memory.css"),
        parts,
        _data(memory),
    )


def _data(memory: PlanMemory) -> dict[str, Any]:
    buffers = [buffer for buffer in memory.buffers if buffer.size]
    ids = sorted({block.tensor for buffer in buffers for block in buffer.blocks})
    at = {id: i for i, id in enumerate(ids)}
    return {
        "note": memory.note,
        "steps": [memory.what(i) for i in range(len(memory.steps))],
        "tensors": [_tensor(memory, id) for id in ids],
        "buffers": [
            {
                "name": buffer.name, "size": buffer.size, "chunks": list(buffer.chunk_sizes),
                "alignment": buffer.alignment, "peak": buffer.peak, "peakStep": buffer.peak_step,
                "live": list(buffer.live),
                "blocks": [
                    [
                        at[b.tensor], b.chunk, b.offset, b.size, b.padded, b.first, b.last,
                        at.get(b.place_of, -1), int(b.kept),
                    ]
                    for b in buffer.blocks
                ],
            }
            for buffer in buffers
        ],
    }  # fmt: skip


def _tensor(memory: PlanMemory, id: int) -> dict[str, Any]:
    t = memory.plan.tensor(id)
    return {
        "name": t.name, "op": t.record.op_desc, "type": t.type, "ne": list(t.ne),
        "flags": list(t.flags), "kind": t.record.kind, "backend": t.backend,
    }  # fmt: skip


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")

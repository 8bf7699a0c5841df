"""The model's layer that each node belongs to, from the names that llama.cpp gives."""

from __future__ import annotations

from collections.abc import Sequence

from ..trace.names import layer_in
from ..trace.planned import Planned
from ..trace.record import NODE


def layers(plan: Planned) -> list[int | None]:
    """The layer of each node, from its name, its weights' names, or the nodes on both sides."""
    tensors = plan.capture.tensors
    told: list[int | None] = []
    for t in tensors:
        if t.kind != NODE:
            break
        layer = layer_in(t.name)
        if layer is None:
            sources = (layer_in(tensors[i].name) for i in t.src if i >= 0 and not _is_node(plan, i))
            layer = next((s for s in sources if s is not None), None)
        told.append(layer)
    return _filled(told)


def _is_node(plan: Planned, id: int) -> bool:
    return plan.capture.tensors[id].kind == NODE


def _filled(told: Sequence[int | None]) -> list[int | None]:
    """Gives nodes between two nodes of one layer that layer."""
    filled = list(told)
    last = -1
    for i, layer in enumerate(told):
        if layer is None:
            continue
        if last >= 0 and told[last] == layer:
            filled[last:i] = [layer] * (i - last)
        last = i
    return filled

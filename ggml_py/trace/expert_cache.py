"""llama.cpp's expert cache (--moe-cache-mib) in a plan: its content, and the bytes it may upload.

Experts of layers whose experts are in host memory have slots in a device's memory. A layer's slot
map is an input of a split; when it is copied, libllama's copy callback uploads the experts that the
tokens need and the cache lacks. The scheduler counts the slot map only. C++: llama_moe_cache::copy
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from .names import counted, layer_in
from .pins import SLOT_MAP
from .planned import format_bytes

if TYPE_CHECKING:
    from .plan_tensor import PlanTensor
    from .planned import Planned


class ExpertCache(NamedTuple):
    """The layers that share the slots of one device. Bytes."""

    backend: str
    layers: tuple[int, ...]
    n_slots: int  # for the experts of all these layers
    n_expert: int  # of each layer
    held: int  # of all slots, and of the spare one behind them
    expert: int  # of one expert of a layer, all of its matrices
    at_most: int  # experts of one layer that one evaluation uploads, if the cache has none of them

    @property
    def upload_at_most(self) -> int:
        """Bytes that one evaluation uploads if the cache has none of the experts."""
        return len(self.layers) * self.at_most * self.expert

    def __str__(self) -> str:
        return (
            f"expert cache on {self.backend} (--moe-cache-mib): {format_bytes(self.held)} for "
            f"{counted(self.n_slots, 'expert')} of {len(self.layers) * self.n_expert} in "
            f"{counted(len(self.layers), 'layer')}. Besides the copies an evaluation uploads 0 to "
            f"{format_bytes(self.upload_at_most)}: at most {counted(self.at_most, 'expert')} of "
            f"each layer, {format_bytes(self.expert)} each, if the cache lacks them"
        )

    def to_dict(self) -> dict[str, object]:
        """As data that `json` can write."""
        return {**self._asdict(), "upload_at_most": self.upload_at_most}


def expert_cache(plan: Planned) -> tuple[ExpertCache, ...]:
    """The expert caches that the graph reads. libllama builds layers with more than 32 tokens
    without; the last layer has only those with outputs."""
    matrices: dict[int, list[PlanTensor]] = {}  # by the node that looks up the slots
    for node in plan.nodes:
        if node.op == "MUL_MAT_ID" and len(node.srcs) > 2:
            ids = node.srcs[2]
            matrices.setdefault((ids.view_src or ids).id, []).append(node.srcs[0])
    groups: dict[tuple[int, ...], list[tuple[PlanTensor, list[PlanTensor]]]] = {}
    for node in plan.nodes:
        if node.op == "GET_ROWS" and node.srcs and node.srcs[0].name.startswith(SLOT_MAP):
            found = matrices.get(node.id, [])
            banks = tuple(dict.fromkeys((m.view_src or m).id for m in found))
            if banks:
                groups.setdefault(banks, []).append((node, found))
    return tuple(_of(plan, banks, layers) for banks, layers in groups.items())


def _of(
    plan: Planned, banks: tuple[int, ...], layers: list[tuple[PlanTensor, list[PlanTensor]]]
) -> ExpertCache:
    (node, found), n_expert = layers[0], layers[0][0].srcs[0].ne[1]
    return ExpertCache(
        node.backend or "",
        tuple(int(layer_in(one.name) or 0) for one, _found in layers),
        found[0].ne[2],
        n_expert,
        sum(plan.tensor(i).nbytes for i in banks),
        sum({m.id: m.record.nb[2] for m in found}.values()),
        min(prod(node.ne), n_expert),
    )

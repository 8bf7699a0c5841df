"""Probes of libllama in a scheduler's plans: fused ops that are not on their layer's device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .choice import FUSED, Choice
from .names import layer_in, quoted
from .refusals import refused

if TYPE_CHECKING:
    from .plan_tensor import PlanTensor
    from .planned import Planned

# Ops that libllama does without if a probe refuses them: `llm_fused_op`.
FUSED_OPS = frozenset({
    "FLASH_ATTN_EXT", "GATED_DELTA_NET", "LIGHTNING_INDEXER", "DSV4_HC_PRE", "DSV4_HC_COMB",
    "DSV4_HC_POST",
})  # fmt: skip


def where_probed(node: PlanTensor, layer: int, device: str) -> str:
    """Where a probe's node is, and where its layer is."""
    return (
        f"node {quoted(node)} ({node.op}) of layer {layer} is on {node.backend}, and the layer is "
        f"on {device}; one such node decides for the whole model"
    )


def refused_in(probes: Iterable[Planned], plan: Planned) -> tuple[Choice, ...]:
    """The fused ops of earlier plans of a scheduler, `probes`, that `plan` does without: inferred,
    because a program's record does not say what the program decided."""
    there = {node.op for node in plan.nodes}
    found: dict[str, Choice] = {}
    for probe in probes:
        for node in probe.nodes:
            if node.op in FUSED_OPS - there - found.keys():
                layer = layer_of(node)
                device = None if layer is None else _device_of(probe, layer)
                if layer is not None and device is not None and device != node.backend:
                    found[node.op] = _inferred(node, layer, device)
    return tuple(found.values())


def _inferred(node: PlanTensor, layer: int, device: str) -> Choice:
    plan = node.plan
    reason = refused(node, plan.capture.backend_index(device))
    why = where_probed(node, layer, device) + (f" ({reason.clause(node)})" if reason else "")
    flips = ("-fa on uses it without a probe",) if node.op == "FLASH_ATTN_EXT" else ()
    probe = f"an earlier plan, of {len(plan.nodes)} nodes"
    return Choice(FUSED, node.op, "is not used", why, node.name, node.op, probe, flips, True)


def layer_of(node: PlanTensor) -> int | None:
    """The layer of a node: in its name, or in the name of the nearest of its readers, or of the
    cache that it reads."""
    names = [
        node.name,
        *(s.name for s in node.srcs),
        *(s.view_src.name for s in node.srcs if s.view_src),
    ]
    return next((n for n in map(layer_in, names) if n is not None), None)


def _device_of(plan: Planned, layer: int) -> str | None:
    """The backend of a layer: of its pinned norms, or the first that reads its norm's weight."""
    for node in plan.nodes:
        if node.record.pin >= 0 and node.name == f"norm-{layer}":
            return plan.backends[node.record.pin].name
    for leaf in plan.leafs:
        if leaf.name == f"blk.{layer}.attn_norm.weight" and leaf.buft is not None:
            readers = plan.capture.names(leaf.buft.readers)
            return readers[0] if readers else None
    return None

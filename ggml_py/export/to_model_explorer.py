"""A plan for Google's Model Explorer: layers to open and close, nodes in their backends' colours,
copies as an overlay of edges. Backend, cause and bytes are attributes of nodes and, summed up, of
layers. "View on nodes" there shows them in the graph.

The format is graph_builder.GraphCollection of its package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..trace.answers.shares import headline
from ..trace.planned import Planned, PlanTensor, format_bytes
from .palette import COLORS, fills, pale
from .rows import NodeRow, node_rows


def render(plan: Planned) -> dict[str, Any]:
    """The collection with its one graph, as data that `json` can write."""
    color = {name: pale(fill) for name, fill in fills(plan).items()}
    copied = {(i.split.index, i.tensor.id): i.nbytes for i in plan.copied}
    nodes, edges = [], []
    rows = node_rows(plan)
    for row, node in zip(rows, plan.nodes, strict=True):
        nodes.append(_node(row, node, color))
        for source in dict.fromkeys(s for s in node.srcs if s.index is not None):
            nbytes = copied.get((row.split, source.id))
            if nbytes is not None:
                label = format_bytes(nbytes)
                edges.append(
                    {"sourceNodeId": str(source.id), "targetNodeId": str(row.node), "label": label}
                )
    overlay = {"name": "copies", "edgeColor": COLORS["arrow"].light, "edgeWidth": 2, "edges": edges}
    copies = {"type": "edge_overlays", "name": "copies between backends", "overlays": [overlay]}
    graph = {
        "id": "plan", "nodes": nodes,
        "groupNodeAttributes": {
            "": _made_with(plan), **_layers(rows),
        },
        "tasksData": {"edgeOverlaysDataListLeftPane": [copies]},
    }  # fmt: skip
    return {"label": "ggml plan", "graphs": [graph]}


def _made_with(plan: Planned) -> dict[str, str]:
    """The headline, and the release unless a log or a snapshot does not tell it."""
    known = plan.capture.source == "scheduler"
    return {"plan": headline(plan)} | ({"ggml": plan.settings.upstream} if known else {})


def _node(row: NodeRow, node: PlanTensor, color: dict[str, str]) -> dict[str, Any]:
    attrs = {
        "backend": row.backend or "unknown", "cause": str(node.cause), "split": str(row.split),
        "node": str(row.node), "name": row.name, "bytes": _number(row.bytes),
        "FLOPs": _number(row.flops),
    }  # fmt: skip
    weights = [s.name for s in node.srcs if s.index is None]
    if weights:
        attrs["leafs"] = ", ".join(weights)
    shape = f"{row.type}[{', '.join(map(str, row.ne))}]"
    tensor = [{"key": "tensor_name", "value": row.name}, {"key": "tensor_shape", "value": shape}]
    edges = [
        {"sourceNodeId": str(s.id), "sourceNodeOutputId": "0", "targetNodeInputId": str(i)}
        for i, s in enumerate(node.srcs)
        if s.index is not None
    ]
    return {
        "id": str(row.node), "label": row.op,
        "namespace": _namespace(row),
        "attrs": [{"key": k, "value": v} for k, v in attrs.items()],
        "incomingEdges": edges, "outputsMetadata": [{"id": "0", "attrs": tensor}],
        "style": {"backgroundColor": color.get(row.backend or "", "#ffffff")},
    }  # fmt: skip


def _namespace(row: NodeRow) -> str:
    return "" if row.layer is None else f"layer {row.layer}"


def _layers(rows: list[NodeRow]) -> dict[str, dict[str, str]]:
    """The attributes of a closed layer: those of its nodes, summed up."""
    members: dict[str, list[NodeRow]] = {}
    for row in rows:
        if row.layer is not None and row.is_computed:
            members.setdefault(_namespace(row), []).append(row)
    return {
        name: {
            "backend": _counted(r.backend or "unknown" for r in nodes),
            "cause": _counted(r.cause or "-" for r in nodes),
            "bytes": _sum(r.bytes for r in nodes),
            "FLOPs": _sum(r.flops for r in nodes),
        }
        for name, nodes in members.items()
    }


def _counted(values: Iterable[str]) -> str:
    """How often each value occurs, the most frequent first."""
    return ", ".join(f"{n}x {value}" for value, n in Counter(values).most_common())


def _sum(numbers: Iterable[int | None]) -> str:
    known = [n for n in numbers if n is not None]
    return _number(sum(known) if known else None)


def _number(n: int | None) -> str:
    return "not known" if n is None else f"{n:,}"

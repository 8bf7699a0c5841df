"""The error of each op of a model on one side against another, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..trace.names import counted, layer_in
from ..trace.units import format_error

# What upstream's test-backend-ops (`test_generic_op`, ggml 0.26.0) allows the ops of a file.
_LIMITS = {
    **dict.fromkeys(
        ("MUL_MAT", "MUL_MAT_ID", "OUT_PROD", "CONV_TRANSPOSE_2D", "IM2COL", "CONV_2D", "CONV_3D",
         "SET_ROWS", "CPY", "FLASH_ATTN_EXT"), 5e-4,
    ),
    "SOFT_MAX": 1e-6,
    "RWKV_WKV7": 5e-3,
}  # fmt: skip
_OTHER = 1e-7
_KV = 20_000  # tokens in the cache beyond which the limit of FLASH_ATTN_EXT grows with them


def limit_of(op: str, sources: Iterable[tuple[int, ...]]) -> float:
    """Upstream's limit of the error of an op, by the ne of its sources."""
    limit = _LIMITS.get(op, _OTHER)
    shapes = list(sources)
    if op == "FLASH_ATTN_EXT" and len(shapes) > 1:
        return limit * max(1.0, shapes[1][1] / _KV)
    return limit


class NodeError(NamedTuple):
    """A node that both sides computed from the same inputs."""

    number: int  # in the order of execution, over all graphs
    graph: str  # "prompt" or "decode"
    name: str
    op: str  # "MUL_MAT", "SILU"
    shape: str  # types and shapes of its sources
    backends: tuple[str, str]
    error: float  # the normalised mean squared error
    limit: float
    case: str  # its line for `test-backend-ops --test-file`; "" if there is none
    why_no_case: str

    @property
    def layer(self) -> int | None:
        """The layer that its name tells."""
        return layer_in(self.name)

    @property
    def wrong(self) -> bool:
        """Whether it is over the limit."""
        return self.error > self.limit

    @property
    def excess(self) -> float:
        """How many times the limit the error is."""
        return self.error / self.limit if self.limit else float("inf")

    def __str__(self) -> str:
        a, b = self.backends
        return (
            f"{self.name} ({self.op}({self.shape}), node {self.number}, {self.graph}) on {b} "
            f"against {a}: error {format_error(self.error)}, limit {format_error(self.limit)}"
        )


@dataclass(frozen=True)
class Divergence:
    """Two sides of a model, node by node. True if they differ by more than upstream allows."""

    sides: tuple[str, str]
    nodes: tuple[NodeError, ...]
    unmatched: tuple[tuple[str, ...], tuple[str, ...]]  # nodes that only one side computes

    def __bool__(self) -> bool:
        return self.first is not None

    @property
    def first(self) -> NodeError | None:
        """The first node over the limit."""
        return next((node for node in self.nodes if node.wrong), None)

    @property
    def worst(self) -> NodeError | None:
        """The node whose error is the largest multiple of its limit."""
        return max(self.nodes, key=lambda node: node.excess, default=None)

    def headline(self) -> str:
        """One line."""
        n = sum(node.wrong for node in self.nodes)
        equal = sum(node.error == 0.0 for node in self.nodes)
        a, b = self.sides
        return (
            f"{b} against {a}: {n} of {counted(len(self.nodes), 'op')} over the limit, "
            f"{equal} equal"
        )

    def __str__(self) -> str:
        lines = [self.headline()]
        if self.first is not None:
            lines.append(f"first: {self.first}")
        if self.worst is not None and self.worst.error:
            lines.append(f"worst: {self.worst}")
        lines += self._table("op", ((node.op, node) for node in self.nodes))
        rows = [("-" if node.layer is None else str(node.layer), node) for node in self.nodes]
        lines += self._table("layer", rows)
        for side, names in zip(self.sides, self.unmatched, strict=True):
            if names:
                some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
                lines.append(f"only {side} computes {counted(len(names), 'node')}, "
                             f"not compared: {some}")  # fmt: skip
        return "\n".join(lines)

    @staticmethod
    def _table(title: str, rows: Iterable[tuple[str, NodeError]]) -> list[str]:
        groups: dict[str, list[NodeError]] = {}
        for key, node in rows:
            groups.setdefault(key, []).append(node)
        width = max([len(title), *map(len, groups)])
        lines = [f"{title:{width}}  nodes  over  largest error      limit  at"]
        for key, nodes in groups.items():
            worst = max(nodes, key=lambda node: node.excess)
            n = sum(node.wrong for node in nodes)
            at = worst.name if worst.error else ""
            error = format_error(worst.error)
            row = f"{key:{width}}  {len(nodes):5}  {n:4}  {error:>13}  {worst.limit:9.2g}"
            lines.append(f"{row}  {at}".rstrip())
        return lines

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write; an infinite error is null."""
        return {
            "sides": list(self.sides), "diverges": bool(self), "headline": self.headline(),
            "first": _as_dict(self.first), "worst": _as_dict(self.worst),
            "nodes": [_as_dict(node) for node in self.nodes],
            "unmatched": [list(names) for names in self.unmatched],
        }  # fmt: skip


def _as_dict(node: NodeError | None) -> dict[str, Any] | None:
    if node is None:
        return None
    finite = node.error if np.isfinite(node.error) else None
    return {**node._asdict(), "backends": list(node.backends), "layer": node.layer,
            "error": finite, "over": node.wrong}  # fmt: skip

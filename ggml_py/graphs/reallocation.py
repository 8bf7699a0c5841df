"""Why compute buffers were laid out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..boundary.ffi import lib, text


class Reallocation(NamedTuple):
    """One time that the compute buffers did not fit a graph and had to be laid out again.

    In a scheduler this waits for all backends and costs time in the middle of a generation;
    `Scheduler.reserve` with the largest graph avoids it. `reason` is "first", "nodes", "leafs",
    "node", "src", "edges" or "backend". `tensor` is the name of the tensor that did not fit, "" if
    the reason is not a tensor. `text` gives the reason in a sentence. `before` and `after` are the
    bytes of compute buffer by backend, or by buffer type in a `GraphAllocator`. `ours` is True
    where upstream would keep its old layout, because it compares only counts and sizes. Leave those
    out to compare with upstream's counts.
    C: ggml_gallocr_needs_realloc, ggml_backend_sched_alloc_splits
    """

    reason: str
    tensor: str
    text: str
    before: dict[str, int]
    after: dict[str, int]
    ours: bool

    @property
    def grew(self) -> bool:
        """Whether a buffer became larger. If not, the same memory was divided differently."""
        return any(self.after[name] > size for name, size in self.before.items())


def reallocation(
    r: Any, names: list[str], before: dict[str, int], after: dict[str, int], first: str = ""
) -> Reallocation:
    """The `Reallocation` of a `struct gp_realloc_record`. `names` are the names of the buffers in
    its order, and `before` and `after` are bytes by name. `first` is the text if nothing was laid
    out before."""
    if first:
        return Reallocation("first", "", first, before, after, False)
    reason, tensor, said = _reason(r, names)
    if r.ours:
        said += "; upstream compares only counts and sizes, and would keep its old layout"
    return Reallocation(reason, tensor, said, before, after, bool(r.ours))


def labels(names: Sequence[str]) -> list[str]:
    """The names; one that repeats gets its index."""
    return [n if names.count(n) == 1 else f"{n}#{i}" for i, n in enumerate(names)]


def _reason(r: Any, names: list[str]) -> tuple[str, str, str]:
    tensor, node, need, have = text(r.tensor), text(r.node), int(r.need), int(r.have)
    kind = r.kind
    if kind in (lib.GP_REALLOC_NODES, lib.GP_REALLOC_LEAFS):
        what = "node" if kind == lib.GP_REALLOC_NODES else "leaf"
        said = f"the graph has {need} {what}{'s' * (need != 1)}, the previous one had {have}"
        return f"{what}s", "", said
    if kind == lib.GP_REALLOC_EDGES:
        said = f"as many nodes ({need}) and leafs as the previous graph, but other edges"
        return "edges", "", said
    if kind == lib.GP_REALLOC_BACKEND:
        former = f"on {names[have]}" if have < len(names) else "on no backend"
        now = names[need] if need < len(names) else "no backend"
        said = f"'{tensor}' is on {now}; in its place the previous graph had a tensor {former}"
        return "backend", tensor, said
    room = f"room for {have:,}" if have else "no room: the one before had its own memory"
    if kind == lib.GP_REALLOC_NODE:
        return "node", tensor, f"node '{tensor}' takes {need:,} bytes, but there was {room}"
    said = f"'{tensor}', source {r.src} of '{node}', takes {need:,} bytes, but there was {room}"
    return "src", tensor, said

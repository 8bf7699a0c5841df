"""The work of a node, in the terms of samples: a kind of work and its size.

1. Products with a weight: by the weight's type and the buffer that it is in (repacked weights have
   other kernels, mapped ones other pages), at (columns, elements of one matrix).
2. Products without a weight (attention in several ops): by the types, and whether the matrix is
   tall or wide, at the same coordinates, as often as there are heads.
3. Products with chosen experts: the same for each expert in use, with its part of the columns.
4. Attention in one op: by the cache's types and the size of a head, at (tokens, bytes from one
   cell to the next, cells that a token sees), and as often as there are heads. Of heads that share
   keys and values, all but the first read them from a cache.
5. All others: by op and types, at the elements that the busiest thread has.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from ..trace.answers.shares import bytes_moved
from ..trace.flops import flops
from ..trace.planned import Planned
from ..trace.record import TensorRecord
from ..typed import typed

PRODUCT, EXPERTS, ATTENTION = "MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT"
# Ops whose sizes are not those of their result: by their operations.
_BY_FLOPS = frozenset({
    "SSM_SCAN", "SSM_CONV", "RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN", "GATED_DELTA_NET",
    "ARGSORT", "TOP_K", "SUM_ROWS", "SUM", "MEAN", "ARGMAX", "CUMSUM", "IM2COL", "CONV_2D",
    "SOLVE_TRI",
})  # fmt: skip
# Ops whose threads share matrices and not rows.
_BY_MATRIX = frozenset({"CONCAT", "UPSCALE"})
_KEPT_IN_ROWS = frozenset({"GET_ROWS", "SET_ROWS"})
LEAST_KEPT = 4096  # bytes of a tensor that counts as more than a node's small inputs
_SHARED = 512  # cells from which on ggml's CPU backend gives each thread a part of them
_Sources = list[TensorRecord]


class NodeWork(NamedTuple):
    """`times` times the work of kind `key` at the coordinates `at`."""

    key: str
    at: tuple[float, ...]
    times: float
    bytes: int  # that the node reads and writes, estimated
    flops: int  # estimated
    first_reads: float = 1.0  # the part of `times` that reads what no other part has read before
    rows: int = 0  # of a product's matrix
    # Bytes in weights and caches of a node that is neither a product nor attention. They were in
    # memory before the graph, and other nodes may have driven them out of the processor's caches.
    kept: int = 0

    @property
    def reads_much(self) -> bool:
        """Whether it is of a kind that is measured with full and with empty caches."""
        return self.key.startswith((PRODUCT, ATTENTION))


@typed
def fused_heads(plan: Planned) -> tuple[dict[int, str], frozenset[int]]:
    """Nodes that the CPU computes in one go: the id of each first node, with the names of its ops
    ("RMS_NORM+MUL"), and the ids of the other nodes."""
    heads, others = dict[int, str](), set[int]()
    for cpu in plan.capture.cpu:
        if cpu.fused and cpu.node == cpu.fused[0]:
            heads[cpu.node] = "+".join(plan.capture.tensors[i].op_desc for i in cpu.fused)
            others.update(cpu.fused[1:])
    return heads, frozenset(others)


@typed
def work_of(
    plan: Planned,
    t: TensorRecord,
    backend: int,
    n_threads: int,
    heads: Mapping[Any, Any],  # int to str; looking at all of them for each node takes long
    n_past: int | None = None,
) -> NodeWork:
    """The work of a node on a backend with `n_threads` threads. `heads` are from `fused_heads`.
    With `n_past` tokens in the cache, attention skips the cells behind them."""
    capture = plan.capture
    sources = [capture.tensors[i] for i in t.src if i >= 0]
    moved, operations = bytes_moved(t, sources), flops(t, sources)
    first = 1.0
    n = len(sources)  # a graph made by hand may lack some
    if t.op == PRODUCT and n > 1:
        key, at, count = _product(plan, t, sources, backend)
    elif t.op == EXPERTS and n > 2:
        key, at, count = _experts(plan, t, sources, backend)
    elif t.op == ATTENTION and n > 2:
        # All keys count if a node has just made them (an encoder's, or without a cache).
        past = n_past if _is_kept(plan, sources[1]) else None
        key, at, count = _attention(t, sources, past, n_threads)
        first = sources[1].ne[2] * sources[1].ne[3] / count
    else:
        key, at, count = _other(t, sources, n_threads, operations)
    if t.id in heads:
        key = key.replace(t.op_desc, heads[t.id], 1)
    rows = sources[0].ne[1] if t.op == PRODUCT and n > 1 else 0
    work = NodeWork(key, at, count, moved, operations, first, rows)
    return work if work.reads_much else work._replace(kept=_kept(plan, t, sources))


def _kept(plan: Planned, t: TensorRecord, sources: _Sources) -> int:
    """Bytes of the sources with memory before the graph; a copy's target is one of them. Tables do
    not count, as few of their rows are read. A source counts as the result's size at most, because
    of the states of many sequences only some are read."""
    if t.op in _KEPT_IN_ROWS:
        return 0
    return sum(
        min(s.nbytes, t.nbytes) for s in sources
        if s.nbytes > LEAST_KEPT and _is_kept(plan, s)
    )  # fmt: skip


def _is_kept(plan: Planned, t: TensorRecord) -> bool:
    """Whether it is, or is a view of, a tensor with memory before the graph."""
    return plan.capture.tensors[t.view_src if t.view_src >= 0 else t.id].buffer >= 0


@typed
def place_of(plan: Planned, t: TensorRecord, backend: int) -> str:
    """The buffer type of a weight, if it is not the backend's own, with a space in front."""
    capture = plan.capture
    buft = capture.buft_of(t)
    if buft < 0 or buft == capture.backends[backend].buft:
        return ""
    name = capture.bufts[buft].name
    # Weights of another device are copied first, and read from the backend's own memory.
    reads = capture.bufts[buft].readers >> backend & 1
    return f" {name}" if reads else ""


def _product(
    plan: Planned, t: TensorRecord, sources: _Sources, backend: int
) -> tuple[str, tuple[float, ...], float]:
    a, b = sources[:2]
    k, m = a.ne[0], a.ne[1]
    matrices = a.ne[2] * a.ne[3]
    columns = prod(t.ne[1:])
    if capture_weight(plan, a) and matrices == 1:
        key = f"{PRODUCT} {a.type}{_not_f32(b)}{place_of(plan, a, backend)}"
        return key, (columns, k * m), 1.0
    shape = "wide" if k < m else "tall"
    heads = t.ne[2] * t.ne[3]
    return f"{PRODUCT} {a.type}{_not_f32(b)} {shape}", (t.ne[1], k * m), heads


@typed
def capture_weight(plan: Planned, t: TensorRecord) -> bool:
    """Whether it is a weight, or a view of one."""
    holder = plan.capture.tensors[t.view_src] if t.view_src >= 0 else t
    return plan.capture.is_weight(holder)


def _not_f32(b: TensorRecord) -> str:
    return "" if b.type == "f32" else f"×{b.type}"


def _experts(
    plan: Planned, t: TensorRecord, sources: _Sources, backend: int
) -> tuple[str, tuple[float, ...], float]:
    a, _b, ids = sources[:3]
    n, used, tokens = a.ne[2], ids.ne[0], ids.ne[1]
    pairs = used * tokens
    # The number of experts used by at least one token, if a router chooses at random.
    touched = n * (1 - (1 - used / n) ** tokens) if used < n else n
    key = f"{EXPERTS} {a.type}{place_of(plan, a, backend)}"
    return key, (pairs / touched, a.ne[0] * a.ne[1]), touched


def _attention(
    t: TensorRecord, sources: _Sources, n_past: int | None, n_threads: int
) -> tuple[str, tuple[float, ...], float]:
    q, k, v = sources[:3]
    tokens, cells = q.ne[1], k.ne[1]
    if n_past is not None:
        cells = min(cells, n_past + tokens)
    # A token sees those before it: the others' scores are skipped.
    seen = cells - (tokens - 1) / 2 if len(sources) > 3 else cells
    if tokens == 1 and n_threads > 1 and k.ne[1] >= _SHARED and k.type == v.type in ("f16", "f32"):
        # Threads share the cells, empty ones too: the first thread has more of the others.
        seen = min(seen, -(-k.ne[1] // n_threads)) * n_threads
    key = f"{ATTENTION} {k.type} {v.type} {k.ne[0]}"
    return key, (tokens, k.nb[1], max(seen, 1)), q.ne[2] * q.ne[3]


def _other(
    t: TensorRecord, sources: _Sources, n_threads: int, operations: int
) -> tuple[str, tuple[float, ...], float]:
    kind = t.op_desc
    if t.op in ("ROPE", "ROPE_BACK"):
        kind += f" {t.op_params[2] if len(t.op_params) > 2 else 0}"
    types = t.type
    if t.op in _KEPT_IN_ROWS or t.op in ("CPY", "DUP", "CONT", "CAST", "CONCAT"):
        first = sources[0].type if sources else ""
        types = f"{first} {t.type}" if first != t.type else t.type
    if t.op == "CONT" and sources and not _in_order(sources[0]):
        types += " transposed"
    of = sources[0] if t.op == "SET_ROWS" and sources else t
    rows = of.ne[2] if t.op in _BY_MATRIX else prod(of.ne[1:])
    shares = max(min(rows, n_threads), 1)
    size = operations if t.op in _BY_FLOPS else prod(of.ne)
    return f"{kind} {types}", (size / shares,), 1.0


def _in_order(t: TensorRecord) -> bool:
    return all(a <= b for a, b in zip(t.nb, t.nb[1:], strict=False))

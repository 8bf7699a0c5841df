"""Measures the ops between the products: one row, a few, and many, short and long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import GgmlError
from ..graphs.context import Context
from ..tensors.tensor import Tensor
from .node_times import GRAPH_SIZE, Bench, Steps
from .random_bytes import block_of, fill

# (elements of a row, rows)
SIZES = ((768, 1), (4096, 1), (768, 512), (4096, 512))
_COUNT = 40  # nodes in a graph of one row


class OpInputs:
    """Arguments of the rows of `OPS`: a context for the graph, inputs, tensors with memory."""

    def __init__(self, bench: Bench, context: Context, kept: Context, n: int, rows: int) -> None:
        self.bench, self.context, self.kept, self.n, self.rows = bench, context, kept, n, rows
        self.values: dict[Tensor, Any] = {}

    def input(self, *ne: int, type_: str = "f32") -> Tensor:
        """An input of random numbers; of integers it has those below the number of rows."""
        tensor = self.context.new_tensor(type_, *ne)
        shape = tuple(reversed(ne))
        rng = np.random.default_rng(len(self.values))
        if type_ in ("i32", "i64"):
            values: Any = rng.integers(0, self.rows, shape).astype(
                np.dtype(type_.replace("i", "int"))
            )
        else:
            values = rng.standard_normal(shape, np.float32)
        self.values[tensor] = values
        return tensor

    def table(self, type_: str, *ne: int) -> Tensor:
        """A tensor that has memory before the graph, as weights and caches have."""
        return self.kept.new_tensor(type_, *ne)


def _rows(m: OpInputs, heads: int = 0) -> Tensor:
    if heads:
        return m.input(m.n // heads, heads, m.rows)
    return m.input(m.n, m.rows)


def _unary(name: str) -> Callable[[OpInputs], Callable[[], Tensor]]:
    def op(m: OpInputs) -> Callable[[], Tensor]:
        x = _rows(m)
        return lambda: getattr(m.context, name)(x)

    return op


def _binary(name: str) -> Callable[[OpInputs], Callable[[], Tensor]]:
    def op(m: OpInputs) -> Callable[[], Tensor]:
        x, y = _rows(m), _rows(m)
        return lambda: getattr(m.context, name)(x, y)

    return op


def _norm(name: str, weight: bool = False) -> Callable[[OpInputs], Callable[[], Tensor]]:
    def op(m: OpInputs) -> Callable[[], Tensor]:
        x, made = _rows(m), m.context
        w = m.input(m.n) if weight else x

        def node() -> Tensor:
            y: Tensor = getattr(made, name)(x, 1e-5)
            return made.mul(y, w) if weight else y

        return node

    return op


def _rope(mode: int) -> Callable[[OpInputs], Callable[[], Tensor]]:
    def op(m: OpInputs) -> Callable[[], Tensor]:
        x, at = _rows(m, m.n // 64), m.input(m.rows, type_="i32")
        return lambda: m.context.rope_ext(
            x, at, None, 64, mode, 2048, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0
        )

    return op


def _soft_max(m: OpInputs) -> Callable[[], Tensor]:
    x = m.input(m.n, m.rows)
    mask = m.input(m.n, m.rows)
    return lambda: m.context.soft_max_ext(x, mask, 0.125, 0.0)


def _soft_max_alone(m: OpInputs) -> Callable[[], Tensor]:
    x = m.input(64, max(m.rows, 1))
    return lambda: m.context.soft_max(x)


def _get_rows(type_: str) -> Callable[[OpInputs], Callable[[], Tensor]]:
    def op(m: OpInputs) -> Callable[[], Tensor]:
        table, ids = m.table(type_, m.n, max(m.rows, 512)), m.input(m.rows, type_="i32")
        return lambda: m.context.get_rows(table, ids)

    return op


def _set_rows(type_: str) -> Callable[[OpInputs], Callable[[], Tensor]]:
    def op(m: OpInputs) -> Callable[[], Tensor]:
        table, x = m.table(type_, m.n, max(m.rows, 512)), _rows(m)
        ids = m.input(m.rows, type_="i64")
        return lambda: m.context.set_rows(table, x, ids)

    return op


def _cpy(type_: str) -> Callable[[OpInputs], Callable[[], Tensor]]:
    def op(m: OpInputs) -> Callable[[], Tensor]:
        x, to = _rows(m), m.table(type_, m.n, m.rows)
        return lambda: m.context.cpy(x, to)

    return op


def _cont(transposed: bool) -> Callable[[OpInputs], Callable[[], Tensor]]:
    def op(m: OpInputs) -> Callable[[], Tensor]:
        x = _rows(m, m.n // 64)
        view = m.context.permute(x, 0, 2, 1, 3) if transposed else x
        return lambda: m.context.cont(view)

    return op


def _scale(m: OpInputs) -> Callable[[], Tensor]:
    x = _rows(m)
    return lambda: m.context.scale(x, 2.0)


def _clamp(m: OpInputs) -> Callable[[], Tensor]:
    x = _rows(m)
    return lambda: m.context.clamp(x, -1.0, 1.0)


def _argsort(m: OpInputs) -> Callable[[], Tensor]:
    x = m.input(64, m.rows)
    return lambda: m.context.argsort(x, "desc")


def _concat(m: OpInputs) -> Callable[[], Tensor]:
    x, y = _rows(m), _rows(m)
    return lambda: m.context.concat(x, y, 0)


def _ssm_conv(m: OpInputs) -> Callable[[], Tensor]:
    x, w = m.input(m.rows + 3, m.n, 1), m.input(4, m.n)
    return lambda: m.context.ssm_conv(x, w)


def _ssm_scan(m: OpInputs) -> Callable[[], Tensor]:
    state, heads, tokens = 16, m.n, m.rows
    s = m.input(state, 1, heads, 1)
    x, dt = m.input(1, heads, tokens, 1), m.input(heads, tokens, 1)
    a, b = m.input(state, heads), m.input(state, 1, tokens, 1)
    c = m.input(state, 1, tokens, 1)
    ids = m.context.new_tensor("i32", 1)
    m.values[ids] = np.zeros(1, np.int32)
    return lambda: m.context.ssm_scan(s, x, dt, a, b, c, ids)


Make = Callable[[OpInputs], Callable[[], Tensor]]
# The rarest last: a slow device has no time for them.
OPS: dict[str, Make] = {
    **{name: _binary(name) for name in ("add", "mul", "div")},
    "rms_norm": _norm("rms_norm"), "rms_norm and mul": _norm("rms_norm", True),
    "rope": _rope(0), "rope neox": _rope(2), "swiglu_split": _binary("swiglu_split"),
    "soft_max with mask": _soft_max, "soft_max": _soft_max_alone,
    **{f"get_rows {t}": _get_rows(t) for t in ("f32", "f16", "q8_0", "q4_0", "q4_K", "q6_K")},
    **{f"set_rows {t}": _set_rows(t) for t in ("f16", "f32", "q8_0")},
    "cpy f32": _cpy("f32"), "cpy f16": _cpy("f16"),
    "cont": _cont(False), "cont of heads": _cont(True), "concat": _concat,
    "argsort": _argsort, "sum_rows": _unary("sum_rows"), "scale": _scale, "clamp": _clamp,
    "ssm_conv": _ssm_conv, "ssm_scan": _ssm_scan,
    **{name: _unary(name) for name in ("silu", "sigmoid", "softplus", "gelu")},
    "norm": _norm("norm"), "l2_norm": _norm("l2_norm"), "geglu_split": _binary("geglu_split"),
    **{name: _unary(name) for name in (
        "tanh", "relu", "exp", "sqr", "sqrt", "neg", "cumsum", "argmax",
    )},
    "sub": _binary("sub"), "reglu_split": _binary("reglu_split"),
}  # fmt: skip


def measure_op(bench: Bench, name: str) -> Steps:
    """One op, in all sizes."""
    if name == "rms_norm and mul" and not bench.is_cpu:
        return  # only the CPU says which nodes it computes in one go
    for n, rows in SIZES if name != "ssm_scan" else ((768, 1), (1536, 1), (768, 64)):
        try:
            if not _op(bench, OPS[name], n, rows):
                return
        except GgmlError:  # the device or this release has no such op
            bench.scheduler.reset()
            return
    yield


def _op(bench: Bench, make: Make, n: int, rows: int) -> bool:
    with Context(16 << 20) as kept, Context(64 << 20) as context:
        made = OpInputs(bench, context, kept, n, rows)
        node = make(made)
        kept.alloc(bench.backend)
        for tensor in kept:
            fill(tensor, block_of(str(tensor.type.name).lower().replace("_k", "_K"), n, 8))
        count = _COUNT if rows == 1 or bench.is_quick else 4
        graph = context.new_graph(GRAPH_SIZE)
        for _ in range(count):
            graph.build_forward_expand(node())
        ok = bench.sample(graph, made.values, count, 0.01)
        bench.scheduler.reset()
        return ok is not None

"""Measures products: with weights, with chosen experts, and those of attention in several ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cost.estimate import HOT
from ..cost.sample import MANY_ROWS, SHAPES, WORKING_SET
from ..graphs.context import Context
from ..graphs.graph import Graph
from ..tensors.tensor import Tensor
from .matrices import MAPPED, OWN, matrices, places_of
from .node_times import GRAPH_SIZE, Bench, Steps

# (k, m) of matrices. Products with one column are measured with `SHAPES`: small matrices as in
# attention, usual ones, and one beyond most caches. One size is also measured with shorter rows.
FEW_ROWS, SHORT_ROWS = (2048, 1024), (512, 4096)
WIDE_SIZES = ((768, 768), (2048, 2048))
LARGE_SHAPES = ((2048, 8192), (2048, 28672))  # of devices that are quick with them
LARGE_WIDE_SIZES = ((4096, 4096), (4096, 14336))
WIDTHS = (2, 4, 8, 32, 512)  # time is a line beyond some tens
_FEW_WIDTHS = (8, 512)  # of weights in the mapped file, if the device repacks their type
_N_EXPERT, _EXPERT_SIZES = 8, ((512, 512), (1024, 1536))
_SECONDS = 0.05


def measure_type(bench: Bench, type_: str, cold: int, cache: int) -> Steps:
    """Products with weights of that type. `cold` bytes of matrices are more than the caches hold,
    `cache` bytes less."""
    places = places_of(bench.device, type_)
    for where in places:
        usual = where == places[-1]  # otherwise only weights are there that cannot be repacked
        for k, m in _shapes(bench, usual):
            with matrices(bench, type_, (k, m), cold, where) as weights:
                _one_column(bench, weights, cache)
            yield
        for k, m in (FEW_ROWS, SHORT_ROWS) * 2:  # in the same memory, if it is a mapped file
            with matrices(bench, type_, (k, m), cold, where) as weights:
                _product(bench, weights, 1, MANY_ROWS, _SECONDS / 2, (m, k * m))
        yield
        for k, m in WIDE_SIZES if usual else WIDE_SIZES[:1]:
            with matrices(bench, type_, (k, m), cold, where) as weights:
                for n in WIDTHS if usual else _FEW_WIDTHS:
                    _product(bench, weights[: _enough(bench, k * m * n)], n)
            yield
        if usual:
            k, m = SHAPES[-1]
            with matrices(bench, type_, (k, m), cold, where) as weights:
                _product(bench, weights[: _enough(bench, k * m * WIDTHS[-1])], WIDTHS[-1])
            yield
        for k, m in LARGE_WIDE_SIZES if usual and bench.is_quick else ():
            with matrices(bench, type_, (k, m), cold, where) as weights:
                for n in WIDTHS:
                    _product(bench, weights[: _enough(bench, k * m * n)], n)
            yield


def measure_again(bench: Bench, type_: str, cold: int, cache: int) -> Steps:
    """Products with one column again, in other memory, of a type measured a while ago. The place of
    the memory and other programs make them faster or slower for a time."""
    where = places_of(bench.device, type_)[-1]
    for k, m in _shapes(bench, True):
        with matrices(bench, type_, (k, m), cold, where) as weights:
            _one_column(bench, weights, cache)
        yield


def _shapes(bench: Bench, usual: bool) -> tuple[tuple[int, int], ...]:
    return (*SHAPES, *(LARGE_SHAPES if usual and bench.is_quick else ()))


def _one_column(bench: Bench, weights: list[Tensor], cache: int) -> None:
    """Products with one column, which wait for memory, and those whose matrices have room in a
    cache."""
    _product(bench, weights, 1, seconds=_SECONDS / 2)
    few = weights[: cache // weights[0].nbytes]
    if few:
        _product(bench, few * max(64 // len(few), 1), 1, HOT, _SECONDS / 2)


def _enough(bench: Bench, work: int) -> int:
    """How many products make a graph that takes some milliseconds."""
    return min(bench.enough(5e8, work), 200)


def _product(
    bench: Bench,
    weights: Sequence[Tensor],
    n: int,
    suffix: str = "",
    seconds: float = _SECONDS,
    at: tuple[float, ...] | None = None,
) -> bool:
    """One sample; False if the device does not compute it."""
    with Context(64 << 20) as context:
        x = context.new_tensor("f32", weights[0].ne[0], n)
        graph = context.new_graph(GRAPH_SIZE)
        for weight in weights:
            graph.build_forward_expand(context.mul_mat(weight, x))
        ok = bench.sample(graph, {x: _random(n, x.ne[0])}, len(weights), seconds, suffix, at=at)
        bench.scheduler.reset()
        return ok is not None


def measure_experts(bench: Bench, type_: str, cold: int) -> Steps:
    """Products with two experts of eight, for one token and for many."""
    where = places_of(bench.device, type_)[-1]
    for k, m in _EXPERT_SIZES:
        with matrices(bench, type_, (k, m, _N_EXPERT), cold, where) as weights:
            for n in (1, 8, 64, 512):
                if not _experts(bench, weights[: _enough(bench, k * m * n * 2)], n):
                    return
        yield


def _experts(bench: Bench, weights: Sequence[Tensor], n: int) -> bool:
    """One sample; False if the device does not compute it. Single tokens take all experts in turn.
    Otherwise unused experts would stay out of the caches, and used ones in them."""
    rng = np.random.default_rng(n)
    every = np.arange(_N_EXPERT, dtype=np.int32).reshape(-1, 1, 2)
    many = rng.random((n, _N_EXPERT)).argsort(axis=1)[:, :2].astype(np.int32)
    with Context(64 << 20) as context:
        x = context.new_tensor("f32", weights[0].ne[0], 1, n)
        values = {x: _random(n, x.ne[0]).reshape(n, 1, -1)}
        graph = context.new_graph(GRAPH_SIZE)
        for chosen in every if n == 1 else [many]:
            ids = context.new_tensor("i32", 2, n)
            values[ids] = chosen
            for weight in weights:
                graph.build_forward_expand(context.mul_mat_id(weight, x, ids))
        ok = bench.sample(graph, values, len(graph.nodes), _SECONDS)
        bench.scheduler.reset()
        return ok is not None


def measure_working_set(bench: Bench, largest: int) -> Steps:
    """How the time of one product grows with the bytes of all matrices that take turns."""
    where = MAPPED if bench.is_cpu else OWN
    with matrices(bench, "q8_0", (768, 768), largest, where) as weights:
        size = weights[0].nbytes
        total = 4 << 20
        while total <= largest:
            some = weights[: max(total // size, 1)]
            with Context(64 << 20) as context:
                x = context.new_tensor("f32", 768, 1)
                graph = context.new_graph(GRAPH_SIZE)
                for weight in some:
                    graph.build_forward_expand(context.mul_mat(weight, x))
                bench.sample(
                    graph, {x: _random(1, 768)}, len(some), _SECONDS,
                    key=WORKING_SET, at=(float(size * len(some)),),
                )  # fmt: skip
                bench.scheduler.reset()
            total = total * 3 // 2
    yield


def measure_heads(bench: Bench) -> Steps:
    """The two products of attention in several ops: keys and queries, and values and weights."""
    for d in (64, 128):
        for cells in (256, 2048):
            for n in (1, 64, 512):
                for wide in (True, False):
                    _heads(bench, d, cells, n, wide)
            yield


def _heads(bench: Bench, d: int, cells: int, n: int, wide: bool) -> None:
    heads, count = 4, max(min(bench.enough(2e8, cells * d * n * 4), 24), 2)
    ne = (d, cells, heads) if wide else (cells, d, heads)
    with Context(64 << 20) as cache, Context(64 << 20) as context:
        caches = [cache.new_tensor("f16", *ne) for _ in range(count)]
        cache.alloc(bench.backend)
        for tensor in caches:
            tensor.set(_random(heads * ne[1], ne[0]).reshape(heads, ne[1], ne[0]))
        x = context.new_tensor("f32", ne[0], n, heads)
        graph: Graph = context.new_graph(GRAPH_SIZE)
        for tensor in caches:
            graph.build_forward_expand(context.mul_mat(tensor, x))
        bench.sample(graph, {x: _random(heads * n, ne[0]).reshape(heads, n, ne[0])}, count)
        bench.scheduler.reset()


def _random(rows: int, n: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, n), np.float32)

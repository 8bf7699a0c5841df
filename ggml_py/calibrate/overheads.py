"""Measures what computing takes besides the work: a graph, a split, a node after others have filled
the caches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..cost.sample import COLD_NODE, GRAPH, SPLIT
from ..graphs.context import Context
from ..scheduler.recording import Recording
from ..tensors.tensor import Tensor
from .bench import Bench
from .weights import MAPPED, OWN, REPACKED, matrices, places_of

_ROUNDS = 5


def measure_graph(bench: Bench) -> Iterator[None]:
    """A graph of one small node, by the scheduler's own clock."""
    with Context(1 << 20) as context:
        x = context.new_tensor("f32", 32, name="x")
        graph = context.new_graph()
        graph.build_forward_expand(context.scale(x, 2.0))
        bench.planned(graph, {x: np.ones(32, np.float32)})
        bench.again(graph, 0.01)
        with Recording(bench.scheduler) as recording:
            for _ in range(200):
                bench.scheduler.compute(graph)
        seconds = [compute.end * 1e-9 - compute.event.start * 1e-9
                   for compute in recording.run.computes]  # fmt: skip
        bench.keep(GRAPH, (), seconds)
    yield


def measure_cold_node(bench: Bench, cold: int) -> Iterator[None]:
    """What small nodes take more between large products, which have filled the caches: a graph of
    products, the same with small nodes between them, and the small nodes alone, in turns."""
    where = REPACKED if REPACKED in places_of(bench.device, "q4_0") else (
        MAPPED if bench.is_cpu else OWN)  # fmt: skip
    with matrices(bench, "q4_0", (768, 768), cold, where) as weights:
        some = weights[:240]
        found: list[float] = []
        small = 4
        for _ in range(_ROUNDS):
            bare = _chain(bench, some, 0)
            mixed = _chain(bench, some, small)
            alone = _chain(bench, [None] * len(some), small)
            more = (mixed - bare - alone) / (small * len(some))
            found.append(max(more, 0.0))
            yield
        bench.keep(COLD_NODE, (), found)


def _chain(bench: Bench, weights: list[Tensor] | list[None], small: int) -> float:
    """The least seconds of a chain of products with so many small nodes behind each."""
    with Context(64 << 20) as context, Context(16 << 20) as kept:
        norms = [kept.new_tensor("f32", 768) for _ in weights]
        kept.alloc(bench.backend)
        for norm in norms:
            norm.set(np.ones(768, np.float32))
        x = context.new_tensor("f32", 768)
        graph = context.new_graph(8192)
        y = x
        for weight, norm in zip(weights, norms, strict=True):
            if weight is not None:
                y = context.mul_mat(weight, y)
            for i in range(small):
                y = context.mul(y, norm) if i % 2 else context.add(y, x)
        graph.build_forward_expand(y)
        taken = bench.times(graph, {x: np.ones(768, np.float32)}, 0.06)
        bench.scheduler.reset()
        return float(np.quantile(taken, 0.2))


def measure_split(bench: Bench) -> Iterator[None]:
    """One more split on the device, between splits of the CPU, with a copy of a few bytes there and
    back."""
    if bench.is_cpu:
        return
    yield


__all__ = ["SPLIT", "measure_cold_node", "measure_graph", "measure_split"]

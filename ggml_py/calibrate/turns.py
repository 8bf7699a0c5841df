"""Measures what a split on a server of this machine takes besides its work, where the CPU backend
has several threads.

They spin for a while after each graph, as those of other programs do, on cores that the server
needs. It may have to wait until the system takes a core from one of them. Such waits are rare, but
take milliseconds, and they take longer after long turns. So turns of several lengths are measured,
and their mean times count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np

from ..cost.sample import COPY_FROM, COPY_TO, SPLIT
from ..graphs.context import Context
from ..tensors.tensor import Tensor
from .filled import own_memory
from .matrices import OWN, matrices
from .node_times import Bench, Steps

_TYPE, _SHAPE = "q8_0", (768, 768)
_TOTAL = 96 << 20  # bytes of matrices on each side, which no cache has when they are read again
_LENGTHS = (30, 100, 250)  # products of each side in a turn,
_GRAPH = 150  # and at least in a graph: fewer matrices could stay in a cache
_ALONE_S, _BOTH_S, _ROUNDS = 0.08, 0.5, 4  # seconds; a mean of less of them changes a lot
_LEAST = 5  # computes
_ASLEEP_S = 0.12  # after which threads that spun sleep
_COPIED = 1 << 14  # bytes of short copies, at most


def measure_turns(bench: Bench) -> Steps:
    """Measures graphs of products in turns of the CPU and of the server, and the products of each
    side alone. The extra time of turns, without copies, is kept by the time of the server's turn.
    """
    to, back = _short_copy(bench, COPY_FROM), _short_copy(bench, COPY_TO)
    if to is None or back is None:
        return  # why, was said where they were measured
    with ExitStack() as stack:
        both = stack.enter_context(Bench(bench.device, bench.n_threads, beside=bench.n_threads))
        host = stack.enter_context(closing(own_memory(both.backends[-1], _TYPE, _TOTAL)))
        there = stack.enter_context(matrices(bench, _TYPE, _SHAPE, _TOTAL, OWN))
        here = stack.enter_context(host.matrices(_TYPE, _SHAPE, _TOTAL))
        for n in _LENGTHS:
            more, lengths, turns = [], [], -(-_GRAPH // n)
            copies = turns * to + (turns - 1) * back
            for _ in range(_ROUNDS):
                time.sleep(_ASLEEP_S * bench.pace)
                server, cpu = (
                    statistics.median(_times(both, [side], n, turns, _ALONE_S * bench.pace))
                    for side in (there, here)
                )
                server -= both.overhead
                sides = [here, there]
                whole = statistics.mean(_times(both, sides, n, turns, _BOTH_S * bench.pace))
                more.append(max(whole - cpu - server - copies, 0.0) / turns)
                lengths.append(server / turns)
                yield
            bench.keep(SPLIT, (statistics.median(lengths),), more)


def _short_copy(bench: Bench, way: str) -> float | None:
    """The seconds of a short copy from or to the CPU; None if it was not measured."""
    found = [
        sample.usual for sample in bench.samples
        if sample.key == way + bench.cpu.name and sample.at[0] <= _COPIED
    ]  # fmt: skip
    return statistics.mean(found) if found else None


def _times(
    bench: Bench, sides: Sequence[Sequence[Tensor]], n: int, turns: int, seconds: float
) -> list[float]:
    """Seconds of each compute of a graph with this number of turns. In a turn each side computes
    `n` products of its matrices."""
    with Context(8 << 20) as context:
        y = x = context.new_tensor("f32", _SHAPE[0], 1)
        graph = context.new_graph(4 * n * turns)
        bench.scheduler.reset()
        x.set_input()
        for first in range(0, n * turns, n):
            for weights in sides:
                assert weights[0].buffer is not None
                backend = bench.backends[-1 if weights[0].buffer.is_host else 0]
                for i in range(first, first + n):
                    y = context.mul_mat(weights[i % len(weights)], y)
                    bench.scheduler.set_tensor_backend(y, backend)
        graph.build_forward_expand(y)
        bench.scheduler.alloc_graph(graph)
        x.set(np.zeros((1, _SHAPE[0]), np.float32))
        compute, clock = bench.computing(graph), time.perf_counter
        compute()
        taken: list[float] = []
        end = clock() + seconds
        while len(taken) < _LEAST or clock() < end:
            start = clock()
            compute()
            taken.append(clock() - start)
        bench.scheduler.reset()
    return taken

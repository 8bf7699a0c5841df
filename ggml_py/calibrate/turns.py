"""Measures what a split on a server of this machine takes more where threads of the CPU backend
wait beside it.

They spin for a while after each graph, as those of other programs do, on cores that the server's
threads need: the server is told to compute, and may first wait until the system takes a core from a
thread that spins. That is more after long turns than after short ones, and seldom, but then it
takes milliseconds. So turns of several lengths are measured, and their mean times count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np

from ..cost.sample import COPY_FROM, SPLIT
from ..graphs.context import Context
from ..tensors.tensor import Tensor
from .bench import Bench, Steps
from .filled import own_memory, size_of
from .weights import OWN, matrices

# One matrix on each side that stays in its core's cache, so that its products always take the same.
_TYPE, _SHAPE = "q8_0", (768, 768)
_LENGTHS = (30, 100, 250)  # products of each side in a turn
_ALONE_S, _BOTH_S, _PARTS = 0.1, 0.5, 4  # seconds; a mean of less of them changes a lot
_LEAST = 5  # computes
_ASLEEP_S = 0.12  # after which threads that spun sleep
_COPIED = 1 << 14  # bytes of short copies, at most


def measure_turns(bench: Bench) -> Steps:
    """Graphs that have a turn of products on the CPU and one on the server, and those of each side
    alone. What the first one takes more, and copies do not take, is kept for the second's time."""
    nbytes = size_of(_TYPE, _SHAPE)
    with ExitStack() as stack:
        both = stack.enter_context(Bench(bench.device, bench.n_threads, beside=bench.n_threads))
        host = stack.enter_context(closing(own_memory(both.backends[-1], _TYPE, nbytes)))
        there = stack.enter_context(matrices(both, _TYPE, _SHAPE, nbytes, OWN))[:1]
        here = stack.enter_context(host.matrices(_TYPE, _SHAPE, nbytes))[:1]
        copy = _short_copy(bench)
        for n in _LENGTHS:
            time.sleep(_ASLEEP_S * bench.pace)
            server, cpu = (
                statistics.median(_times(both, side, n, _ALONE_S * bench.pace))
                for side in (there, here)
            )
            server -= bench.overhead
            more = []
            for _ in range(_PARTS):
                whole = statistics.mean(_times(both, [*here, *there], n, _BOTH_S * bench.pace))
                more.append(max(whole - cpu - server - copy, 0.0))
                yield
            bench.keep(SPLIT, (server,), more)


def _short_copy(bench: Bench) -> float:
    """The seconds of a short copy to the server."""
    return statistics.mean(
        sample.usual for sample in bench.samples
        if sample.key == COPY_FROM + bench.cpu.name and sample.at[0] <= _COPIED
    )  # fmt: skip


def _times(bench: Bench, weights: Sequence[Tensor], n: int, seconds: float) -> list[float]:
    """The seconds of each compute of a graph with `n` products of each matrix, one after the other
    matrix's."""
    with Context(8 << 20) as context:
        y = x = context.new_tensor("f32", _SHAPE[0], 1)
        graph = context.new_graph(4 * n)
        bench.scheduler.reset()
        x.set_input()
        for weight in weights:
            assert weight.buffer is not None
            backend = bench.backends[-1 if weight.buffer.is_host else 0]
            for _ in range(n):
                y = context.mul_mat(weight, y)
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

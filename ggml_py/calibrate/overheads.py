"""Measures what computing takes besides the work: a graph, a split, a node after others have filled
the caches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import numpy as np

from ..backends.buffer import BufferType
from ..backends.device import Device
from ..cost.sample import COLD_NODE, COPY_FROM, COPY_TO, PINNED, SPLIT, SYNCHRONIZE
from ..cost.sample import MAPPED as FROM_MAPPED
from ..graphs.context import Context
from ..scheduler.recording import Recording
from ..tensors.tensor import Tensor
from .matrices import MAPPED, OWN, REPACKED, matrices, places_of
from .node_times import GRAPH_SIZE, Bench, Steps, is_remote

_ROUNDS = 5
_LONG = 0.3  # seconds of a copy, after which larger ones are not measured
_SIDE, _TURNS = 64, 40  # of the matrices in chains, and how long these are
# Copies to a server in a row, as a program sends a graph's inputs, and the most bytes of each.
_BURST, _SHORT = 8, 1 << 18
_COPIED = (256, _SIDE * _SIDE * 4, 1 << 18, 1 << 22, 1 << 25)  # bytes
_WEIGHTS = (1 << 20, 1 << 22, 1 << 25)  # bytes of those that are copied from a mapped file


def measure_compute(bench: Bench) -> Steps:
    """Seconds of a split on the CPU: a graph of one small node, by the scheduler's own clock."""
    with Context(1 << 20) as context:
        x = context.new_tensor("f32", 32, name="x")
        graph = context.new_graph()
        graph.build_forward_expand(context.scale(x, 2.0))
        bench.planned(graph, {x: np.ones(32, np.float32)})
        bench.again(graph, 0.01)
        with Recording(bench.scheduler) as recording:
            for _ in range(200):
                bench.scheduler.compute(graph)
    bench.keep(SPLIT, (), [compute.event.ns * 1e-9 for compute in recording.run.computes])
    yield


def measure_cold_node(bench: Bench, cold: int) -> Steps:
    """Extra seconds of a small node between large products, which fill the caches. Three graphs are
    measured in turns: products, products with small nodes between them, and small nodes alone."""
    where = REPACKED if REPACKED in places_of(bench.device, "q4_0") else (
        MAPPED if bench.is_cpu else OWN)  # fmt: skip
    with matrices(bench, "q4_0", (768, 768), cold, where) as weights:
        some = weights[:2000]
        found: list[float] = []
        small = 4
        try:
            for _ in range(_ROUNDS):
                bare = _chain(bench, some, 0)
                mixed = _chain(bench, some, small)
                alone = _chain(bench, [None] * len(some), small)
                more = (mixed - bare - alone) / (small * len(some))
                found.append(max(more, 0.0))
                yield
        finally:  # the caller may end it after a round
            if found:
                bench.keep(COLD_NODE, (), found)


def _chain(bench: Bench, weights: list[Tensor] | list[None], small: int) -> float:
    """Seconds of a chain of products with `small` nodes behind each: the 20 % quantile of runs."""
    with Context(64 << 20) as context, Context(16 << 20) as kept:
        norms = [kept.new_tensor("f32", 768) for _ in weights]
        kept.alloc(bench.backend)
        for norm in norms:
            norm.set(np.ones(768, np.float32))
        x = context.new_tensor("f32", 768)
        graph = context.new_graph(GRAPH_SIZE)
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


def measure_split(bench: Bench, others: Sequence[Device], cold: int = 64 << 20) -> Steps:
    """Splits and copies of a device beside the CPU. Three chains are measured: products on the
    device, small nodes on the CPU, and both in turns. The extra time of the third is of splits and
    copies; copies are also measured alone. `cold` bytes of a mapped file are more than the caches
    hold."""
    bench.keep(SYNCHRONIZE, (), _times(bench, bench.backend.synchronize, bench.is_remote))
    for other in others:
        _copies(bench, other)
        yield
    if not (bench.is_remote or bench.backend.buffer_type.is_host):
        _copies_of_weights(bench, cold)
        yield
    found: list[float] = []
    copies = sum(
        sample.usual for sample in bench.samples
        if sample.at == (float(_SIDE * _SIDE * 4),) and sample.key.endswith(f" {bench.cpu.name}")
    )  # fmt: skip
    with Context(1 << 20) as kept:
        weight = kept.new_tensor("f32", _SIDE, _SIDE)
        host = bench.backend.buffer_type.is_host
        kept.alloc(bench.cpu.buffer_type if host else bench.backend.buffer_type, usage="weights")
        weight.set(np.eye(_SIDE, dtype=np.float32))
        try:
            for _ in range(_ROUNDS):
                both = _turns(bench, weight, True, True)
                device = _turns(bench, weight, True, False)
                host_only = _turns(bench, weight, False, True)
                found.append(max(both - device - host_only - copies, 0.0))
                yield
        finally:
            if found:
                bench.keep(SPLIT, (), found)


def _turns(bench: Bench, weight: Tensor, on_device: bool, on_cpu: bool) -> float:
    """The least seconds for each turn of a chain."""
    with Context(16 << 20) as context:
        y = x = context.new_tensor("f32", _SIDE, _SIDE)
        graph = context.new_graph()
        pinned: list[tuple[Tensor, bool]] = []
        for _ in range(_TURNS):
            if on_device:
                y = context.mul_mat(weight, y)
                pinned.append((y, True))
            if on_cpu:
                y = context.scale(y, 1.0)
                pinned.append((y, False))
        graph.build_forward_expand(y)
        bench.scheduler.reset()
        x.set_input()
        for node, device in pinned:
            bench.scheduler.set_tensor_backend(node, bench.backends[0 if device else -1])
        bench.scheduler.alloc_graph(graph)
        x.set(np.ones((_SIDE, _SIDE), np.float32))
        taken = bench.again(graph, 0.05)
        bench.scheduler.reset()
        return float(np.quantile(taken, 0.2)) / _TURNS


def _copies(bench: Bench, other: Device) -> None:
    """Copies of tensors from and to another device. For the host they are also measured with memory
    that the device has locked (pinned)."""
    if bench.backend.buffer_type.is_host and other.buffer_type.is_host:
        return
    served = bench.is_remote or is_remote(other)
    _copies_with(bench, other.buffer_type, other.name, served)
    locked = bench.device.host_buffer_type
    if locked is not None and other.buffer_type.is_host:
        _copies_with(bench, locked, other.name + PINNED, served)


def _copies_with(bench: Bench, memory: BufferType, called: str, served: bool) -> None:
    """`served` is whether a server has one of the two."""
    for nbytes in _COPIED:
        with Context(1 << 20) as here, Context(1 << 20) as there:
            a, b = here.new_tensor("f32", nbytes // 4), there.new_tensor("f32", nbytes // 4)
            here.alloc(bench.backend)
            there.alloc(memory)
            a.set(np.zeros(nbytes // 4, np.float32))
            b.set(np.zeros(nbytes // 4, np.float32))
            burst = _BURST if served and memory.is_host and nbytes <= _SHORT else 1
            for key, source, target, n in ((COPY_FROM, b, a, burst), (COPY_TO, a, b, 1)):
                taken = _copy_times(bench, source, target, a, served, n)
                bench.keep(key + called, (nbytes,), taken, nbytes)
        if taken[0] > _LONG:
            break  # time is a line by then


def _copies_of_weights(bench: Bench, cold: int) -> None:
    """Copies of weights in a mapped file, as op offload makes them for each graph."""
    for nbytes in _WEIGHTS:
        ne = (2048, nbytes // 4 // 2048)
        with (
            Context(1 << 20) as here,
            matrices(bench, "f32", ne, max(cold, 2 * nbytes), MAPPED) as weights,
        ):
            a = here.new_tensor("f32", *ne)
            here.alloc(bench.backend)
            taken = _copy_times(bench, cycle(weights), a, a)
            bench.keep(COPY_FROM + bench.cpu.name + FROM_MAPPED, (nbytes,), taken, nbytes)
        if taken[0] > _LONG:
            break


def _copy_times(
    bench: Bench,
    source: Tensor | Iterator[Tensor],
    target: Tensor,
    here: Tensor,
    served: bool = False,
    burst: int = 1,
) -> list[float]:
    """Seconds of one copy, from runs of `burst` copies in a row. With an iterator each copy has
    another source. The time of a wait with nothing to wait for (of a remote device: a read) is
    subtracted."""

    def wait() -> None:
        bench.backend.synchronize()
        if target is here:
            bench.wait_for(here)

    def copy() -> None:
        for _ in range(burst):
            (source if isinstance(source, Tensor) else next(source)).copy_to(target)
        wait()

    latency = statistics.median(_times(bench, wait, served))
    return [max(t - latency, t / 10) / burst for t in _times(bench, copy, served)]


def _times(bench: Bench, call: Callable[[], object], served: bool) -> list[float]:
    """The seconds of each call but the first. `served` is whether a server answers it."""
    found: list[float] = []
    clock = time.perf_counter
    end = clock() + 0.05 * bench.pace
    while len(found) < 4 or (clock() < end and len(found) < 400):
        if served:
            bench.be_busy()
        start = clock()
        call()
        found.append(clock() - start)
    return found[1:]

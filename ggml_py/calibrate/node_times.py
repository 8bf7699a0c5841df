"""Times real nodes on one real device, several in one graph: this separates the time of a node from
the time of a graph."""

from __future__ import annotations

import contextlib
import platform
import statistics
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

import numpy as np

from ..backends.backend import Backend
from ..backends.buffer import Buffer
from ..backends.device import Device, device
from ..backends.threadpool import ThreadPool
from ..boundary.ffi import ffi, lib
from ..boundary.handle import Handle
from ..cost.sample import Sample
from ..cost.work import fused_heads, work_of
from ..errors import MissingFunctionError
from ..graphs.context import Context
from ..graphs.graph import Graph
from ..plan import Plan
from ..scheduler.scheduler import Scheduler
from ..tensors.tensor import Tensor
from ..trace.record import VIEW_OPS
from .filled import Filled, mapped_file, own_memory

# Nodes and what they read together: half a gigabyte of the smallest matrices, for machines with
# caches that large.
GRAPH_SIZE = 1 << 15
MOST_MATRICES = GRAPH_SIZE // 2 - 100  # each is read by one node
Steps = Generator[None, None, None]  # measurements: the caller may end them between two
LEAST, MOST = 5, 400  # repetitions of a measurement
_LONG, _FEW = 0.05, 3  # a compute of at least 0.05 seconds needs only 3 repetitions
_ALONE, _ALONE_BOTH = 0.97, 0.88  # of its cores' time that computes must have had to count
# Seconds in which that is counted. Linux counts the time of other threads only at its ticks, of up
# to 10 ms each.
_CHUNK_S, _CHUNK_BOTH_S = 0.02, 0.06
_SHORT, _SHORT_S = 20, 1e-3  # times as long as an empty graph takes, and seconds at most
_PATIENCE = 3  # times as long as it would take alone, before disturbed repetitions count after all
_SPARE = 1 << 12  # bytes: some devices lay tensors out with more than they have
# Seconds that a core is kept busy before each repetition with a server. Threads that only wait for
# each other are woken on one core, and messages then take half as long as after a program's nodes.
_BUSY_S = 1e-3
_KEPT = 25  # repetitions that a sample keeps
_QUICK = 2e12  # operations a second, from which on a graph needs more nodes to be measured by
_MORE = 100  # times as many


class _Chunk(NamedTuple):
    """Seconds of computes in a row, and the cores that the process had meanwhile."""

    seconds: list[float]
    cores: float


def is_remote(device: Device) -> bool:
    """Whether a server has it."""
    return device.registry.startswith("RPC")


def work_as_upstream(offset: int | None = None) -> None:
    """Lets the CPU backend's work memory begin at the same place as in upstream's programs, or
    `offset` bytes behind a cache line.

    Upstream gets it with `new`, and memory mapped by glibc begins 16 bytes behind a page. Ours
    begins at a cache line, which makes attention of many tokens up to a quarter quicker.
    """
    if offset is None:
        offset = 16 if platform.libc_ver()[0] == "glibc" else 0
    with contextlib.suppress(MissingFunctionError):  # a pristine build has upstream's
        address = device("CPU").proc_address("gp_cpu_set_work_offset")
        ffi.cast("void (*)(size_t)", address)(offset)


class Bench:
    """One device with the backends that it needs beside it. `with` closes everything."""

    def __init__(
        self, measured: Device, n_threads: int, pace: float = 1.0, beside: int | None = None
    ) -> None:
        """`pace` is the part of the usual time that each measurement takes. `beside` is the number
        of threads of the CPU backend beside another device (default: `n_threads`; beside a server
        one)."""
        work_as_upstream()
        self.device, self.n_threads, self.pace = measured, n_threads, pace
        self.cpu = device("CPU")
        self.backend = measured.init(n_threads=n_threads)
        self.is_cpu = measured.name == self.cpu.name
        # An RPC server computes in the background. Only reading waits for it, synchronize does not.
        self.is_remote = is_remote(measured)
        if beside is None:  # a server on this machine has cores that threads of ours would take
            beside = 1 if self.is_remote else n_threads
        self._handles: list[Handle] = [self.backend]
        self.backends: list[Backend] = [self.backend]
        if not self.is_cpu:
            host = self.cpu.init(n_threads=beside)
            self._handles.append(host)
            self.backends.append(host)
        if beside > 1:
            # As models have them: beside other threads on these cores they do not spin.
            pool = ThreadPool(beside, poll=0 if measured.has_cpu_threads else 50)
            self._handles.append(pool)
            self.backends[-1].set_threadpool(pool)
        self.scheduler = Scheduler(self.backends, graph_size=GRAPH_SIZE, op_offload=False)
        self._handles.insert(0, self.scheduler)
        self.samples: list[Sample] = []
        self._index: dict[tuple[str, tuple[float, ...]], int] = {}
        self.alone = self.disturbed = 0.0  # seconds of computes
        self._filled: tuple[str, bool, int, Filled] | None = None
        self._buffers: list[Buffer] = []
        self._read = ffi.new("char[4]")
        self.overhead = 0.0  # seconds of a compute with one small node
        try:
            self.overhead = self._call_overhead()
            self.alone = self.disturbed = 0.0  # of so small a graph nothing is known
            self.is_quick = not (self.is_cpu or self.is_remote) and self._speed() > _QUICK
        except BaseException:
            self.__exit__()
            raise

    def filled(self, type_: str, total: int, mapped: bool) -> Filled:
        """At least `total` bytes of that type in a mapped file, or in the device's own memory. The
        last one is kept."""
        kept = self._filled
        if kept is None or kept[:2] != (type_, mapped) or kept[2] < total:
            self._let_go()
            make = (
                mapped_file(self.cpu, type_, total)
                if mapped
                else own_memory(self.backend, type_, total)
            )
            self._filled = kept = type_, mapped, total, make
        return kept[3]

    def _let_go(self) -> None:
        if self._filled is not None:
            self.scheduler.reset()
            self._filled[3].close()
            self._filled = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._let_go()
        self.scheduler.reset()
        self._give_back()
        for handle in self._handles:
            handle.close()
        work_as_upstream(0)

    def _call_overhead(self) -> float:
        """Seconds of a compute with one small node, from Python."""
        with Context(1 << 20) as context:
            x = context.new_tensor("f32", 32, name="x")
            graph = context.new_graph()
            graph.build_forward_expand(context.scale(x, 2.0))
            return statistics.median(self.times(graph, {x: np.ones(32, np.float32)}, 0.02))

    def enough(self, work: float, for_node: float) -> int:
        """Number of nodes of a graph that is measured well: the graph's `work` divided by the work
        of a node, times 100 on a quick device."""
        return max(int(work * (_MORE if self.is_quick else 1) // for_node), 1)

    def _speed(self) -> float:
        """Operations a second of one product, about."""
        k, n = 2048, 256
        with Context(1 << 20) as kept, Context(1 << 20) as context:
            weight = kept.new_tensor("f16", k, k)
            kept.alloc(self.backend, usage="weights")
            weight.set(np.zeros((k, k), np.float16))
            x = context.new_tensor("f32", k, n)
            graph = context.new_graph()
            graph.build_forward_expand(context.mul_mat(weight, x))
            taken = self.times(graph, {x: np.zeros((n, k), np.float32)}, 0.02)
            self.scheduler.reset()
        return float(2 * k * k * n / min(taken))

    def times(
        self, graph: Graph, inputs: dict[Tensor, Any], seconds: float, least: int = LEAST
    ) -> list[float]:
        """Seconds of each compute of a graph."""
        self.planned(graph, inputs)
        return self.again(graph, seconds, least)

    def planned(self, graph: Graph, inputs: dict[Tensor, Any]) -> Plan:
        """Allocates the graph and sets its inputs."""
        self.scheduler.reset()
        self._give_back()
        for tensor in inputs:
            if self.backend.buffer_type.is_host:
                tensor.set_input()
            else:  # in the device's memory, so that a compute copies nothing
                buffer = self.backend.buffer_type.alloc(tensor.nbytes + _SPARE)
                self._buffers.append(buffer)
                tensor.alloc(buffer)
        if not self.is_cpu:
            for node in graph.nodes:
                if node.op.name not in VIEW_OPS and self.backend.supports_op(node):
                    self.scheduler.set_tensor_backend(node, self.backend)
        plan = self.scheduler.alloc_graph(graph)
        for tensor, values in inputs.items():
            tensor.set(values)
        return plan

    def _give_back(self) -> None:
        """Frees the memory of the last graph's inputs."""
        while self._buffers:
            self._buffers.pop().close()

    def again(self, graph: Graph, seconds: float, least: int = LEAST) -> list[float]:
        """Seconds of each compute of the allocated graph, after two that do not count."""
        compute, clock = self.computing(graph), time.perf_counter
        once = 1.0
        for _ in range(2):
            began = clock()
            compute()
            once = min(clock() - began, once)
            if once > _LONG:
                least = min(least, _FEW)
                break
        once += _BUSY_S if self.is_remote else 0.0
        n = int(min(max(seconds * self.pace / max(once, 1e-7), least), MOST))
        alone: list[float] = []
        disturbed: list[float] = []
        # Where others always have the cores, waiting for them only takes the time of other samples.
        patience = _PATIENCE if self.disturbed <= self.alone else 1
        end = clock() + patience * max(seconds * self.pace, n * once)
        while len(alone) < n and (clock() < end or len(alone) + len(disturbed) < least):
            long = int((_CHUNK_S if self.n_threads == 1 else _CHUNK_BOTH_S) / once) + 1
            chunk = self._chunk(graph, min(n - len(alone), long) if self.n_threads == 1 else long)
            (alone if self._was_alone(chunk) else disturbed).extend(chunk.seconds)
        self.alone += sum(alone)
        self.disturbed += sum(disturbed)
        return alone if len(alone) >= min(least, n) else sorted([*alone, *disturbed])[:n]

    def _chunk(self, graph: Graph, n: int) -> _Chunk:
        """Seconds of each of `n` computes, and the number of cores that the process had."""
        compute, clock = self.computing(graph), time.perf_counter
        found = []
        used, began = time.process_time(), clock()
        for _ in range(n):
            if self.is_remote:
                self.be_busy()
            start = clock()
            compute()
            found.append(clock() - start)
        return _Chunk(found, (time.process_time() - used) / (clock() - began))

    def computing(self, graph: Graph) -> Callable[[], object]:
        """Computes the graph, and waits until that is done."""
        compute, last = self.scheduler.compute, graph.nodes[-1]
        if not self.is_remote:
            return lambda: compute(graph)

        def computed() -> None:
            compute(graph)
            self.wait_for(last)

        return computed

    def be_busy(self) -> None:
        """What a program does before it sends something to a server: it computes. Call it before
        what is timed."""
        clock = time.perf_counter
        end = clock() + _BUSY_S
        while clock() < end:
            pass

    def wait_for(self, tensor: Tensor) -> None:
        """Waits until a remote device has computed or received a tensor."""
        if self.is_remote:
            lib.ggml_backend_tensor_get(tensor.ptr, self._read, 0, len(self._read))

    def _was_alone(self, chunk: _Chunk) -> bool:
        """Whether nobody took the cores meanwhile. Threads that wait for others spin, so all are
        busy until the graph is done; between short graphs they sleep, which cannot be told apart.
        """
        if not self.is_cpu:
            return True
        if self.n_threads > 1 and statistics.median(chunk.seconds) < min(
            _SHORT * self.overhead, _SHORT_S
        ):
            return True
        return chunk.cores >= self.n_threads * (_ALONE if self.n_threads == 1 else _ALONE_BOTH)

    def sample(
        self,
        graph: Graph,
        inputs: dict[Tensor, Any],
        nodes: int,
        seconds: float = 0.06,
        suffix: str = "",
        least: int = LEAST,
        key: str | None = None,
        at: tuple[float, ...] | None = None,
    ) -> Sample | None:
        """Measures a graph of `nodes` equal nodes, whose last one says what they are. Returns None,
        and keeps no sample, if the device does not compute them."""
        plan = self.planned(graph, inputs)
        work = work_in(plan, self.backend.name, self.n_threads)
        if work is None:
            return None
        taken = self.again(graph, seconds, least)
        per_node = [max(t - self.overhead, t * 0.02) / nodes for t in taken]
        return self.keep(
            (key or work.key) + suffix, work.at if at is None else at,
            [t / work.times for t in per_node],
            int(work.bytes / work.times), int(work.flops / work.times),
        )  # fmt: skip

    def keep(
        self, key: str, at: Iterable[float], seconds: list[float], n_bytes: int = 0, flops: int = 0
    ) -> Sample:
        """Keeps a sample, with repetitions spread evenly if there are many. A second sample of the
        same work, measured in other memory, adds its repetitions to the first."""
        step = max(len(seconds) / _KEPT, 1.0)
        kept = sorted(seconds) if step > 1 else seconds
        kept = [kept[int(i * step)] for i in range(min(len(kept), _KEPT))]
        sample = Sample(key, tuple(map(float, at)), tuple(kept), n_bytes, flops)
        index = self._index.setdefault((sample.key, sample.at), len(self.samples))
        if index < len(self.samples):
            before = self.samples[index]
            sample = self.samples[index] = before._replace(
                seconds=(*before.seconds, *sample.seconds)
            )
        else:
            self.samples.append(sample)
        return sample


def work_in(plan: Plan, backend: str, n_threads: int) -> Any:
    """The work of the last node that the backend computes; None if it computes none, or if another
    backend computes a node of that op."""
    index = plan.capture.backend_index(backend)
    heads, fused = fused_heads(plan)
    computed = [node for node in plan.nodes if node.is_computed and node.id not in fused]
    last = computed[-1]
    if last.placement.backend != index:
        return None
    if any(n.op == last.op and n.placement.backend != index for n in computed):
        return None
    threads = n_threads if plan.backends[index].device_type == "CPU" else 1
    return work_of(plan, last.record, index, threads, heads)

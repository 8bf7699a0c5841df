"""The CPU threads that a model computes with, kept from compute to compute."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ...backends.backend import Backend
from ...backends.threadpool import ThreadPool
from ...boundary.ffi import lib
from ...enums import Op
from ...errors import MissingFunctionError
from ...graphs.graph import Graph
from ...scheduler.scheduler import Scheduler

_VIEWS = (Op.NONE, Op.VIEW, Op.RESHAPE, Op.PERMUTE, Op.TRANSPOSE)


class Threads:
    """A thread pool for each backend that takes one. Its threads sleep until the first compute.
    After each compute they spin for a while, so the next one need not wake them.

    They do not spin if another backend computes on the same CPUs with its own threads (BLAS, a
    simulated device): threads of both would then get half a CPU each. Graphs with nodes on such a
    backend use pools whose threads sleep at once.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._pools: dict[Backend, dict[bool, ThreadPool]] = {}  # by whether the threads spin
        self._accels = [b for b in backends if b.device.has_cpu_threads]
        for backend in backends:
            with contextlib.suppress(MissingFunctionError):
                if backend.n_threads is not None:
                    pool = ThreadPool(backend.n_threads, paused=True, device=backend.device)
                    self._pools[backend] = {True: pool}
                    backend.set_threadpool(pool)

    def fit(self, sched: Scheduler, graph: Graph) -> None:
        """Sets the right pools on the backends for a graph that is allocated on `sched`."""
        if not self._accels:
            return
        spins = not self._accelerates(sched, graph)
        for backend, pools in self._pools.items():
            if spins not in pools:
                n, device = pools[True].n_threads, backend.device
                pools[spins] = ThreadPool(n, poll=0, paused=True, device=device)
            if backend.threadpool is not pools[spins]:
                backend.set_threadpool(pools[spins])  # makes the other pool's threads sleep

    def _accelerates(self, sched: Scheduler, graph: Graph) -> bool:
        """Whether a backend with its own CPU threads computes a node."""
        nodes = lib.ggml_graph_nodes(graph.ptr)
        accels = [backend.ptr for backend in self._accels]
        return sched.n_splits > 1 and any(
            nodes[i].op not in _VIEWS
            and lib.ggml_backend_sched_get_tensor_backend(sched.ptr, nodes[i]) in accels
            for i in range(graph.n_nodes)
        )

    def close(self) -> None:
        """Ends the threads."""
        for pools in self._pools.values():
            for pool in pools.values():
                pool.close()

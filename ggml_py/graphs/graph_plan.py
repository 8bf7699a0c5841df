"""Graph plans: the preparation of a compute, made once for many computes.

Upstream's plans borrow the graph's nodes, their memory and the thread pool, and do not check them
again. Here a plan is closed when its graph, memory or thread pool is closed, and checks whether a
tensor has moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..backends.backend import Backend, check_status
from ..backends.computing import computing
from ..backends.device import Device, default_n_threads, device
from ..backends.sharing import using
from ..backends.threadpool import ThreadPool
from ..boundary.arguments import integer, ptr_of
from ..boundary.callback import AbortCallback
from ..boundary.ffi import NULL, ffi, lib, text
from ..boundary.handle import Handle
from ..boundary.uses import reading
from ..errors import AbortError, AllocError, ArgumentError, MissingFunctionError
from ..typed import typed
from .graph import Graph

if TYPE_CHECKING:
    from ..tensors.tensor import Tensor


class GraphPlan(Handle):
    """A graph, prepared for one backend. Made by `Backend.graph_plan`.

    It keeps the backend's number of threads, thread pool and `set_use_ref` of that moment.
    """

    __slots__ = ("_state", "backend", "graph", "threadpool")

    def __init__(self, backend: Backend, graph: Graph) -> None:
        graph_ptr, backend_ptr = ptr_of(Graph, graph), ptr_of(Backend, backend)
        with using("being planned", graph):
            _check(graph, backend)
            graph._check_custom([backend], lambda _node: backend)
            try:
                ptr = lib.ggml_backend_graph_plan_create(backend_ptr, graph_ptr)
            except AbortError as error:
                raise MissingFunctionError(
                    f"backend {backend.name} has no graph plans: use Backend.compute"
                ) from error
            if ptr == NULL:
                raise AllocError(f"backend {backend.name} could not plan {graph!r}")
            self._state = lib.gp_graph_state(graph_ptr)
        self.backend = backend
        self.graph = graph
        self.threadpool = backend.threadpool

        def free(plan: Any) -> None:
            lib.ggml_backend_graph_plan_free(backend_ptr, plan)

        parents: list[Handle] = [backend, graph]
        if self.threadpool is not None:
            parents.append(self.threadpool)
        super().__init__(ptr, free, *parents)

    def __repr__(self) -> str:
        return "<GraphPlan closed>" if self.closed else f"<GraphPlan of {self.graph!r}>"

    def compute(self) -> None:
        """Computes the graph. Raises the same errors as `Backend.compute`, and `ArgumentError` if
        the graph grew or one of its tensors moved after the plan was made.

        C: ggml_backend_graph_plan_compute
        """
        ptr, backend, graph = self.ptr, self.backend, self.graph
        pools = () if self.threadpool is None else (self.threadpool,)
        compute, args = lib.ggml_backend_graph_plan_compute, (backend.ptr, ptr)
        handles, callbacks = (self, backend), lambda: (backend._abort,)
        status = computing(
            compute, args, graph, handles, callbacks, pools, check=self._check_unchanged
        )
        check_status(status, f"backend {backend.name}")

    def _check_unchanged(self) -> None:
        _check(self.graph, self.backend)
        if lib.gp_graph_state(self.graph.ptr) != self._state:
            raise ArgumentError(
                "the graph grew, or one of its tensors moved, after this plan was made: make "
                "another"
            )


class CpuNode(NamedTuple):
    """How the CPU computes a node, according to upstream's own code. C: ggml_graph_plan"""

    node: Tensor
    n_threads: int  # threads that compute its graph
    n_tasks: int  # the number of those that upstream divides the work among
    work_size: int  # bytes of scratch memory that it asks for
    buft: str  # the extra buffer type whose kernel computes it ("CPU_REPACK"); "": ggml-cpu's own
    kernel: str  # that kernel: "q4_0_8x8_q8_0", or the name of upstream's class
    layout: str  # layout of its weight there: "q4_0_8x8"; "" if upstream has no name for it
    fused: tuple[Tensor, ...]  # the nodes that are fused with it, including itself; () if none


class CpuPlan(Handle):
    """A graph, prepared for the CPU without a backend. C: ggml_graph_plan

    It can be made before the graph has memory, to learn `work_size`.
    """

    __slots__ = ("_abort", "_state", "_wanted", "_work", "graph", "threadpool")

    @typed
    def __init__(
        self,
        graph: Graph,
        n_threads: int | None = None,
        threadpool: ThreadPool | None = None,
        abort_callback: Callable[[], bool] | None = None,
        use_ref: bool = False,
    ) -> None:
        """`n_threads` is by default the size of the pool, or without one the number of cores that
        this process may use. For `abort_callback` and `use_ref` see `Backend.set_abort_callback`
        and `Backend.set_use_ref`.

        Raises `ArgumentError` for more threads than the pool has, `MissingFunctionError` if the
        CPU backend is a loaded module.
        """
        ptr_of(Graph, graph)
        most = lib.GGML_MAX_N_THREADS
        if threadpool is not None:
            ptr_of(ThreadPool, threadpool)
            most = threadpool.n_threads
        self._wanted = min(most, default_n_threads()) if threadpool is None else most
        if n_threads is not None:
            self._wanted = integer("n_threads", n_threads, 1, most)
        self.graph = graph
        self.threadpool = threadpool
        self._abort = AbortCallback(abort_callback)
        ptr = ffi.new("struct ggml_cplan *")
        if use_ref:
            if not hasattr(ptr, "use_ref"):
                raise MissingFunctionError("use_ref: this release of ggml has no such setting")
            ptr.use_ref = True
        ptr.abort_callback = ffi.cast("ggml_abort_callback", lib.gp_interrupt_callback())
        ptr.abort_callback_data = self._abort.cell
        with reading(graph):
            self._plan(ptr)
        pools = () if threadpool is None else (threadpool,)
        super().__init__(ptr, lambda _plan: None, graph, *pools)

    def __repr__(self) -> str:
        if self.closed:
            return "<CpuPlan closed>"
        n = self.n_threads
        threads = f"{n} thread{'s' * (n != 1)}"
        return f"<CpuPlan of {self.graph!r}: {threads}, {self.work_size:,} bytes>"

    @property
    def work_size(self) -> int:
        """Bytes of scratch memory that a compute needs."""
        return int(self.ptr.work_size)

    @property
    def n_threads(self) -> int:
        """Threads that compute: at most as many as a node of the graph can use."""
        return int(self.ptr.n_threads)

    @property
    def nodes(self) -> tuple[CpuNode, ...]:
        """How each node of the graph is computed. Raises `MissingFunctionError` in a build without
        instrumentation. C: ggml_graph_plan"""
        ptr, graph = self.ptr, self.graph
        nodes = graph.nodes
        records = ffi.new("struct gp_cpu_record[]", len(nodes))
        use_ref = bool(getattr(ptr, "use_ref", False))
        if not lib.gp_graph_cpu_nodes(graph.ptr, self._wanted, use_ref, records):
            raise MissingFunctionError("this build of ggml does not say how it computes nodes")
        fused: list[tuple[Tensor, ...]] = [()] * len(nodes)
        for i, r in enumerate(records):
            if r.n_fused:
                group = tuple(nodes[i : i + r.n_fused + 1])
                fused[i : i + len(group)] = [group] * len(group)
        return tuple(
            CpuNode(
                node, r.n_threads, r.n_tasks, r.work_size, text(r.buft), text(r.kernel),
                text(r.layout), group,
            )
            for node, r, group in zip(nodes, records, fused, strict=True)
        )  # fmt: skip

    def compute(self) -> None:
        """Computes the graph. Plans it anew if it grew or one of its tensors moved.

        Raises the same errors as `Backend.compute`. C: ggml_graph_compute
        """
        ptr, graph = self.ptr, self.graph
        pools = () if self.threadpool is None else (self.threadpool,)
        status = computing(
            self._compute, (ptr,), graph, (self,), lambda: (self._abort,), pools,
            check=lambda: _check(graph, device("CPU")),
        )  # fmt: skip
        check_status(status, "CPU")

    def _compute(self, ptr: Any) -> int:
        graph = self.graph.ptr
        if lib.gp_graph_state(graph) != self._state:
            self._plan(ptr)
        return int(lib.ggml_graph_compute(graph, ptr))

    def _plan(self, ptr: Any) -> None:
        pool = NULL if self.threadpool is None else self.threadpool.ptr
        plan = lib.ggml_graph_plan(self.graph.ptr, self._wanted, pool)
        self._work: npt.NDArray[np.uint8] = np.empty(plan.work_size, np.uint8)
        self._state: int = lib.gp_graph_state(self.graph.ptr)
        ptr.work_size, ptr.n_threads, ptr.threadpool = plan.work_size, plan.n_threads, pool
        ptr.work_data = ffi.cast("uint8_t *", ffi.from_buffer(self._work))


def _check(graph: Graph, computes: Backend | Device) -> None:
    """Makes the checks of `Backend.compute`."""
    graph._check_data()
    graph._check_buffers(computes)

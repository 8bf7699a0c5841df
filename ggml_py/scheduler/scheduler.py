"""The scheduler: decides which backend runs each node, allocates, computes."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..backends.backend import Backend, check_status, settle
from ..backends.buffer import BufferType
from ..backends.computing import computing
from ..backends.sharing import Lender, changing, free_lender, lent_by
from ..boundary.arguments import check_function, describe, integer, ptr_of
from ..boundary.callback import raising
from ..boundary.ffi import BUILD, NULL, ffi, lib
from ..boundary.handle import Halfway, Held
from ..boundary.uses import COMPUTING, in_use, reading
from ..errors import AbortError, AllocError, ArgumentError, MissingFunctionError
from ..graphs.context import new_native
from ..graphs.graph import Graph
from ..tensors.lent import Loan
from ..tensors.tensor import Tensor
from ..typed import typed
from .callbacks import CopyCallback, EvalCallback
from .reads import ReadScheduler
from .reallocations import labels
from .recording import Recording
from .refusal import (
    check_backends,
    check_graph,
    check_pin,
    deciding,
    larger_than_buffers,
    no_memory,
)
from .strict import ACTIVE, check

if TYPE_CHECKING:
    from ..boundary.callback import Callback
    from ..plan import Plan
    from ..trace.provenance import Provenance
    from .callbacks import CopyFunction, EvalFunction
    from .strict import Requirements

# Address space that ggml_backend_sched_new takes per node, mostly for the metadata of copies.
_NODE_BYTES = 30 * 2 * ffi.sizeof("struct ggml_tensor")
log = logging.getLogger("ggml_py")


class Scheduler(ReadScheduler, Lender):
    """Runs graphs over several backends, highest priority first, a CPU last.

    Unlike upstream's scheduler, it returns a graph as it got it: `reset` restores the sources that
    planning replaced with copies, and takes back the memory that the tensors were lent. So a graph
    can be planned and run any number of times. C: ggml_backend_sched_new
    """

    __slots__ = (
        "_checked", "_copies_at", "_copy_callback", "_eval_callback", "_held", "_held_native",
        "_known", "_loans", "_n_allocs", "_pinned", "_recording", "_room", "_runs", "_tracing",
        "backends", "graph_size",
    )  # fmt: skip

    @typed
    def __init__(
        self,
        backends: Sequence[Backend],
        graph_size: int = 2048,
        parallel: bool = False,
        op_offload: bool = True,
        buffer_types: Sequence[BufferType] | None = None,
    ) -> None:
        """`graph_size` is the largest number of nodes plus leafs that a graph may have.
        `parallel` keeps four copies of inputs for pipeline parallelism. `op_offload` lets a backend
        of higher priority take ops whose weights are in host memory. `buffer_types`, one per
        backend, are what the scheduler allocates from (default: the backends' own).

        Raises `ArgumentError` for backends that upstream would abort on, `AllocError` for a
        graph_size that the process has no address space for.
        """
        if not isinstance(backends, Iterable):
            raise TypeError(f"expected a sequence of Backends, got {describe(backends)}")
        self.backends = tuple(backends)
        self.graph_size = integer("graph_size", graph_size, 1, 1 << 31)
        self._eval_callback: EvalCallback | None = None
        self._copy_callback: CopyCallback | None = None
        self._recording: Recording | None = None
        self._n_allocs = 0
        check_backends(self.backends, buffer_types)
        # Upstream does not check that its own allocations succeed.
        n_bytes = self.graph_size * _NODE_BYTES
        lib.ggml_free(new_native(n_bytes, f"a scheduler with graph_size={self.graph_size:,}"))
        # A cffi array holds no references: `ptrs` keeps the backends alive.
        raw = ffi.new("ggml_backend_t[]", ptrs := [b.ptr for b in self.backends])
        kind, how = "ggml_backend_buffer_type_t[]", (bool(parallel), bool(op_offload))
        bufts = NULL if buffer_types is None else ffi.new(kind, [t.ptr for t in buffer_types])
        ptr = lib.ggml_backend_sched_new(raw, bufts, len(ptrs), graph_size, *how)
        tracing = self._tracing = bool(lib.gp_trace_present())
        restore = lib.gp_sched_restore if tracing else None
        self._checked: tuple[Requirements, ...] = ()  # met by the allocated graph
        self._held: list[Graph] = []
        self._pinned: dict[Any, tuple[Tensor, str, str]] = {}  # kept: its address may not be reused
        self._known: dict[int, Tensor] | None = None  # its tensors by address: see SchedState
        self._loans = loans = list[Loan]()  # the copies of the graph that is allocated
        held = self._held_native = Held()  # the graph's tensors may outlive an unclosed scheduler

        def free(raw: Any) -> None:
            for loan in loans:
                loan.close()
            free_lender(raw, held, lent_by, restore, lib.ggml_backend_sched_free)

        super().__init__(ptr, free, *self.backends)
        ptr = self.ptr  # keeps it, should another thread close a backend, and so this, now
        if tracing:
            lib.gp_sched_trace(ptr, True)
        self._runs = lib.gp_sched_runs(ptr) if tracing else None
        self._copies_at: tuple[int, int] | None = None  # address and size
        self._room = self.hash_set_size
        if tracing and (parallel or len(self.backends) > 1):
            state = self._state()
            self._copies_at = state.context_buffer.address, state.context_buffer_size

    @property
    def _graph(self) -> Graph | None:  # the one that is allocated now
        return next(iter(self._held), None)  # another thread may reset it meanwhile

    @_graph.setter
    def _graph(self, graph: Graph | None) -> None:
        held, self._held[:] = self._held_native, [] if graph is None else [graph]
        held.native = None if graph is None else graph._native
        held.needs = [] if graph is None else self._native.needs

    def __repr__(self) -> str:
        if self.closed:
            return "<Scheduler closed>"
        return f"<Scheduler {', '.join(b.name for b in self.backends)}>"

    def _spoil(self, error: Halfway) -> None:  # gives the graph its sources back all the same
        raw = self.ptr
        super()._spoil(error)
        if self._tracing:
            lib.gp_sched_restore(raw)
        self._let_go()

    def _before_free(self) -> None:
        if self._spoiled_by is None:
            try:
                settle(self.backends)
            except Exception as error:  # of a compute that nobody waited for
                log.error("%r is closed after a compute that failed: %s", self, error)
            self._reset()
        self._let_go()

    def _lent_tensors(self) -> Any:
        return lent_by(self.ptr) if self._held and self._tracing and not self._spoiled_by else ()

    # --- planning

    def plan(self, graph: Graph) -> Plan:
        """Plans without allocating. The graph and this scheduler do not change, so the same call
        gives the same plan. Pins made with `set_tensor_backend` count.

        The allocated graph gives the plan it was allocated with. Raises `ArgumentError` for a graph
        larger than `graph_size`; in a `strict` block, like `alloc_graph`, `reserve` and `compute`,
        `PlacementError`. C: ggml_backend_sched_split_graph
        """
        return check(self._plan(graph))

    def _plan(self, graph: Graph) -> Plan:
        from .capture import read_plan  # here, to import ggml_py faster

        raw = ptr_of(Graph, graph)
        if self._graph is not graph:
            self._check_graph(graph)
        with changing("planning", self, graph, graph=graph):
            made = self._made()
            if self._graph is graph:
                return read_plan(lib.gp_sched_read, self.ptr, raw, self._pinned, provenance=made)
            self._check_graph(graph)  # another thread may just have reset it
            with deciding(self, graph):
                return read_plan(lib.gp_sched_plan, self.ptr, raw, self._pinned, provenance=made)

    def _made(self) -> Provenance:
        from .process_facts import made_here  # here, to import ggml_py faster

        return made_here((b.device for b in self.backends), ask_servers=False)

    def alloc_graph(self, graph: Graph) -> Plan:
        """Plans the graph, allocates memory for all its tensors, and returns the plan.

        Set the inputs after this and before `compute`. Raises `ArgumentError` while another graph
        is allocated (`reset` first), `AllocError` without memory. C: ggml_backend_sched_alloc_graph
        """
        from .capture import read_plan

        self._admit(graph)
        with changing("allocating", self, graph, graph=graph, gives=True):
            self._alloc_alone(graph)
            made = self._made()
            return read_plan(lib.gp_sched_read, self.ptr, graph.ptr, self._pinned, provenance=made)

    def alloc_without_plan(self, graph: Graph) -> None:
        """Like `alloc_graph`, but does not read out the plan. C: ggml_backend_sched_alloc_graph"""
        self._admit(graph)
        with changing("allocating", self, graph, graph=graph, gives=True):
            self._alloc_alone(graph)

    def _alloc_alone(self, graph: Graph) -> None:
        # Another thread may have been here meanwhile.
        if self._graph is not None or graph._allocated_on() or not graph.n_nodes:
            self._check_free(graph)
        graph._gets_memory()
        with self._changing(), deciding(self, graph, True):
            done = lib.ggml_backend_sched_alloc_graph(self.ptr, graph.ptr)
        if not done:
            raise self._no_memory(graph)
        self._graph = graph
        self._checked = ACTIVE.get()
        self._n_allocs += 1
        graph._scheduler = weakref.ref(self)
        self._lend()
        graph._got_memory()
        try:
            graph._check_custom(self.backends, self.tensor_backend)
        except ArgumentError:
            self._reset()
            raise

    def reserve(self, graph: Graph) -> None:
        """Allocates compute buffers large enough for `graph`, so that later graphs fit.

        The graph does not change. Pins are used and then dropped, as in upstream: set them again.
        Raises `AllocError`. C: ggml_backend_sched_reserve
        """
        self._admit(graph)
        with changing("reserving", self, graph, graph=graph):
            self._check_free(graph)
            with self._changing(), deciding(self, graph, True):
                done = lib.ggml_backend_sched_reserve(self.ptr, graph.ptr)
            if not done:
                raise self._no_memory(graph)
            self._restore()

    def reserve_size(self, graph: Graph) -> dict[str, int]:
        """Bytes of compute buffer that `graph` needs on each backend, by backend name.

        Allocates nothing and changes neither graph nor scheduler; pins count. A backend that shares
        the buffer type of an earlier one has 0. Raises `MissingFunctionError` in releases that
        cannot measure. C: ggml_gallocr_reserve_n_size, as ggml_backend_sched_reserve_size
        """
        self._check_graph(graph)
        if self._graph is graph:
            raise ArgumentError("the graph is allocated here: see buffer_size(), or reset() first")
        with changing("measuring", self, graph, graph=graph):
            self._check_graph(graph)  # another thread may have cleared it
            sizes = self._measure(graph)
        if sizes is None:
            raise MissingFunctionError(
                f"ggml {BUILD['ggml_version']} cannot measure a graph: call reserve(), then "
                "buffer_size()"
            )
        return sizes

    def _measure(self, graph: Graph) -> dict[str, int] | None:
        """See `reserve_size`; None in releases that cannot measure."""
        sizes = ffi.new("size_t[]", len(self.backends))
        graph._hold_arrays()
        with deciding(self, graph):
            done = lib.gp_sched_measure(self.ptr, graph.ptr, sizes)
        return dict(zip(labels(self), sizes, strict=True)) if done else None

    @property
    def allocation(self) -> int:
        """The number of the current allocation, counted from 1; 0 if nothing is allocated."""
        return self._n_allocs if self._held else 0

    def _no_memory(self, graph: Graph) -> AllocError:
        """The error for a graph whose compute buffers cannot be allocated, with the sizes."""
        if not self._tracing:
            self._reset()
            return AllocError("the scheduler could not allocate the graph's compute buffers")
        too_large = larger_than_buffers(self, graph)
        lib.gp_sched_unplan(self.ptr)
        return no_memory(self, self._measure(graph), too_large)

    def reset(self) -> None:
        """Forgets the allocated graph and all pins. The graph gets its own sources back, and its
        tensors lose the memory that the scheduler lent them. C: ggml_backend_sched_reset"""
        with changing("being reset", self, lenders=(self,), brief=True):
            self._reset()

    def _reset(self) -> None:
        self._restore()
        lib.ggml_backend_sched_reset(self.ptr)

    def _before_loss(self) -> None:
        if self._spoiled_by is None:
            self._restore()
        self._let_go()

    def _restore(self) -> None:
        if self._tracing:
            gone = self._graph is not None and self._graph.closed
            (lib.gp_sched_forget if gone else lib.gp_sched_restore)(self.ptr)
        self._let_go()

    def _let_go(self) -> None:
        self._graph = self._known = None
        self._pinned.clear()
        while self._loans:
            self._loans.pop().close()

    def _lend(self) -> None:
        """Makes copies, which are the scheduler's own tensors, usable while it holds the graph."""
        if self._copies_at is not None:
            self._loans.append(Loan(*self._copies_at))

    def _admit(self, graph: Graph) -> None:
        """Raises for a graph that cannot be allocated now, or whose plan `strict` refuses."""
        self._check_free(graph)
        if ACTIVE.get():
            check(self._plan(graph))

    def _check_free(self, graph: Graph) -> None:
        if self._graph is not None:
            raise ArgumentError("this scheduler has a graph allocated already: call reset() first")
        self._check_graph(graph)
        graph._check_own()
        graph._hold_arrays()

    def _check_graph(self, graph: Graph) -> None:
        check_graph(graph, self, self._room)

    # --- running

    def compute(self, graph: Graph) -> None:
        """Computes the graph, allocating it first if needed, and waits for the end.

        Raises `NoDataError` for a leaf that it would read and that was never set, `ComputeError`,
        `KeyboardInterrupt` on Ctrl-C, and whatever a callback or a custom op raised.
        C: ggml_backend_sched_graph_compute
        """
        compute = lib.ggml_backend_sched_graph_compute
        self.compute_by(graph, compute, (self.ptr, ptr_of(Graph, graph)))

    def compute_async(self, graph: Graph) -> None:
        """Like `compute`, but does not wait for the end. `synchronize` waits, and so does reading a
        result with `Tensor.get` on most backends.

        The CPU computes before this returns. Do not change what the graph reads (its inputs) before
        the end. With `parallel` the next graph can be allocated and given its inputs meanwhile.
        C: ggml_backend_sched_graph_compute_async
        """
        compute = lib.ggml_backend_sched_graph_compute_async
        self.compute_by(graph, compute, (self.ptr, ptr_of(Graph, graph)))

    def compute_by(
        self, graph: Graph, call: Callable[..., int], args: tuple[Any, ...], checked: bool = False
    ) -> None:
        """Like `compute`, but with another native function: `call(*args)` computes the graph and
        returns ggml's status. With `checked` that function checks itself that all tensors have
        memory. Made for `models/decode_one.py`."""
        if not callable(call):
            raise TypeError(f"call: expected a native function, got {describe(call)}")
        held = self._held[:1]  # another thread may reset it meanwhile
        if not held:
            ptr_of(Graph, graph)
            with reading(graph):  # keeps other schedulers from lending it memory now
                self._check_graph(graph)
                graph._check_leafs_set()
            self.alloc_without_plan(graph)
        elif held[0] is not graph:
            raise ArgumentError("another graph is allocated on this scheduler: call reset() first")
        elif (active := ACTIVE.get()) is not self._checked and active:
            check(self._plan(graph))
            self._checked = active
        if self._recording is not None:
            self._recording._computing(self, graph)
        # Not in `_changing`: computing only reads the plan, so an abort spoils nothing.
        status = computing(
            call, args, graph, (self, *self.backends), self._callbacks, (), self.backends,
            COMPUTING, checked, self._held, None, self.backends, self._runs,
        )  # fmt: skip
        if status:
            check_status(status, "compute")

    def _callbacks(self) -> tuple[Callback | None, ...]:  # that a compute may call
        return (self._eval_callback, self._copy_callback, *(b._abort for b in self.backends))

    @typed
    def record(self, per_op: bool = False) -> Recording:
        """Records what this scheduler does in a `with` block: see `Recording`."""
        return Recording(self, per_op=per_op)

    def synchronize(self) -> None:
        """Waits for all backends. Raises what has failed on them since, as `compute` does.

        C: ggml_backend_sched_synchronize
        """
        with reading(self), raising([b._abort for b in self.backends]):
            lib.ggml_backend_sched_synchronize(self.ptr)

    def set_eval_callback(self, callback: EvalFunction | None) -> None:
        """Sets `callback(tensor, ask)`, which sees nodes as they are computed; None removes it.

        With `ask` True it returns whether it wants to see the node once that is computed. If so, it
        is called again with `ask` False: it may then read and change the tensor, and returning
        False stops the split. An exception in it stops the compute and is raised from `compute`.
        C: ggml_backend_sched_set_eval_callback
        """
        check_function(callback, "(tensor, ask)")
        if self._recording is not None and self._recording._per_op:
            raise ArgumentError(
                "this scheduler is being recorded with per_op, which uses the eval callback: end "
                "the recording first, or record without per_op"
            )
        held = None if callback is None else EvalCallback(self, callback)
        function, data = (NULL, NULL) if held is None else (lib.gp_on_eval, held.handle)
        with in_use("given a callback", self):
            lib.ggml_backend_sched_set_eval_callback(self.ptr, function, data)
            self._eval_callback = held

    @property
    def eval_callback(self) -> EvalFunction | None:
        """The callback that `set_eval_callback` set; None without one."""
        return None if self._eval_callback is None else self._eval_callback._call

    def set_copy_callback(self, callback: CopyFunction | None) -> None:
        """Sets `callback(backend, src, dst, nodes)`; None removes it. It is called before `src`, a
        weight in host memory, is copied to `backend`, as `dst`, for a split with these nodes.

        It returns True if it has filled `dst` (whole, or what `nodes` will read), or False to let
        ggml copy. `dst` cannot be used afterwards. An exception in it is raised from `compute` at
        the end. Raises `MissingFunctionError` before ggml 0.26.
        C: ggml_backend_sched_set_copy_callback
        """
        check_function(callback, "(backend, src, dst, nodes)")
        held = None if callback is None else CopyCallback(self, self.backends, callback)
        function, data = (NULL, NULL) if held is None else (lib.gp_on_copy, held.handle)
        with in_use("given a callback", self):
            lib.ggml_backend_sched_set_copy_callback(self.ptr, function, data)
            self._copy_callback = held

    # --- pins and state

    @typed("by", "why")
    def set_tensor_backend(
        self, tensor: Tensor, backend: Backend, *, by: str = "", why: str = ""
    ) -> None:
        """Pins `tensor` to a backend until the next reset. Plans tell `by` whom, and `why`.

        Raises `ArgumentError` for a backend that is not one of them, and for a tensor in memory
        that the backend cannot read. C: ggml_backend_sched_set_tensor_backend
        """
        raw, on = ptr_of(Tensor, tensor), self._mine(backend)
        check_pin(tensor, backend, self.backends)
        try:
            with in_use("given a pin", self):
                self._pinned[raw] = tensor, by, why
                lib.ggml_backend_sched_set_tensor_backend(self.ptr, raw, on)
        except AbortError:
            raise ArgumentError(
                f"no room to pin '{tensor.name}': {self.hash_set_size} tensors are pinned already. "
                "Make the scheduler with a larger graph_size=, or reset() it"
            ) from None

"""Allocators: memory for the tensors of a graph, or for single tensors one after the other.

`Context.alloc` and `Scheduler` do this themselves; these are for laying memory out by hand.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ..backends.buffer import Buffer, BufferType
from ..backends.sharing import Lender, changing, free_lender, placing, without_memory
from ..boundary.arguments import integer, ptr_of
from ..boundary.ffi import NULL, ffi, lib
from ..boundary.handle import Handle, Held
from ..boundary.uses import in_use, reading
from ..errors import AbortError, AllocError, ArgumentError
from ..tensors.tensor import Tensor
from .graph import Graph
from .reallocation import Reallocation, labels, reallocation

_MAX_REALLOCS = 256


class TensorAllocator:
    """Places tensors in a buffer, one after the other. C: ggml_tallocr_new

    It starts at the beginning of the buffer and does not check for other tensors there.
    """

    __slots__ = ("_raw", "buffer")

    def __init__(self, buffer: Buffer) -> None:
        raw = ptr_of(Buffer, buffer)
        if hasattr(self, "_raw"):  # a second __init__ would start at the beginning again
            raise TypeError("this TensorAllocator is made already: make another")
        self.buffer = buffer
        self._raw = ffi.new("struct ggml_tallocr *", lib.ggml_tallocr_new(raw))

    def __repr__(self) -> str:
        if self.buffer.closed:
            return "<TensorAllocator of a closed Buffer>"
        return f"<TensorAllocator {self.n_free:,} of {self.buffer.size:,} bytes free>"

    @property
    def n_used(self) -> int:
        """Bytes in use; the next tensor goes after them."""
        self.buffer.ptr  # noqa: B018  raises when closed
        return int(self._raw.offset)

    @property
    def n_free(self) -> int:
        """Bytes left."""
        return max(0, self.buffer.size - self.n_used)

    def alloc(self, tensor: Tensor) -> None:
        """Gives `tensor` the next aligned place in the buffer.

        It takes `buffer.alloc_size(tensor)` bytes, rounded up to the alignment. Copies in the data
        of `from_numpy`. The tensor's context keeps the buffer alive but does not close it. Raises
        `ArgumentError` for a tensor that has memory or is a view, `AllocError` if it does not fit
        or the backend refuses. C: ggml_tallocr_alloc
        """
        raw = ptr_of(Tensor, tensor)
        with in_use("being filled", self.buffer), placing(*tensor._graphs()):
            self._alloc(tensor, raw)

    def _alloc(self, tensor: Tensor, raw: Any) -> None:
        tensor._check_without_memory()
        alignment = self._raw.alignment
        need = -(-self.buffer.alloc_size(tensor) // alignment) * alignment
        if need > self.n_free:
            raise AllocError(
                f"tensor '{tensor.name}' takes {need:,} bytes, but only {self.n_free:,} are free "
                f"in {self.buffer}"
            )
        status = lib.ggml_tallocr_alloc(self._raw, raw)
        tensor._placed(self.buffer, status)


class GraphAllocator(Lender):
    """Lends memory to the tensors of one graph at a time. Each tensor has its memory from when it
    is computed to its last use. C: ggml_gallocr_new_n

    With several buffer types, `reserve` says which tensor goes where. Every graph is laid out anew
    before it gets memory; buffers are kept while they are large enough.
    """

    __slots__ = ("_ids", "_lent", "_n_reallocations", "_reallocations", "buffer_types")

    def __init__(self, *buffer_types: BufferType) -> None:
        """Raises `ArgumentError` without a buffer type."""
        if not buffer_types:
            raise ArgumentError(
                "no buffer type: expected at least one, such as backend.buffer_type"
            )
        bufts = [ptr_of(BufferType, buft) for buft in buffer_types]
        self.buffer_types = buffer_types
        self._ids: tuple[Any, Any] | None = None  # of nodes and leafs
        raw = ffi.new("ggml_backend_buffer_type_t[]", bufts)
        ptr = lib.ggml_gallocr_new_n(raw, len(raw))
        self._lent = _Lent(self)
        self._n_reallocations = 0
        self._reallocations: deque[Reallocation] = deque(maxlen=_MAX_REALLOCS)
        if lib.gp_trace_present():
            lib.gp_layout_watch(ptr)

        def free(ptr: Any, held: Held = self._lent.held) -> None:
            def take(_ptr: Any) -> None:
                lib.gp_take_memory(held.tensors, len(held.tensors))

            free_lender(ptr, held, lambda _ptr: held.tensors, take, lib.ggml_gallocr_free)

        super().__init__(ptr, free)
        for buft in buffer_types:
            buft._module.open.add(self)

    def __repr__(self) -> str:
        names = "closed" if self.closed else ", ".join(buft.name for buft in self.buffer_types)
        return f"<GraphAllocator {names}>"

    def reserve(
        self,
        graph: Graph,
        node_buffer_ids: Sequence[int] | None = None,
        leaf_buffer_ids: Sequence[int] | None = None,
    ) -> None:
        """Makes the buffers large enough for `graph`, so that graphs up to its size need no more.

        The ids, one per node and one per leaf, are indices into `buffer_types` (default: all in the
        first); `alloc_graph` uses them until the next `reserve`. `graph` itself stays as it is; a
        graph that is allocated here loses its memory. Raises `ArgumentError` for ids that do not
        fit the graph, `AllocError`. C: ggml_gallocr_reserve_n
        """
        ids = self._check(graph, node_buffer_ids, leaf_buffer_ids)
        with self._alone("reserving", graph):
            self._lent.take()
            self._ids = ids
            self._reserve(graph)

    def measure(
        self,
        graph: Graph,
        node_buffer_ids: Sequence[int] | None = None,
        leaf_buffer_ids: Sequence[int] | None = None,
    ) -> tuple[int, ...]:
        """Bytes that `reserve` would need for each buffer type; 0 for a repeated type.

        Allocates and changes nothing. Raises the same errors as `reserve`.
        C: ggml_gallocr_reserve_n_size
        """
        ids = self._check(graph, node_buffer_ids, leaf_buffer_ids)
        if self._lent.graph is graph:
            raise ArgumentError("the graph is allocated here: see buffer_size(), or reset() first")
        sizes = ffi.new("size_t[]", len(self.buffer_types))
        graph._hold_arrays()
        # In a separate allocator: upstream frees the buffers of the one that it measures with.
        with GraphAllocator(*self.buffer_types) as other:
            lib.ggml_gallocr_reserve_n_size(other.ptr, graph.ptr, *ids, sizes)
        known = self.buffer_types
        return tuple(0 if t in known[:i] else int(sizes[i]) for i, t in enumerate(known))

    def alloc_graph(self, graph: Graph) -> None:
        """Gives memory to each tensor of `graph` that has none. The graph that had memory from here
        before loses it.

        Set the inputs after this and before each compute: the memory of tensors that are not marked
        (`Tensor.set_input`, `set_output`) is reused for later ones. `reset`, another graph and
        `close` take the memory back. Raises `ArgumentError` for a graph that is allocated elsewhere
        or, with several buffer types, that has other counts than the reserved one; `AllocError`.
        C: ggml_gallocr_alloc_graph
        """
        self._check(graph, None, None)
        n_ids = tuple(0 if ids == NULL else len(ids) for ids in self._ids or ())
        several = len(self.buffer_types) > 1
        if several and self._ids is None:
            raise ArgumentError(
                f"this allocator has {len(self.buffer_types)} buffer types: first call "
                "reserve(graph, node_buffer_ids, leaf_buffer_ids) to say where each tensor goes"
            )
        if several and any(n_ids) and n_ids != (graph.n_nodes, graph.n_leafs):
            raise ArgumentError(
                f"the graph has {graph.n_nodes} node{'s' * (graph.n_nodes != 1)} and "
                f"{graph.n_leafs} leaf{'s' * (graph.n_leafs != 1)}, but ids were given for "
                f"{n_ids[0]} and {n_ids[1]}: call reserve() with this graph and its ids"
            )
        with self._alone("allocating", graph, gives=True):
            self._check(graph, None, None)  # again: another thread may have allocated it
            self._lent.take()
            self._reserve(graph)
            graph._gets_memory()
            with self._lent.to(graph), self._changing():
                done = lib.ggml_gallocr_alloc_graph(self.ptr, graph.ptr)
            if not done:
                self._lent.take()
                raise AllocError(f"{self!r} could not allocate {graph!r}")
            graph._got_memory()

    @contextlib.contextmanager
    def _alone(self, doing: str, *graphs: Graph, gives: bool = False) -> Iterator[None]:
        """Around a change of the allocator, these graphs and the graph that has its memory now."""
        done = False
        while not done:
            lent = self._lent.graph
            other = () if lent is None or lent.closed or lent in graphs else (lent,)
            graph = graphs[0] if graphs else None
            with changing(
                doing, self, *graphs, *other,
                graph=graph, lenders=[self], nodes=False, gives=gives,
            ):  # fmt: skip
                if self._lent.graph is lent:  # otherwise another thread has changed it
                    done = True
                    yield

    def reset(self) -> None:
        """Takes back the memory that it lent to the graph's tensors. The buffers stay."""
        with self._alone("being reset"):
            self._lent.take()

    @property
    def _graph(self) -> Graph | None:
        return self._lent.graph

    def _lent_tensors(self) -> Any:
        return self._lent.held.tensors

    def _before_loss(self) -> None:
        self._lent.take()

    _before_free = _before_loss

    def _reach(self, found: dict[int, Handle]) -> None:
        super()._reach(found)
        graph = self._lent.graph  # another thread may reset it meanwhile
        if graph is not None:
            graph._reach(found)

    def buffer_size(self, buffer_id: int = 0) -> int:
        """Bytes of the buffer of `buffer_types[buffer_id]`; 0 before it is made, and for a repeated
        type. Raises `ArgumentError`. C: ggml_gallocr_get_buffer_size
        """
        id_ = integer("buffer_id", buffer_id, 0, len(self.buffer_types) - 1)
        with reading(self):
            return self._size(id_)

    @property
    def n_reallocations(self) -> int:
        """How many graphs did not fit the layout before, so that upstream lays out again too."""
        return self._n_reallocations

    @property
    def reallocations(self) -> tuple[Reallocation, ...]:
        """Why they did not, oldest first; the newest 256 are kept. Empty in a pristine build.
        C: ggml_gallocr_needs_realloc"""
        return tuple(self._reallocations)

    @contextlib.contextmanager
    def _noting(self, graph: Graph) -> Iterator[None]:
        """Around laying out `graph`: notes why the layout before does not fit, if it does not."""
        if not lib.gp_trace_present():
            yield
            return
        record = ffi.new("struct gp_realloc_record *")
        unfit = lib.gp_gallocr_unfit(self.ptr, graph.ptr, record)
        before = self._sizes()
        yield
        if unfit:
            names = labels([buft.name for buft in self.buffer_types])
            self._n_reallocations += 1
            counts = record.kind in (lib.GP_REALLOC_NODES, lib.GP_REALLOC_LEAFS)
            first = "the first graph" if counts and not record.have else ""
            self._reallocations.append(reallocation(record, names, before, self._sizes(), first))

    def _sizes(self) -> dict[str, int]:
        """Bytes of each buffer; a repeated type has its own in the first one."""
        names = labels([buft.name for buft in self.buffer_types])
        return {name: self._size(i) for i, name in enumerate(names)}

    def _size(self, i: int) -> int:
        return int(lib.ggml_gallocr_get_buffer_size(self.ptr, i))

    def _reserve(self, graph: Graph) -> None:
        graph._hold_arrays()
        with self._changing(), self._noting(graph):
            done = lib.ggml_gallocr_reserve_n(self.ptr, graph.ptr, *(self._ids or (NULL, NULL)))
        if not done:
            names = ", ".join(buft.name for buft in self.buffer_types)
            raise AllocError(f"no memory for the buffers ({names}) of {graph!r}")

    def _check(
        self, graph: Graph, node_ids: Sequence[int] | None, leaf_ids: Sequence[int] | None
    ) -> tuple[Any, Any]:
        """The ids as C arrays. Raises for a graph or ids that cannot be used."""
        ptr_of(Graph, graph)
        self.ptr  # noqa: B018  raises when closed
        if graph.n_nodes + graph.n_leafs == 0:
            raise ArgumentError("the graph is empty: add its results with build_forward_expand")
        graph._check_own()
        other = graph._allocated_on()
        if other is not None and other is not self:
            raise ArgumentError(f"the graph is allocated on {other!r}: reset() that one first")
        if (node_ids is None) != (leaf_ids is None):
            raise ArgumentError("expected ids for both nodes and leafs, or for neither")
        return (
            self._c_ids("node", node_ids, graph.n_nodes),
            self._c_ids("leaf", leaf_ids, graph.n_leafs),
        )

    def _c_ids(self, what: str, ids: Sequence[int] | None, n: int) -> Any:
        if ids is None:
            return NULL
        if len(ids) != n:
            raise ArgumentError(
                f"{len(ids)} {what}_buffer_ids for a graph with {n} {what}{'s' * (n != 1)}"
            )
        most = len(self.buffer_types) - 1
        return ffi.new("int[]", [integer(f"{what}_buffer_ids", id_, 0, most) for id_ in ids])


class _Lent:
    """The graph that an allocator has lent memory to, and its tensors that had none before.

    The allocator's finalizer holds `held`, so the tensors still exist when it takes their memory.
    """

    __slots__ = ("_allocator", "graph", "held")

    def __init__(self, allocator: GraphAllocator) -> None:
        self._allocator = weakref.ref(allocator)
        self.graph: Graph | None = None
        self.held = Held()

    def owner(self) -> GraphAllocator | None:
        """The allocator; None after it is collected."""
        return self._allocator()

    @contextlib.contextmanager
    def to(self, graph: Graph) -> Iterator[None]:
        """Around the call that lends memory to `graph`."""
        self.held.tensors = without_memory(graph.ptr)
        self.held.native, self.graph, graph._lent = graph._native, graph, self
        try:
            yield
        except AbortError:
            self.take()
            raise

    def take(self) -> None:
        """Takes the memory back if any tensors still have it."""
        graph, self.graph = self.graph, None
        if graph is not None:
            lib.gp_take_memory(self.held.tensors, len(self.held.tensors))
            self.held.native, self.held.tensors = None, ()
            graph._lent = None

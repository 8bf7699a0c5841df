"""A graph: the nodes that one result needs, in the order they are computed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import enums
from ._arguments import c_text, given, whole
from ._ffi import NULL, ffi, lib, text
from ._handle import Handle, in_use
from .context import new_native
from .custom import custom_nodes, is_remote, take_failed
from .errors import ArgumentError, NoDataError
from .tensor import Tensor

if TYPE_CHECKING:
    from ._callback import Callback
    from .alloc import GraphAllocator, _Lent
    from .backend import Backend
    from .context import Context
    from .scheduler import Scheduler


class Graph(Handle):
    """Made by `Context.new_graph`. It has memory of its own, so closing it gives that back."""

    __slots__ = ("_context", "_lent", "_scheduler")

    def __init__(self, context: Context, size: int = 2048, grads: bool = False) -> None:
        size = whole("size", size, 1, 1 << 31)
        context.ptr  # noqa: B018  raises when closed
        room = lib.ggml_graph_overhead_custom(size, grads)
        memory = new_native(room, f"a graph of size {size:,}")
        self._context = context
        self._scheduler: weakref.ref[Scheduler] | None = None  # where it is allocated
        self._lent: _Lent | None = None  # the same, for a GraphAllocator
        ptr = lib.ggml_new_graph_custom(memory, size, grads)
        super().__init__(ptr, lambda _graph: lib.ggml_free(memory), context)

    def __repr__(self) -> str:
        return "<Graph closed>" if self.closed else f"<Graph {self.n_nodes} nodes>"

    def build_forward_expand(self, *tensors: Tensor) -> None:
        """Adds each tensor and all that it needs.

        Raises `AbortError` when the graph is full; it is half built then and can only be closed.
        C: ggml_build_forward_expand
        """
        if not tensors:
            raise TypeError("build_forward_expand() without tensors: expected the graph's results")
        if self._allocated_on() is not None:
            raise ArgumentError(
                f"the graph is allocated on {self._allocated_on()!r}: reset() that one first"
            )
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"expected a Tensor, got {given(tensor)}")
            self._depend(tensor._context)
            with in_use("being built", self), self._changing():
                lib.ggml_build_forward_expand(self.ptr, tensor.ptr)

    @property
    def size(self) -> int:
        """Nodes that it has room for. C: ggml_graph_size"""
        return int(lib.ggml_graph_size(self.ptr))

    @property
    def n_nodes(self) -> int:
        """C: ggml_graph_n_nodes"""
        return int(lib.ggml_graph_n_nodes(self.ptr))

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        """In the order of computation. C: ggml_graph_nodes"""
        nodes = lib.ggml_graph_nodes(self.ptr)
        return tuple(Tensor(nodes[i], self._context) for i in range(self.n_nodes))

    @property
    def n_leafs(self) -> int:
        """C: gp_graph_leafs"""
        return int(lib.gp_graph_leafs(self.ptr, NULL))

    @property
    def leafs(self) -> tuple[Tensor, ...]:
        """Tensors that are not computed: inputs and weights. C: gp_graph_leafs"""
        n = self.n_leafs
        leafs = ffi.new("struct ggml_tensor *[]", n)
        lib.gp_graph_leafs(self.ptr, leafs)
        return tuple(Tensor(leafs[i], self._context) for i in range(n))

    def _before_free(self) -> None:
        if self._lent is not None:
            self._lent.take()

    def _allocated_on(self) -> Scheduler | GraphAllocator | None:
        """Who has lent this graph memory."""
        if self._lent is not None:
            return self._lent.owner()
        scheduler = None if self._scheduler is None else self._scheduler()
        return scheduler if scheduler is not None and scheduler._graph is self else None

    def _check_leafs(self, what_to_do: str) -> Any:
        """The first tensor without memory; raises `NoDataError` if it is a leaf."""
        missing = lib.gp_graph_without_data(self.ptr)
        if missing != NULL and missing.op == enums.Op.NONE:
            name = Tensor(missing, self._context).name
            raise NoDataError(f"leaf '{name}' of the graph has no memory: {what_to_do}")
        return missing

    def _check_data(self) -> None:
        """Raises `NoDataError` for a tensor without memory: computing would read through NULL."""
        missing = self._check_leafs(
            "the buffer it was in is closed, or its context was never allocated"
        )
        if missing == NULL:
            return
        name = Tensor(missing, self._context).name
        raise NoDataError(
            f"node '{name}' of the graph has no memory: give it some with "
            "GraphAllocator.alloc_graph, or compute the graph with a Scheduler"
        )

    def _check_buffers(self, backend: Backend) -> None:
        """Raises `ArgumentError` for a tensor in memory that `backend` cannot read."""
        room = 16
        n, buffers = room + 1, NULL
        while n > room:
            buffers, room = ffi.new("ggml_backend_buffer_t[]", n), n
            n = lib.gp_graph_buffers(self.ptr, buffers, room)
        for buffer in buffers[0:n]:
            buft = lib.ggml_backend_buffer_get_type(buffer)
            if not lib.ggml_backend_supports_buft(backend.ptr, buft):
                raise ArgumentError(
                    f"tensors of the graph are in {text(lib.ggml_backend_buffer_name(buffer))} "
                    f"memory, which backend {backend.name} cannot read: compute the graph with a "
                    "Scheduler, which copies them"
                )

    def _check_custom(
        self, backends: Sequence[Backend], backend_of: Callable[[Tensor], Backend | None]
    ) -> None:
        """Raises `ArgumentError` for a custom op on a backend that cannot call Python."""
        remote = [b for b in backends if is_remote(b.device)]
        for node in custom_nodes(self) if remote else ():
            backend = backend_of(node)
            if backend is not None and backend in remote:
                raise ArgumentError(
                    f"the custom op '{node.name}' is on {backend.name}, an RPC device, which "
                    "cannot call Python: pin it to the CPU with Scheduler.set_tensor_backend"
                )

    @contextlib.contextmanager
    def _computing(self, *callbacks: Callback | None) -> Iterator[None]:
        """Around a compute of this graph: what a callback or a custom op raised in it is raised."""
        self._check_data()
        self._take_stored(callbacks)  # of a compute that was called through `lib`
        try:
            yield
        finally:
            error = self._take_stored(callbacks)
        if error is not None:
            raise error

    def _take_stored(self, callbacks: Sequence[Callback | None]) -> BaseException | None:
        stored = [take_failed(self)]
        stored += [c.take_stored() for c in callbacks if c is not None]
        return next((error for error in reversed(stored) if error is not None), None)

    def __getitem__(self, name: str) -> Tensor:
        """The first node or leaf of that name. Raises KeyError. C: ggml_graph_get_tensor"""
        ptr = lib.ggml_graph_get_tensor(self.ptr, c_text("name", name))
        if ptr == NULL:
            raise KeyError(f"no node or leaf named '{name}' in this graph")
        return Tensor(ptr, self._context)

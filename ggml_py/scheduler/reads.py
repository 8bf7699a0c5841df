"""The readable parts of a native scheduler, whoever made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..backends.backend import Backend
from ..backends.buffer import BufferType
from ..boundary.arguments import ptr_of
from ..boundary.ffi import NULL, lib
from ..boundary.handle import Handle
from ..boundary.uses import reading
from ..errors import ArgumentError
from ..tensors.tensor import Tensor
from .reallocations import reallocations

if TYPE_CHECKING:
    from ..graphs.graph import Graph
    from ..graphs.reallocation import Reallocation
    from .view import SchedState


class ReadScheduler(Handle):
    """The reading half of `Scheduler`."""

    __slots__ = ()
    backends: tuple[Backend, ...]
    graph_size: int
    _tracing: bool  # the native scheduler is instrumented
    _known: dict[int, Tensor] | None  # the tensors of the graph that it holds, by address
    _copies_at: tuple[int, int] | None  # address and size of its own tensors

    @property
    def _graph(self) -> Graph | None:
        """The graph that is allocated here now; None without one."""
        return None

    def tensor_backend(self, tensor: Tensor) -> Backend | None:
        """The backend that `tensor` is assigned to now; None if it has none.

        C: ggml_backend_sched_get_tensor_backend
        """
        number = self._state().tensor_backend_id(tensor)
        return self.backends[number] if number is not None and number >= 0 else None

    @property
    def n_splits(self) -> int:
        """Number of splits of the graph planned last. C: ggml_backend_sched_get_n_splits"""
        with reading(self):
            return int(lib.ggml_backend_sched_get_n_splits(self.ptr))

    @property
    def n_copies(self) -> int:
        """4 with `parallel`, else 1. C: ggml_backend_sched_get_n_copies"""
        with reading(self):
            return int(lib.ggml_backend_sched_get_n_copies(self.ptr))

    def buffer_type(self, backend: Backend) -> BufferType:
        """The buffer type it uses for `backend`. C: ggml_backend_sched_get_buffer_type"""
        with reading(self):
            return BufferType(lib.ggml_backend_sched_get_buffer_type(self.ptr, self._mine(backend)))

    def buffer_size(self, backend: Backend) -> int:
        """Bytes of the compute buffer on `backend`; 0 before an allocation, and for a backend that
        shares the buffer of an earlier one. C: ggml_backend_sched_get_buffer_size"""
        with reading(self):
            return int(lib.ggml_backend_sched_get_buffer_size(self.ptr, self._mine(backend)))

    def _mine(self, backend: Backend) -> Any:
        ptr = ptr_of(Backend, backend)
        if backend not in self.backends:
            names = ", ".join(b.name for b in self.backends)
            raise ArgumentError(f"{backend!r} is not a backend of this scheduler; it has {names}")
        return ptr

    @property
    def hash_set_size(self) -> int:
        """Number of tensors it has room for: upstream's prime at or above graph_size."""
        return self._state().hash_set.size if self._tracing else self.graph_size

    def _state(self) -> SchedState:
        """For numbers: it may be read while another thread computes."""
        from .view import SchedState

        return SchedState(self, while_computing=True)

    @property
    def state(self) -> SchedState:
        """The private struct, live: `sched.state.splits[0].inputs`, see `SchedState`."""
        from .view import SchedState  # here, to import ggml_py faster

        return SchedState(self)

    @property
    def n_reallocations(self) -> int:
        """How often a graph did not fit the layout of the compute buffers. The first graph counts
        unless `reserve` came before it. C: gp_sched_reallocs"""
        with reading(self):
            return int(lib.gp_sched_reallocs(self.ptr, NULL, 0))

    @property
    def reallocations(self) -> tuple[Reallocation, ...]:
        """These reallocations, oldest first (only the newest 256), with tensor and reason.
        C: gp_sched_reallocs"""
        with reading(self):
            return reallocations(self)

    def inspect(self) -> dict[str, Any]:
        """`state` as plain data, by upstream's field names (struct ggml_backend_sched).

        Leaves out fields that this release does not have. `hash_set["slots"]` has a row for each
        used slot: slot, tensor (its address), `hv_tensor_backend_ids`, the number of copies in
        `hv_tensor_copies`, and the cause.
        """
        return self._state().as_dict_()

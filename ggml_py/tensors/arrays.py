"""Arrays of `Context.from_numpy`, kept until the tensors made for them have memory of their own.

A tensor can get memory in many ways: `Context.alloc`, `Tensor.alloc`, an allocator, a scheduler,
`lib`. So the array is uploaded by whoever needs the data first: what reads or writes the tensor,
and each compute. A scheduler or a `GraphAllocator` takes its memory back, so there the array stays,
and is uploaded again whenever the graph is allocated again.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ..backends.buffer import memory_of
from ..boundary.ffi import NULL, ffi, lib
from ..errors import AbortError

if TYPE_CHECKING:
    import numpy.typing as npt


class Arrays:
    """Those of one context. Tensors are known by their address, for a Tensor would keep the context
    that holds this."""

    __slots__ = ("__weakref__", "_entries")

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, ptr: Any, data: npt.NDArray[Any]) -> None:
        """The array, encoded, of a tensor without memory."""
        if data.size:
            self._entries[_address(ptr)] = _Entry(ptr, data)
            if id(self) not in PENDING:
                PENDING.add(id(self))
                weakref.finalize(self, PENDING.discard, id(self)).atexit = False

    def has(self, ptr: Any) -> bool:
        """Whether a tensor gets its data from here."""
        return _address(ptr) in self._entries

    def upload(self, ptr: Any) -> None:
        """For the tensor alone, or what it is a view of; where it was not done yet."""
        root = ptr.view_src if ptr.view_src != NULL else ptr
        entry = self._entries.get(_address(root))
        if entry is not None:
            self._upload(entry)

    def upload_all(self) -> None:
        """For all tensors that have memory by now."""
        for entry in list(self._entries.values()):
            self._upload(entry)

    def hold(self, graph: Any) -> None:
        """Before `graph` is allocated: the memory that its tensors get shall not be used again for
        later nodes, which is what outputs are marked for."""
        for entry in list(self._entries.values()):
            if entry.ptr.data == NULL and lib.gp_graph_has(graph, entry.ptr):
                lib.ggml_set_output(entry.ptr)
                entry.place = NULL

    def _upload(self, entry: _Entry) -> None:
        ptr = entry.ptr
        if ptr.data == NULL:
            entry.place = NULL  # it was lent memory, which was taken back
        elif ptr.buffer != NULL and entry.place != ptr.data:
            data = entry.data
            try:
                lib.ggml_backend_tensor_set(ptr, ffi.from_buffer(data), 0, data.nbytes)
            except AbortError as error:
                if "buffer not set" not in error.condition:
                    raise
                entry.place = NULL  # just now, by another thread
                return
            entry.place = ptr.data
            if memory_of(ptr.buffer) is not None:  # of its own: nobody takes it back
                self._entries.pop(_address(ptr), None)
                if not self._entries:
                    PENDING.discard(id(self))


# The ids of those that are not empty: most programs have none when they compute.
PENDING: set[int] = set()


class _Entry:
    """An array, and where it was uploaded to."""

    __slots__ = ("data", "place", "ptr")

    def __init__(self, ptr: Any, data: npt.NDArray[Any]) -> None:
        self.ptr, self.data, self.place = ptr, data, NULL


def _address(ptr: Any) -> int:
    return int(ffi.cast("uintptr_t", ptr))

"""Arrays of `Context.from_numpy`, kept until their tensors have memory of their own.

A tensor can get memory in many ways: `Context.alloc`, `Tensor.alloc`, an allocator, a scheduler,
`lib`. So the array is uploaded when its data is first needed: before a read or write of the tensor,
and before each compute. A scheduler or a `GraphAllocator` takes its memory back. For its tensors
the array is kept, and uploaded again each time the graph is allocated.
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
    """The arrays of one context. Tensors are stored by address, because a Tensor would keep alive
    the context that holds this object."""

    __slots__ = ("__weakref__", "_entries")

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, ptr: Any, data: npt.NDArray[Any]) -> None:
        """Adds the encoded array of a tensor without memory."""
        if data.size:
            self._entries[_address(ptr)] = _Entry(ptr, data)
            if id(self) not in PENDING:
                PENDING.add(id(self))
                weakref.finalize(self, PENDING.discard, id(self)).atexit = False

    def has(self, ptr: Any) -> bool:
        """Whether a tensor gets its data from here."""
        return _address(ptr) in self._entries

    def upload(self, ptr: Any) -> None:
        """Uploads the array of the tensor, or of the tensor that it views, unless it was done."""
        root = ptr.view_src if ptr.view_src != NULL else ptr
        entry = self._entries.get(_address(root))
        if entry is not None:
            self._upload(entry)

    def upload_all(self) -> None:
        """Uploads the arrays of all tensors that have memory now."""
        for entry in list(self._entries.values()):
            self._upload(entry)

    def hold(self, graph: Any) -> None:
        """Call before `graph` is allocated. Marks its tensors as outputs, so that later nodes do
        not reuse their memory."""
        for entry in list(self._entries.values()):
            if entry.ptr.data == NULL and lib.gp_graph_has(graph, entry.ptr):
                lib.ggml_set_output(entry.ptr)
                entry.place = NULL

    def _upload(self, entry: _Entry) -> None:
        ptr = entry.ptr
        if ptr.data == NULL:
            entry.place = NULL  # its lent memory was taken back
        elif ptr.buffer != NULL and entry.place != ptr.data:
            data = entry.data
            try:
                lib.ggml_backend_tensor_set(ptr, ffi.from_buffer(data), 0, data.nbytes)
            except AbortError as error:
                if "buffer not set" not in error.condition:
                    raise
                entry.place = NULL  # another thread has just taken the memory
                return
            entry.place = ptr.data
            if memory_of(ptr.buffer) is not None:  # not lent: nobody takes it back
                self._entries.pop(_address(ptr), None)
                if not self._entries:
                    PENDING.discard(id(self))


# The ids of all `Arrays` that are not empty: most programs have none when they compute.
PENDING: set[int] = set()


class _Entry:
    """An array, and the address it was uploaded to."""

    __slots__ = ("data", "place", "ptr")

    def __init__(self, ptr: Any, data: npt.NDArray[Any]) -> None:
        self.ptr, self.data, self.place = ptr, data, NULL


def _address(ptr: Any) -> int:
    return int(ffi.cast("uintptr_t", ptr))

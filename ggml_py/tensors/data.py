"""The data of a tensor: writing, reading, copying, and sharing it with numpy and DLPack.

Shared memory outlives its buffer: closing a `Buffer` takes the memory from its tensors, and the
memory itself is freed with the last array over it. Memory that a `Scheduler` or `GraphAllocator`
lends is reused by later nodes and the next graph, so only `numpy()` shares it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import enums
from ..backends.buffer import READONLY, BufferMemory, LentMemory, memory_of
from ..backends.sharing import changed_elsewhere
from ..boundary.arguments import describe, integer, ptr_of
from ..boundary.ffi import NULL, ffi, lib, text
from ..errors import AbortError, ArgumentError, BusyError, NoDataError
from .arrays import PENDING
from .blank import check_readable
from .convert import (
    CHUNK,
    DTYPES,
    check_part,
    check_shape,
    chunks,
    decode,
    decode_into,
    encode,
    name_of,
    numbers,
    row_size,
)
from .info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt


class _Shared:
    """The object that numpy keeps for an array over a tensor's memory."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, interface: dict[str, Any], memory: BufferMemory | LentMemory | None) -> None:
        self.__array_interface__ = interface
        self._memory = memory


# Conditions of upstream that fail only if another thread took the memory after it was checked.
_WITHOUT_MEMORY = ("buffer not set", "GGML_ASSERT(buffer)", "tensor not allocated")


class TensorData(TensorInfo):
    """The part of `Tensor` that handles its elements."""

    __slots__ = ()

    def _buffer(self) -> Any:
        ptr = self.ptr
        view_src = ptr.view_src
        return view_src.buffer if view_src else ptr.buffer

    def _data_buffer(self) -> Any:
        """The native buffer, which lives as long as somebody holds this pointer."""
        _memory, _address, buffer = pinned = self._pinned()
        return ffi.gc(buffer, lambda _buffer, _pinned=pinned: None)

    def _moved(self, error: AbortError) -> None:
        """Raises if another thread took its memory after it was checked."""
        self._data()
        if any(known in error.condition for known in _WITHOUT_MEMORY):
            raise BusyError(
                f"tensor '{self.name}' was given other memory on another thread: wait until "
                "that returns"
            ) from error

    def _data(self) -> Any:
        ptr = self.ptr
        if PENDING:
            arrays = getattr(self._context, "_arrays", None)  # only a Context has them
            if arrays:
                arrays.upload(ptr)
        if not self._in_place(ptr):
            self._find_memory(ptr)
        return ptr

    def _check_readable(self) -> None:
        """Raises `NoDataError` if it has memory, but no data."""
        if why := lib.gp_blank_read(self.ptr):
            check_readable(self, why)

    @staticmethod
    def _in_place(ptr: Any) -> bool:
        """Whether it has memory now."""
        source = ptr.view_src
        if source:  # a view: upstream sets its address only once
            place = ffi.cast("char *", source.data)
            if ptr.data != (place + ptr.view_offs if place else NULL):
                lib.gp_view_place(ptr)
            return bool(source.buffer and ptr.data)
        return bool(ptr.buffer and ptr.data)

    def _find_memory(self, ptr: Any) -> None:
        """Raises unless it has memory after all: a change that hid it may just have ended."""
        while True:
            changes = lib.gp_changes()  # counts the beginnings and the ends
            if self._in_place(ptr):
                return
            if doing := changed_elsewhere(ptr.view_src or ptr):
                raise BusyError(
                    f"another thread is {doing} a graph with tensor '{self.name}': wait until "
                    "that returns"
                )
            if changes == lib.gp_changes():
                break
        raise NoDataError(
            f"tensor '{self.name}' has no memory: allocate its context (Context.alloc) or its "
            "graph (Scheduler.alloc_graph) first; a scheduler's reset() takes memory back, as "
            "close() does"
        )

    def set(
        self,
        array: npt.ArrayLike,
        offset: int | None = None,
        imatrix: npt.ArrayLike | None = None,
    ) -> None:
        """Copies `array` into the tensor, converting (and quantising) to its type.

        The array's shape must be `ne` reversed; leading ones do not count. With an `offset` (in
        elements, 0 counts too) only a part is written, starting there: a 1-D array, whole rows from
        the start of a row, or whole planes from the start of a plane. `imatrix` is as in
        `quantize`. Raises `ArgumentError` for a wrong shape or offset and for values that the type
        cannot hold; earlier chunks may already be written then. `NoDataError` before allocation.
        C: ggml_backend_tensor_set
        """
        ptr = self._writable()
        if offset is not None:
            offset = integer("offset", offset)
        values = numbers(array)
        start = 0
        if offset is None:
            n0, n1, n2, n3 = ptr.ne
            ne = (n3, n2, n1, n0)
            if values.shape != ne[-values.ndim :] or n0 * n1 * n2 * n3 != values.size:
                check_shape(f"tensor '{self.name}'", values.shape, self.ne)
        else:
            if offset + values.size > (n := self.n_elements):
                raise ArgumentError(
                    f"tensor '{self.name}' has {n} element{'s' * (n != 1)}: {values.size} at "
                    f"offset {offset} do not fit"
                )
            check_part(f"tensor '{self.name}'", values.shape, self.ne, offset)
            block = lib.ggml_blck_size(ptr.type)
            if offset % block:
                raise ArgumentError(
                    f"offset {offset}: expected a multiple of {block}, the elements in a block of "
                    f"{name_of(self.type)}"
                )
            start = row_size(self.type, offset)
        dtype = DTYPES.get(ptr.type)  # a number works as key for its enums.Type, and is faster
        same = dtype is not None and values.dtype == dtype
        if same and imatrix is None and values.flags.c_contiguous:
            parts: Iterable[npt.NDArray[Any]] = (values,)
        else:
            parts = chunks(values, self.type, self.ne[0], imatrix)
        try:
            for part in parts:
                if part.size:
                    lib.ggml_backend_tensor_set(ptr, ffi.from_buffer(part), start, part.nbytes)
                start += part.nbytes
        except AbortError as error:
            self._moved(error)
            raise

    def _writable(self) -> Any:
        """The native tensor, checked to be contiguous and in writable memory."""
        ptr = self._data()
        if not self.is_contiguous:
            raise ArgumentError(f"tensor '{self.name}' is not contiguous: set its source instead")
        if READONLY and memory_of(self._buffer()) in READONLY:
            raise ArgumentError(
                f"tensor '{self.name}' is in a mapped file, which is read-only: expected a "
                "tensor in memory of its own"
            )
        return ptr

    def set_2d(self, array: npt.ArrayLike, offset: int = 0, stride: int | None = None) -> None:
        """Converts the rows of a 2-D array and writes them `stride` elements apart.

        The first row goes to element `offset`; `stride` is ne0 by default. Everything is in
        elements, and must be whole blocks of a quantised type. Raises `ArgumentError` if it does
        not fit, `NoDataError` before allocation. C: ggml_backend_tensor_set_2d
        """
        values = numbers(array)
        if values.ndim != 2:
            raise ArgumentError(f"array of shape {values.shape}: expected two dimensions")
        n, n_per_row = values.shape
        start, size, step = self._rows(n, n_per_row, offset, stride)
        if values.size:
            self._writable()
            data = encode(values, self.type, n_per_row)
            source = ffi.from_buffer(data)
            lib.ggml_backend_tensor_set_2d(self.ptr, source, start, size, n, step, size)

    def get_2d(
        self, n: int, size: int, offset: int = 0, stride: int | None = None
    ) -> npt.NDArray[Any]:
        """Copies `n` rows of `size` elements that start `stride` apart, the first at `offset`:
        shape [n, size].

        Units, default and errors are as in `set_2d`. Types that numpy lacks come as float32.
        C: ggml_backend_tensor_get_2d
        """
        start, n_bytes, step = self._rows(n, size, offset, stride)
        raw: npt.NDArray[Any] = np.empty(n * n_bytes, np.uint8)
        if raw.size:
            self._check_readable()
            target = ffi.from_buffer(raw)
            lib.ggml_backend_tensor_get_2d(self.ptr, target, start, n_bytes, n, step, n_bytes)
        dtype = DTYPES.get(self.type)
        values = decode(raw, self.type, n * size) if dtype is None else raw.view(dtype)
        return values.reshape(n, size)

    def _rows(self, n: int, size: int, offset: int, stride: int | None) -> tuple[int, int, int]:
        """Bytes of offset, one row and stride. Raises unless the `n` rows are in the tensor."""
        type_ = self._data().type
        if not self.is_contiguous:
            raise ArgumentError(f"tensor '{self.name}' is not contiguous: use its source instead")
        n, size, offset = integer("n", n), integer("size", size), integer("offset", offset)
        step = integer("stride", self.ne[0] if stride is None else stride)
        block = lib.ggml_blck_size(type_)
        end = offset + max(n - 1, 0) * step + size
        if end > self.n_elements:
            raise ArgumentError(
                f"tensor '{self.name}' has {self.n_elements} elements: {n} rows of {size}, {step} "
                f"apart, do not fit at offset {offset}"
            )
        if size % block or offset % block or step % block:
            raise ArgumentError(
                f"rows of {size}, {step} apart, at offset {offset}: expected multiples of {block}, "
                f"the elements in a block of {self.type.name.lower()}"
            )
        start, row, apart = (lib.ggml_row_size(type_, count) for count in (offset, size, step))
        return start, row, apart

    def copy_to(self, other: TensorData) -> None:
        """Copies the data to a tensor of the same type, ne and nb, on any device.

        Raises `ArgumentError` for another layout and for a view with gaps (upstream would copy the
        bytes in the gaps too), `NoDataError` before allocation. C: ggml_backend_tensor_copy
        """
        self._check_copy(other)
        if other != self:
            try:
                lib.ggml_backend_tensor_copy(self.ptr, other.ptr)
            except AbortError as error:
                other._moved(error)
                self._moved(error)
                raise

    def _check_copy(self, other: TensorData) -> None:
        self._data()
        ptr_of(TensorData, other)
        other._data()
        mine = (self.type, self.ne, self.nb)
        theirs = (other.type, other.ne, other.nb)
        if mine != theirs:
            first, second = (f"{t.name.lower()} ne {ne} nb {nb}" for t, ne, nb in (mine, theirs))
            raise ArgumentError(
                f"'{self.name}' ({first}) and '{other.name}' ({second}) have different layouts: "
                "expected the same type, ne and nb; use an op (ctx.cpy) to convert"
            )
        if self.n_elements and not lib.ggml_is_contiguously_allocated(self.ptr):
            raise ArgumentError(
                f"'{self.name}' and '{other.name}' have gaps (ne {list(self.ne)}, nb "
                f"{list(self.nb)}): copy the tensors that they view, or use an op (ctx.cpy)"
            )
        self._check_readable()

    def get(self, dequantize: bool = True, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copies the data; the shape is `ne` reversed, without ggml's trailing ones.

        Types that numpy lacks (quantised, bf16) come as float32, or with `dequantize=False` as
        raw bytes of shape [.., bytes of a row]. With `out`, an array of the same shape and dtype,
        the data goes there and nothing is allocated. Raises `ArgumentError` for an `out` that does
        not match. Raises `NoDataError` before allocation, and for a tensor without data. It was
        never set or computed, its memory was used again, an input behind it was not set again, or
        the CPU computed it together with the next node. `set_output` keeps the values of a node.
        A GPU that computes two nodes together leaves other values, without an error.
        C: ggml_backend_tensor_get
        """
        ptr = self._data()
        dtype, shape = DTYPES.get(ptr.type), self.shape
        contiguous = self.is_contiguous
        if dtype is None and not contiguous:
            raise ArgumentError(
                f"tensor '{self.name}' ({name_of(self.type)}) is not contiguous: get its source"
            )
        if dtype is None and not dequantize:
            shape = (*shape[:-1], row_size(self.type, shape[-1]))
        kind = dtype or np.dtype(np.float32 if dequantize else np.uint8)
        result = np.empty(shape, kind) if out is None else _checked(out, shape, kind, self.name)
        target = result if result.flags.c_contiguous else np.empty(result.shape, kind)
        if why := lib.gp_blank_read(ptr):
            check_readable(self, why)
        try:
            if dtype is None and dequantize:
                self._get_floats(target.reshape(-1))
            elif contiguous:
                if target.size:
                    lib.ggml_backend_tensor_get(ptr, ffi.from_buffer(target), 0, target.nbytes)
            else:
                target[...] = self._gaps_too(kind).reshape(target.shape)
        except AbortError as error:
            self._moved(error)
            raise
        if target is not result:
            result[...] = target
        return result

    def _get_floats(self, out: npt.NDArray[Any]) -> None:
        """Reads a contiguous tensor as floats, chunk by chunk."""
        ptr, row = self.ptr, max(self.ne[0], 1)
        step = max(CHUNK // row, 1) * row
        for start in range(0, out.size, step):
            part = out[start : start + step]
            raw = np.empty(row_size(self.type, part.size), np.uint8)
            lib.ggml_backend_tensor_get(
                ptr, ffi.from_buffer(raw), row_size(self.type, start), raw.nbytes
            )
            decode_into(part, raw, self.type)

    def _gaps_too(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The elements of a tensor with gaps, as an array with its strides."""
        if lib.ggml_backend_buffer_is_host(self._data_buffer()):
            return self._view(dtype, *self._pinned()[:2])
        raw: npt.NDArray[Any] = np.empty(self.nbytes, np.uint8)
        if raw.size:
            lib.ggml_backend_tensor_get(self.ptr, ffi.from_buffer(raw), 0, raw.nbytes)
        array: npt.NDArray[Any] = np.ndarray(self.shape, dtype, raw, 0, self._strides())
        return array

    def _strides(self) -> tuple[int, ...]:
        return tuple(reversed(self.nb[: len(self.shape)]))

    # --- shared memory

    def numpy(self) -> npt.NDArray[Any]:
        """The data itself, without a copy. Only for host buffers and numpy's types.

        The array stays valid: after its buffer is closed the memory lives until the array dies, but
        no tensor has it any more. Memory that a scheduler or allocator lends is overwritten by the
        next graph and, except for outputs, by later nodes; `get` copies it. The array is read-only
        over a mapped file. From then on the tensor counts as set, as you may write to the array.
        Raises `ArgumentError` for device memory and for types that numpy lacks: use `get`. Raises
        `NoDataError` for a node that is gone or was not written, as `get` does. C: ggml_tensor.data
        """
        dtype = DTYPES.get(self.type)
        memory, address, buffer = self._pinned()
        if not lib.ggml_backend_buffer_is_host(buffer):
            where = text(lib.ggml_backend_buffer_name(buffer))
            raise ArgumentError(
                f"tensor '{self.name}' is in a buffer of {where}, which the CPU cannot read: "
                "use get()"
            )
        if dtype is None:
            raise ArgumentError(f"numpy has no {name_of(self.type)}: use get()")
        self._share()
        return self._view(dtype, memory, address)

    def _share(self) -> None:
        """Call before others get its memory: from then on they may write to it, or read it later.
        Raises `NoDataError` if it was computed and is gone, or was not written."""
        ptr = self.ptr
        if (why := lib.gp_blank_read(ptr)) in (lib.GP_BLANK_REUSED, lib.GP_BLANK_FUSED):
            check_readable(self, why)
        lib.gp_blank_share(ptr)

    def _pinned(self) -> tuple[BufferMemory | LentMemory, int, Any]:
        """Its memory now, the address in it, and the native buffer. Holding the first keeps the
        memory, even if the buffer is closed."""
        if not lib.gp_trace_present():  # a pristine build cannot pin lent memory
            self._data()
            buffer = self._buffer()
            address = int(ffi.cast("uintptr_t", self.ptr.data))
            return memory_of(buffer) or LentMemory(NULL), address, buffer
        place, buffer = ffi.new("void **"), NULL
        while buffer == NULL:  # NULL: another thread has just taken it
            buffer = lib.gp_tensor_pin(self._data(), place)
        address, memory = int(ffi.cast("uintptr_t", place[0])), memory_of(buffer)
        if memory is None:
            return LentMemory(buffer), address, buffer
        lib.gp_buffer_unpin(buffer)
        return memory, address, buffer

    def _view(
        self,
        dtype: np.dtype[Any],
        memory: BufferMemory | LentMemory | None = None,
        address: int | None = None,
    ) -> npt.NDArray[Any]:
        """An array over host memory at `address`, which `memory` keeps alive. Without them, over
        its current memory; then nobody may take that memory while the array is used."""
        shape = self.shape
        if address is None:
            address = int(ffi.cast("uintptr_t", self.ptr.data))
        if self.nbytes == 0:
            return np.empty(shape, dtype)
        interface = {
            "version": 3,
            "shape": shape,
            "strides": self._strides(),
            "typestr": dtype.str,
            "data": (address, memory is not None and memory.readonly),
        }
        return np.asarray(_Shared(interface, memory))

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """For np.asarray: `numpy()`, or `get()` where that is not possible or the memory is only
        lent. Raises `NoDataError` for a node that was not computed, unless `copy` is False."""
        array, why = None, "it is in lent memory"
        if copy is None and self.ptr.op != enums.Op.NONE:
            self._check_readable()
        if not copy and memory_of(self._data_buffer()) is not None:
            try:
                array = self.numpy()
            except ArgumentError as error:
                why = str(error)
        if array is None and copy is False:
            raise ValueError(f"a copy of tensor '{self.name}' is needed: {why}")
        if array is None:
            array = self.get()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __buffer__(self, flags: int) -> memoryview:
        """For memoryview(tensor), from Python 3.12 on (PEP 688). Before, use
        `tensor.numpy().data`."""
        try:
            return self.numpy().data
        except ArgumentError as error:
            raise BufferError(str(error)) from error

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0): the CPU. Raises BufferError for device memory."""
        if not lib.ggml_backend_buffer_is_host(self._data_buffer()):
            raise BufferError(f"tensor '{self.name}' is in device memory: copy it with get()")
        return (1, 0)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule for torch.from_dlpack and others: numpy's types and bf16.

        The memory is shared, as by `numpy()`. Lent memory is copied; with `copy=False` it raises.
        Raises BufferError for device memory, quantised types and requests that it cannot meet,
        TypeError for an invalid `max_version`.
        """
        from . import dlpack

        versioned = dlpack.takes_versioned(max_version)
        device = self.__dlpack_device__()
        if stream is not None or dl_device not in (None, device):
            raise BufferError(f"stream={stream}, dl_device={dl_device}: expected None, the CPU")
        dtype = DTYPES.get(self.type)
        if dtype is None and self.type != enums.Type.BF16:
            raise BufferError(f"DLPack has no {name_of(self.type)}: use get()")
        memory, address, _ = self._pinned()
        if copy or isinstance(memory, LentMemory):
            if copy is False:
                raise BufferError(f"tensor '{self.name}' is in lent memory: it must be copied")
            values = self.get(dequantize=False)
            item = 2 if dtype is None else dtype.itemsize
            shape, strides = self.shape, [item]
            for n in reversed(shape[1:]):
                strides.append(strides[-1] * n)
            layout = dlpack.Layout(
                values.ctypes.data, self.type, shape, tuple(reversed(strides)), False
            )
            return dlpack.capsule_of(layout, values, versioned)
        self._share()
        if memory.readonly and not versioned:
            raise BufferError("a mapped file is read-only, which DLPack before 1.0 cannot express")
        layout = dlpack.Layout(address, self.type, self.shape, self._strides(), memory.readonly)
        return dlpack.capsule_of(layout, memory, versioned)


def _checked(
    out: npt.NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], name: str
) -> npt.NDArray[Any]:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: expected a numpy array, got {describe(out)}")
    if out.dtype != dtype or not out.flags.writeable:
        writable = "" if out.flags.writeable else ", read-only"
        raise ArgumentError(f"out is {out.dtype}{writable}: expected {dtype}, writable")
    check_shape(f"out: tensor '{name}'", out.shape, shape[::-1])
    return out

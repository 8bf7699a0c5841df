"""Buffer types and buffers: where the data of tensors lives."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import enums
from ..boundary.address_space import lack
from ..boundary.arguments import describe, integer, ptr_of
from ..boundary.ffi import NULL, ffi, lib, own_pointer, sole_pointer, text
from ..boundary.handle import MEMORY, Handle, Token, those_of
from ..boundary.module import InModule
from ..errors import AllocError, ArgumentError
from .above import AnyContext, AnyTensor
from .device import Device

USAGES = {
    "any": enums.BackendBufferUsage.ANY,
    "weights": enums.BackendBufferUsage.WEIGHTS,
    "compute": enums.BackendBufferUsage.COMPUTE,
}


class BufferType(InModule):
    """How a device allocates memory. A static object of the library, never closed. Get one from
    `Device.buffer_type`, `Buffer.type` and others."""

    __slots__ = ()

    def __init__(self, ptr: Any) -> None:
        device = lib.ggml_backend_buft_get_device(own_pointer(type(self), ptr))
        super().__init__(ptr, NULL if device == NULL else lib.ggml_backend_dev_backend_reg(device))

    def _words(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """C: ggml_backend_buft_name"""
        return text(lib.ggml_backend_buft_name(self.ptr))

    @property
    def alignment(self) -> int:
        """Alignment of tensors, in bytes. C: ggml_backend_buft_get_alignment"""
        return int(lib.ggml_backend_buft_get_alignment(self.ptr))

    @property
    def max_size(self) -> int:
        """Largest size of one buffer, in bytes. C: ggml_backend_buft_get_max_size"""
        return int(lib.ggml_backend_buft_get_max_size(self.ptr))

    @property
    def is_host(self) -> bool:
        """Whether the CPU can read it in place. C: ggml_backend_buft_is_host"""
        return bool(lib.ggml_backend_buft_is_host(self.ptr))

    @property
    def device(self) -> Device | None:
        """C: ggml_backend_buft_get_device"""
        ptr = lib.ggml_backend_buft_get_device(self.ptr)
        return None if ptr == NULL else Device(ptr)

    def alloc(self, size: int) -> Buffer:
        """Allocates `size` bytes. Raises `AllocError`. C: ggml_backend_buft_alloc_buffer"""
        ptr = lib.ggml_backend_buft_alloc_buffer(self.ptr, integer("size", size))
        if ptr == NULL:
            raise self._no_memory(size)
        buffer = Buffer(ptr)
        buffer._held[0].end = 0
        return buffer

    def _no_memory(self, size: int, tensors: Mapping[str, int] | None = None) -> AllocError:
        """The error for `size` bytes that could not be allocated: for one buffer or, with the bytes
        of `tensors` by name, for buffers between which tensors are shared out."""
        name, largest = "", size
        if tensors:
            name = max(tensors, key=tensors.__getitem__)
            largest = tensors[name]
        needs = f"'{name}' needs {largest:,} in one buffer, which" if name else "one buffer"
        most = f"; {needs} has at most {self.max_size:,}" if largest > self.max_size else ""
        message = f"{self.name}: {size:,} bytes could not be allocated{self._room()}{most}"
        too_large = tuple(n for n, nbytes in (tensors or {}).items() if nbytes > self.max_size)
        return AllocError(message + lack(size), {self.name: size}, too_large)

    def _room(self) -> str:
        """How full its device is, for messages. Empty for the CPU: upstream reports all of the
        machine's memory as free."""
        device = self.device
        if device is None or device.type == enums.BackendDevType.CPU or not device.memory[1]:
            return ""
        free, total = device.memory
        return f" ({free:,} of {total:,} bytes of {device.name} are free)"


@contextmanager
def reserving() -> Iterator[None]:
    """In the block, buffers that this thread makes in the CPU's memory are address space: a page is
    taken from the machine when it is written to. A simulated device's always are."""
    lib.gp_reserve_host(True)
    try:
        yield
    finally:
        lib.gp_reserve_host(False)


class BufferMemory:
    """The native buffer itself. It is freed when nothing uses it any more: neither the `Buffer` nor
    an array, DLPack capsule or memoryview over it."""

    __slots__ = ("__weakref__", "_finalizer", "_token", "end", "padded", "readonly")

    def __init__(self, ptr: Any, keep: tuple[Any, ...]) -> None:
        self.end: float = math.inf  # nobody has written to it after this address: see _mark_blank
        self.readonly = any(_is_readonly(k) for k in keep)
        self.padded = False  # True: it begins or ends in memory of somebody else
        self._token = MEMORY.add("Memory")
        self._finalizer = weakref.finalize(self, _free, self._token, ptr, keep)
        self._finalizer.atexit = False  # memory still in use at exit is left alone
        _MEMORIES[_address(ptr)] = self
        if self.readonly:
            READONLY.add(self)

    def __repr__(self) -> str:
        return "<memory of a closed Buffer that arrays still use>"

    @property
    def closed(self) -> bool:
        """Always False: the backend cannot be unloaded until this memory is freed."""
        return False

    def _lose(self) -> None:
        """In the child of a fork: forgets the memory, which the parent frees."""
        self._finalizer.detach()
        MEMORY.remove(self._token)


class LentMemory:
    """A native buffer that ggml itself owns: a scheduler's or an allocator's, which the next graph
    overwrites, or one of ggml-opt's. If ggml frees it meanwhile, it lives as long as this object.

    Takes a buffer pinned by `gp_tensor_pin`, or NULL where nothing can be pinned."""

    __slots__ = ("__weakref__", "_finalizer")
    readonly = False

    def __init__(self, ptr: Any) -> None:
        if ptr != NULL:
            self._finalizer = weakref.finalize(self, lib.gp_buffer_unpin, ptr)
            self._finalizer.atexit = False

    def __repr__(self) -> str:
        return "<memory of ggml that arrays use>"


def _is_readonly(keep: Any) -> bool:
    try:
        return memoryview(keep).readonly
    except TypeError:
        return False


def _free(token: Token, ptr: Any, keep: tuple[Any, ...]) -> None:
    for other, _keep in list(_PARKED):  # empty in a pristine build
        if not lib.gp_buffer_is_pinned(other):
            _PARKED.remove((other, _keep))
    if keep and lib.gp_trace_present() and lib.gp_buffer_is_pinned(ptr):
        _PARKED.append((ptr, keep))
    try:
        lib.ggml_backend_buffer_free(ptr)
    finally:
        MEMORY.remove(token)


def _address(ptr: Any) -> int:
    return int(ffi.cast("uintptr_t", ptr))


_MEMORIES: weakref.WeakValueDictionary[int, BufferMemory] = weakref.WeakValueDictionary()
# Memory borrowed by buffers that were freed while another thread copied from or to them.
_PARKED: list[tuple[Any, tuple[Any, ...]]] = []
READONLY: weakref.WeakSet[BufferMemory] = weakref.WeakSet()  # most programs have none


def memory_of(ptr: Any) -> BufferMemory | None:
    """The owner of a native buffer; None for a buffer of a scheduler or an allocator."""
    return _MEMORIES.get(_address(ptr))


class _BufferInfo:
    """The properties and methods that every buffer has."""

    __slots__ = ()

    def _raw(self) -> Any:
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name of its buffer type. C: ggml_backend_buffer_name"""
        raw = self._raw()
        return text(lib.ggml_backend_buffer_name(raw))

    @property
    def type(self) -> BufferType:
        """C: ggml_backend_buffer_get_type"""
        raw = self._raw()
        return BufferType(lib.ggml_backend_buffer_get_type(raw))

    @property
    def size(self) -> int:
        """Size in bytes. C: ggml_backend_buffer_get_size"""
        return int(lib.ggml_backend_buffer_get_size(self._raw()))

    @property
    def is_host(self) -> bool:
        """Whether the CPU can read it in place. C: ggml_backend_buffer_is_host"""
        return bool(lib.ggml_backend_buffer_is_host(self._raw()))

    @property
    def usage(self) -> str:
        """Its purpose: "any", "weights" or "compute". The scheduler runs ops where their weights
        are.

        C: ggml_backend_buffer_get_usage
        """
        number = lib.ggml_backend_buffer_get_usage(self._raw())
        return enums.BackendBufferUsage(number).name.lower()

    @usage.setter
    def usage(self, usage: str) -> None:
        lib.ggml_backend_buffer_set_usage(self._raw(), usage_of(usage))

    def alloc_size(self, tensor: AnyTensor) -> int:
        """Bytes that `tensor` needs in it; some backends need more than `Tensor.nbytes`.

        C: ggml_backend_buffer_get_alloc_size
        """
        raw = ptr_of(AnyTensor, tensor)
        return int(lib.ggml_backend_buffer_get_alloc_size(self._raw(), raw))

    def clear(self, value: int = 0) -> None:
        """Sets every byte to `value`. Raises `ArgumentError` for read-only memory and for borrowed
        memory, where the buffer may begin before the array. C: ggml_backend_buffer_clear
        """
        memory = memory_of(self._raw())
        if memory is not None and (memory.padded or memory.readonly):
            raise ArgumentError(
                f"the memory of {self!r} is {'read-only' if memory.readonly else 'shared'}: "
                "expected a buffer that owns its memory; set its tensors instead"
            )
        lib.ggml_backend_buffer_clear(self._raw(), integer("value", value, 0, 255))
        if memory is not None:
            memory.end = math.inf


class BufferView(_BufferInfo):
    """The buffer that a tensor is in now. It equals the `Buffer` that owns the memory."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: AnyTensor) -> None:
        self._tensor = tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _BufferInfo):
            return False
        mine, theirs = self._raw(), other._raw()
        return bool(mine == theirs) or memory_of(mine) is memory_of(theirs) is not None

    def __hash__(self) -> int:
        return hash(memory_of(self._raw()) or self._raw())

    def __repr__(self) -> str:
        return f"<buffer of {self.name}, {self.size:,} bytes>"

    def _raw(self) -> Any:
        return self._tensor._data_buffer()


class Buffer(Handle, _BufferInfo):
    """A block of device memory, made by `BufferType.alloc` or `Context.alloc`. Closing it takes the
    memory from its tensors: reading one afterwards raises `NoDataError`."""

    __slots__ = ("_contexts", "_held")
    __hash__ = object.__hash__

    def __init__(self, ptr: Any, *keep: Any) -> None:
        """`keep` is the memory that it borrows, held as long as the buffer lives."""
        self._contexts: weakref.WeakSet[AnyContext] = weakref.WeakSet()
        kind = lib.ggml_backend_buffer_get_type(sole_pointer(self, ptr))
        module = BufferType(kind)._module
        held = self._held = [BufferMemory(ptr, keep)]  # until it is closed

        def free(_ptr: Any) -> None:
            module.open.add(held.pop())  # it stays open while arrays use it

        super().__init__(ptr, free)
        module.open.add(self)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is BufferView and other == self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.name}, {self.size:,} bytes"
        return f"<Buffer {state}>"

    def _raw(self) -> Any:
        return self.ptr

    def _reach(self, found: dict[int, Handle]) -> None:
        super()._reach(found)
        for context in those_of(self._contexts):
            context._reach(found)

    def _adopt_parts(self, context: AnyContext) -> None:
        """Registers the parts of a buffer that is several native ones (upstream makes none above
        `BufferType.max_size`): the tensors point to the parts."""
        if self.size and lib.ggml_backend_buffer_get_base(self.ptr) == NULL:
            for tensor in context:
                part = tensor._ptr.buffer
                if part != NULL and memory_of(part) is None:
                    _MEMORIES[_address(part)] = self._held[0]

    def _mark_blank(self, tensor: Any) -> None:
        """Marks a native tensor that was placed in it by hand (native/blank.h): nobody has set it.
        Unless others were placed there, too: then who sets one may have set all."""
        memory, start = self._held[0], int(ffi.cast("uintptr_t", tensor.data))
        if start >= memory.end:
            lib.gp_blank_placed(tensor)
            memory.end = start + lib.ggml_nbytes(tensor)
        else:
            lib.gp_blank_cleared(self.ptr)
            memory.end = math.inf

    def _is(self, ptr: Any) -> bool:
        """Whether a native buffer is this one or a part of it."""
        return ptr != NULL and memory_of(ptr) is self._held[0]

    def _before_loss(self) -> None:
        self._before_free()
        for memory in self._held:
            memory._lose()

    def _before_free(self) -> None:
        for context in those_of(self._contexts):
            context._forget_buffer(self)


def usage_of(usage: str) -> int:
    """The number of a usage, by name. Raises `ArgumentError` with the valid names."""
    if not isinstance(usage, str):
        raise TypeError(f"usage: expected one of {', '.join(USAGES)}, got {describe(usage)}")
    if usage not in USAGES:
        raise ArgumentError(f"usage {usage!r}: expected one of {', '.join(USAGES)}")
    return USAGES[usage]

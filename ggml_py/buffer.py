"""Buffer types and buffers: where tensors' data lives."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from . import enums
from ._arguments import given, ptr_of, whole
from ._device import Device, module_of
from ._ffi import NULL, lib, text
from ._handle import Handle
from .errors import AllocError, ArgumentError

if TYPE_CHECKING:
    from .context import Context
    from .tensor import Tensor

USAGES = {
    "any": enums.BackendBufferUsage.ANY,
    "weights": enums.BackendBufferUsage.WEIGHTS,
    "compute": enums.BackendBufferUsage.COMPUTE,
}


class BufferType:
    """How a device allocates. A static object of the library, never closed."""

    __slots__ = ("_module", "_ptr")

    def __init__(self, ptr: Any) -> None:
        self._ptr = ptr
        device = lib.ggml_backend_buft_get_device(ptr)
        self._module = module_of(
            NULL if device == NULL else lib.ggml_backend_dev_backend_reg(device)
        )

    @property
    def ptr(self) -> Any:
        """The native buffer type. Raises `ClosedError` after its backend was unloaded."""
        self._module.check(self)
        return self._ptr

    def __eq__(self, other: object) -> bool:
        mine = (self._ptr, self._module)
        return isinstance(other, BufferType) and mine == (other._ptr, other._module)

    def __hash__(self) -> int:
        return hash(self._ptr)

    def __repr__(self) -> str:
        if self._module.gone:
            return "<BufferType of an unloaded backend>"
        return f"<BufferType {self.name}>"

    @property
    def name(self) -> str:
        """C: ggml_backend_buft_name"""
        return text(lib.ggml_backend_buft_name(self.ptr))

    @property
    def alignment(self) -> int:
        """Bytes to which tensors are aligned. C: ggml_backend_buft_get_alignment"""
        return int(lib.ggml_backend_buft_get_alignment(self.ptr))

    @property
    def max_size(self) -> int:
        """Bytes that one buffer can have at most. C: ggml_backend_buft_get_max_size"""
        return int(lib.ggml_backend_buft_get_max_size(self.ptr))

    @property
    def is_host(self) -> bool:
        """Whether the CPU reads it in place. C: ggml_backend_buft_is_host"""
        return bool(lib.ggml_backend_buft_is_host(self.ptr))

    @property
    def device(self) -> Device | None:
        """C: ggml_backend_buft_get_device"""
        ptr = lib.ggml_backend_buft_get_device(self.ptr)
        return None if ptr == NULL else Device(ptr)

    def alloc(self, size: int) -> Buffer:
        """A buffer of `size` bytes. Raises `AllocError`. C: ggml_backend_buft_alloc_buffer"""
        ptr = lib.ggml_backend_buft_alloc_buffer(self.ptr, whole("size", size))
        if ptr == NULL:
            raise AllocError(f"{self.name}: {size:,} bytes could not be allocated")
        return Buffer(ptr)


class _BufferInfo:
    """What can be asked of any buffer."""

    __slots__ = ()

    def _raw(self) -> Any:
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name of its buffer type. C: ggml_backend_buffer_name"""
        return text(lib.ggml_backend_buffer_name(self._raw()))

    @property
    def type(self) -> BufferType:
        """C: ggml_backend_buffer_get_type"""
        return BufferType(lib.ggml_backend_buffer_get_type(self._raw()))

    @property
    def size(self) -> int:
        """Bytes. C: ggml_backend_buffer_get_size"""
        return int(lib.ggml_backend_buffer_get_size(self._raw()))

    @property
    def is_host(self) -> bool:
        """Whether the CPU reads it in place. C: ggml_backend_buffer_is_host"""
        return bool(lib.ggml_backend_buffer_is_host(self._raw()))

    @property
    def usage(self) -> str:
        """What for: "any", "weights" or "compute". The scheduler runs ops where weights are.

        C: ggml_backend_buffer_get_usage
        """
        number = lib.ggml_backend_buffer_get_usage(self._raw())
        return enums.BackendBufferUsage(number).name.lower()

    @usage.setter
    def usage(self, usage: str) -> None:
        lib.ggml_backend_buffer_set_usage(self._raw(), usage_of(usage))

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that `tensor` takes in it: some backends need more than `Tensor.nbytes`.

        C: ggml_backend_buffer_get_alloc_size
        """
        from .tensor import Tensor

        return int(lib.ggml_backend_buffer_get_alloc_size(self._raw(), ptr_of(Tensor, tensor)))

    def clear(self, value: int = 0) -> None:
        """Sets every byte to `value`. C: ggml_backend_buffer_clear"""
        lib.ggml_backend_buffer_clear(self._raw(), whole("value", value, 0, 255))


class BufferView(_BufferInfo):
    """The buffer that a tensor lives in now; equal to the `Buffer` that owns the memory."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BufferInfo) and bool(self._raw() == other._raw())

    def __hash__(self) -> int:
        return hash(self._raw())

    def __repr__(self) -> str:
        return f"<buffer of {self.name}, {self.size:,} bytes>"

    def _raw(self) -> Any:
        return self._tensor._data_buffer()


class Buffer(Handle, _BufferInfo):
    """A piece of a device's memory. Closing it takes the memory from the tensors that lived in it:
    they have no data afterwards, and say so."""

    __slots__ = ("_contexts",)
    __hash__ = object.__hash__

    def __init__(self, ptr: Any, *keep: Any) -> None:
        """`keep` is held as long as the buffer lives: memory that it borrows."""
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()

        def free(raw: Any, _keep: tuple[Any, ...] = keep) -> None:
            lib.ggml_backend_buffer_free(raw)

        super().__init__(ptr, free)
        BufferType(lib.ggml_backend_buffer_get_type(ptr))._module.open.add(self)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is BufferView and other == self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.name}, {self.size:,} bytes"
        return f"<Buffer {state}>"

    def _raw(self) -> Any:
        return self.ptr

    def _reach(self, found: dict[int, Handle]) -> None:
        super()._reach(found)
        for context in list(self._contexts):
            context._reach(found)

    def _before_free(self) -> None:
        for context in list(self._contexts):
            context._forget_buffer(self)


def usage_of(usage: str) -> int:
    """The number of a usage by name. Raises `ArgumentError` with the names."""
    if not isinstance(usage, str):
        raise TypeError(f"usage: expected one of {', '.join(USAGES)}, got {given(usage)}")
    if usage not in USAGES:
        raise ArgumentError(f"usage {usage!r}: expected one of {', '.join(USAGES)}")
    return USAGES[usage]

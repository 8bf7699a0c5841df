"""Devices: what ggml can compute on. Static objects of the library, never closed.

The file is `_device` because `ggml_py.device` is the function.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import enums
from ._ffi import NULL, ffi, lib, text
from .errors import AllocError, MissingFunctionError, UnknownDeviceError

if TYPE_CHECKING:
    from .backend import Backend
    from .buffer import BufferType
    from .tensor import Tensor


class Device:
    """One device of a backend. Devices are equal when they are the same native device."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: Any) -> None:
        self.ptr = ptr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and bool(self.ptr == other.ptr)

    def __hash__(self) -> int:
        return hash(self.ptr)

    def __repr__(self) -> str:
        return f"<Device {self.name} ({self.description})>"

    @property
    def name(self) -> str:
        """Name, unique among the devices. C: ggml_backend_dev_name"""
        return text(lib.ggml_backend_dev_name(self.ptr))

    @property
    def description(self) -> str:
        """What the hardware calls itself. C: ggml_backend_dev_description"""
        return text(lib.ggml_backend_dev_description(self.ptr))

    @property
    def type(self) -> enums.BackendDevType:
        """CPU, GPU, IGPU, ACCEL or META. C: ggml_backend_dev_type"""
        return enums.BackendDevType(lib.ggml_backend_dev_type(self.ptr))

    @property
    def memory(self) -> tuple[int, int]:
        """(free, total) in bytes. C: ggml_backend_dev_memory"""
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        lib.ggml_backend_dev_memory(self.ptr, free, total)
        return free[0], total[0]

    @property
    def registry(self) -> str:
        """Name of the backend registry it belongs to. C: ggml_backend_reg_name"""
        return text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(self.ptr)))

    @property
    def buffer_type(self) -> BufferType:
        """The buffer type it computes from. C: ggml_backend_dev_buffer_type"""
        from .buffer import BufferType

        return BufferType(lib.ggml_backend_dev_buffer_type(self.ptr))

    def supports_op(self, tensor: Tensor) -> bool:
        """Whether it can compute `tensor`'s op on its types and shapes.

        C: ggml_backend_dev_supports_op
        """
        return bool(lib.ggml_backend_dev_supports_op(self.ptr, tensor.ptr))

    def supports_buft(self, buffer_type: BufferType) -> bool:
        """Whether it reads tensors of this buffer type. C: ggml_backend_dev_supports_buft"""
        return bool(lib.ggml_backend_dev_supports_buft(self.ptr, buffer_type.ptr))

    def offload_op(self, tensor: Tensor) -> bool:
        """Whether it wants `tensor`'s op although the weight is in host memory.

        C: ggml_backend_dev_offload_op
        """
        return bool(lib.ggml_backend_dev_offload_op(self.ptr, tensor.ptr))

    def proc_address(self, name: str) -> Any:
        """A backend's own function by name, as `void *`; raises `MissingFunctionError`.

        C: ggml_backend_reg_get_proc_address
        """
        registry = lib.ggml_backend_dev_backend_reg(self.ptr)
        address = lib.ggml_backend_reg_get_proc_address(registry, name.encode())
        if address == NULL:
            raise MissingFunctionError(f"the backend of device {self.name} has no '{name}'")
        return address

    def init(self, n_threads: int | None = None, params: str | None = None) -> Backend:
        """Opens a backend on this device.

        `n_threads` is for backends that compute on the CPU (default: the cores this process may
        use); others ignore it. Raises `AllocError` when the device cannot be opened.
        C: ggml_backend_dev_init
        """
        from .backend import Backend

        ptr = lib.ggml_backend_dev_init(self.ptr, params.encode() if params else NULL)
        if ptr == NULL:
            raise AllocError(f"device {self.name} ({self.description}) could not be opened")
        return Backend(ptr, self, n_threads or default_n_threads())


def default_n_threads() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def devices() -> tuple[Device, ...]:
    """All devices of the backends that are loaded, GPUs first. C: ggml_backend_dev_get"""
    return tuple(Device(lib.ggml_backend_dev_get(i)) for i in range(lib.ggml_backend_dev_count()))


def device(name: str) -> Device:
    """The device of that name, in any case. Raises `UnknownDeviceError` with the names there are.

    C: ggml_backend_dev_by_name
    """
    ptr = lib.ggml_backend_dev_by_name(name.encode())
    if ptr == NULL:
        names = ", ".join(d.name for d in devices()) or "none"
        raise UnknownDeviceError(f"no device named '{name}'; there are: {names}")
    return Device(ptr)

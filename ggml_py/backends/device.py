"""Devices: what ggml can compute on. Static objects of the library, never closed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import enums
from ..boundary import module as _module
from ..boundary.arguments import c_text, describe, enum_of, integer, ptr_of
from ..boundary.ffi import NULL, ffi, lib, own_pointer, text
from ..boundary.mapped import watch_mapped
from ..boundary.module import InModule
from ..errors import AllocError, ArgumentError, MissingFunctionError, UnknownDeviceError
from ..files.similar import meant
from ..typed import typed
from .above import AnyTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from .backend import Backend, Event
    from .buffer import Buffer, BufferType


class DeviceCaps(NamedTuple):
    """What a device can do besides computing. C: struct ggml_backend_dev_caps"""

    async_: bool  # copies and computes run in the background
    host_buffer: bool  # it has a buffer type of pinned host memory
    buffer_from_host_ptr: bool  # `Device.buffer_from` works
    events: bool  # `Device.event` works
    mmap_support: bool = True  # False: weights on the CPU should be loaded, not memory-mapped


class DeviceProps(NamedTuple):
    """The properties that a device reports; memory in bytes. C: struct ggml_backend_dev_props"""

    name: str
    description: str
    type: enums.BackendDevType
    memory_free: int
    memory_total: int
    device_id: str | None  # PCI bus id "0000:c1:00.0"; None if unknown
    caps: DeviceCaps


class Device(InModule):
    """One device of a backend; get one from `device` or `devices`. Two are equal if they are the
    same native device."""

    __slots__ = ()

    def __init__(self, ptr: Any) -> None:
        super().__init__(ptr, lib.ggml_backend_dev_backend_reg(own_pointer(type(self), ptr)))

    def _words(self) -> str:
        return f"{self.name} ({self.description})"

    @property
    def name(self) -> str:
        """Name, unique among devices. C: ggml_backend_dev_name"""
        return text(lib.ggml_backend_dev_name(self.ptr))

    @property
    def description(self) -> str:
        """The name of the hardware. C: ggml_backend_dev_description"""
        return text(lib.ggml_backend_dev_description(self.ptr))

    @property
    def type(self) -> enums.BackendDevType:
        """CPU, GPU, IGPU, ACCEL or META. C: ggml_backend_dev_type"""
        return enums.BackendDevType(lib.ggml_backend_dev_type(self.ptr))

    @property
    def has_cpu_threads(self) -> bool:
        """Whether it computes in this process with threads of its own, beside those of the CPU
        backend: an accelerator such as BLAS, and a simulated device."""
        return self.type == enums.BackendDevType.ACCEL or self.registry == "SIM"

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
        """Its default buffer type. C: ggml_backend_dev_buffer_type"""
        from .buffer import BufferType

        return BufferType(lib.ggml_backend_dev_buffer_type(self.ptr))

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Its type of host memory for fast copies (pinned); None if it has none.

        C: ggml_backend_dev_host_buffer_type
        """
        from .buffer import BufferType

        ptr = lib.ggml_backend_dev_host_buffer_type(self.ptr)
        return None if ptr == NULL else BufferType(ptr)

    @property
    def extra_buffer_types(self) -> tuple[BufferType, ...]:
        """Buffer types that lay weights out for its own kernels ("CPU_REPACK").

        C: ggml_backend_dev_get_extra_bufts_t, through the registry
        """
        from .buffer import BufferType

        try:
            address = self.proc_address("ggml_backend_dev_get_extra_bufts")
        except MissingFunctionError:
            return ()
        bufts = ffi.cast("ggml_backend_dev_get_extra_bufts_t", address)(self.ptr)
        return tuple(BufferType(ptr) for ptr in _until_null(bufts, lambda ptr: ptr))

    @property
    def features(self) -> dict[str, str]:
        """Features that its backend was built with or found here: {"AVX2": "1", ...}. May be empty.

        C: ggml_backend_get_features_t, through the registry
        """
        try:
            address = self.proc_address("ggml_backend_get_features")
        except MissingFunctionError:
            return {}
        registry = lib.ggml_backend_dev_backend_reg(self.ptr)
        features = ffi.cast("ggml_backend_get_features_t", address)(registry)
        return {text(f.name): text(f.value) for f in _until_null(features, lambda f: f.name)}

    @property
    def props(self) -> DeviceProps:
        """All its properties, in one call. C: ggml_backend_dev_get_props"""
        props = ffi.new("struct ggml_backend_dev_props *")
        lib.ggml_backend_dev_get_props(self.ptr, props)
        caps = props.caps
        return DeviceProps(
            name=text(props.name),
            description=text(props.description),
            type=enums.BackendDevType(props.type),
            memory_free=int(props.memory_free),
            memory_total=int(props.memory_total),
            device_id=text(props.device_id) or None,
            caps=DeviceCaps(
                async_=bool(getattr(caps, "async")),
                host_buffer=bool(caps.host_buffer),
                buffer_from_host_ptr=bool(caps.buffer_from_host_ptr),
                events=bool(caps.events),
                # Older releases do not report it.
                mmap_support=bool(getattr(caps, "mmap_support", True)),
            ),
        )

    def supports_op(self, tensor: AnyTensor) -> bool:
        """Whether it can compute the op of `tensor` with its types and shapes.

        C: ggml_backend_dev_supports_op
        """
        return bool(lib.ggml_backend_dev_supports_op(self.ptr, _tensor(tensor)))

    def supports_buft(self, buffer_type: BufferType) -> bool:
        """Whether it can read tensors of this buffer type. C: ggml_backend_dev_supports_buft"""
        from .buffer import BufferType

        return bool(lib.ggml_backend_dev_supports_buft(self.ptr, ptr_of(BufferType, buffer_type)))

    def offload_op(self, tensor: AnyTensor) -> bool:
        """Whether it wants to compute `tensor`'s op even though the weight is in host memory.

        C: ggml_backend_dev_offload_op
        """
        return bool(lib.ggml_backend_dev_offload_op(self.ptr, _tensor(tensor)))

    def proc_address(self, name: str) -> Any:
        """A function of its backend by name, as `void *`. Raises `MissingFunctionError`.

        C: ggml_backend_reg_get_proc_address
        """
        registry = lib.ggml_backend_dev_backend_reg(self.ptr)
        address = lib.ggml_backend_reg_get_proc_address(registry, c_text("name", name))
        if address == NULL:
            raise MissingFunctionError(f"the backend of device {self.name} has no '{name}'")
        return address

    def numa_init(self, strategy: enums.NumaStrategy | int | str) -> None:
        """Places the threads of every compute on the machine's NUMA nodes: "distribute" (one node
        after the other), "isolate" (all on this thread's node) or "numactl" (where numactl put the
        process). "disabled" and "mirror" do nothing. Works once per process and cannot be undone.

        Raises `ArgumentError` the second time, `MissingFunctionError` for a device other than the
        CPU.
        C: ggml_numa_init, through the registry
        """
        number = enum_of(enums.NumaStrategy, strategy)
        address = self.proc_address("ggml_backend_cpu_numa_init")
        if self._module.numa:
            raise ArgumentError("numa_init was called before: a process can call it only once")
        ffi.cast("void (*)(enum ggml_numa_strategy)", address)(number)
        self._module.numa = True

    @property
    def is_numa(self) -> bool:
        """Whether `numa_init` found more than one node. Raises `MissingFunctionError` as it does.

        C: ggml_is_numa, through the registry
        """
        address = self.proc_address("ggml_backend_cpu_is_numa")
        return bool(ffi.cast("bool (*)(void)", address)())

    def buffer_from(self, array: npt.NDArray[Any]) -> Buffer:
        """A buffer over the memory of a numpy array, without a copy; `Tensor.alloc` puts tensors
        in it.

        Writes to one are visible in the other; the buffer keeps the array alive. Raises
        `ArgumentError` for a device that cannot do it (`props.caps.buffer_from_host_ptr`) and for
        an array that is empty, not contiguous, read-only or not aligned to `buffer_type.alignment`
        bytes.
        C: ggml_backend_dev_buffer_from_host_ptr
        """
        from .buffer import Buffer

        if not self.props.caps.buffer_from_host_ptr:
            raise ArgumentError(
                f"device {self.name} cannot make buffers over host memory: allocate there "
                "(Context.alloc) and copy with Tensor.set"
            )
        address = _address(array, self.buffer_type.alignment)
        size = array.nbytes
        device = self.ptr  # as in `init`
        ptr = lib.ggml_backend_dev_buffer_from_host_ptr(device, address, size, size)
        if ptr == NULL:
            raise AllocError(
                f"device {self.name} could not make a buffer over {size:,} bytes of an array"
            )
        watch_mapped(array)
        return Buffer(ptr, array)

    def event(self) -> Event:
        """A mark in the work of this device's backends. Raises `ArgumentError` for a device without
        events (`props.caps.events`): use `Backend.synchronize` there.

        C: ggml_backend_event_new
        """
        from .backend import Event

        device = self.ptr  # as in `init`
        ptr = lib.ggml_backend_event_new(device)
        if ptr == NULL:
            raise ArgumentError(f"device {self.name} has no events: use Backend.synchronize()")
        return Event(ptr, self)

    @typed
    def init(self, n_threads: int | None = None, params: str | None = None) -> Backend:
        """Opens a backend on this device.

        `n_threads` is for backends that compute on the CPU (default: the cores that this process
        may use); others ignore it. Raises `AllocError` if the device cannot be opened.
        C: ggml_backend_dev_init
        """
        from .backend import Backend

        if n_threads is not None:  # checked before a backend is open, which would leak
            integer("n_threads", n_threads, 1, lib.GGML_MAX_N_THREADS)
        ptr = lib.ggml_backend_dev_init(self.ptr, c_text("params", params) if params else NULL)
        if ptr == NULL:
            raise AllocError(f"device {self.name} ({self.description}) could not be opened")
        return Backend(ptr, self, default_n_threads() if n_threads is None else n_threads)


def _tensor(tensor: AnyTensor) -> Any:
    ptr = ptr_of(AnyTensor, tensor)
    lib.gp_views_place(ptr)
    return ptr


def _address(array: npt.NDArray[Any], alignment: int) -> Any:
    """The address of the data of `array`. Raises if no buffer can be made over it."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected a numpy array, got {describe(array)}")
    what = f"array of shape {array.shape}, {array.dtype}"
    if array.nbytes == 0:
        raise ArgumentError(f"{what}: expected at least one byte")
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{what} is not C-contiguous: give np.ascontiguousarray(array)")
    if not array.flags.writeable:
        raise ArgumentError(f"{what} is read-only: map files with np.memmap(..., mode='c')")
    address = array.ctypes.data
    if address % alignment:
        raise ArgumentError(
            f"{what} starts {address % alignment} bytes after a multiple of {alignment}: expected "
            "an aligned array, such as one of np.memmap, or a slice that starts at such an address"
        )
    return ffi.cast("void *", address)


def _until_null(array: Any, key: Callable[[Any], Any]) -> Iterator[Any]:
    """The elements of a C array up to the first whose `key` is NULL; nothing for a NULL array."""
    i = 0
    while array != NULL and key(array[i]) != NULL:
        yield array[i]
        i += 1


def default_n_threads() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def devices() -> tuple[Device, ...]:
    """All devices of the loaded backends, GPUs first. C: ggml_backend_dev_get"""
    with _module.REGISTERING:
        n = lib.ggml_backend_dev_count()
        return tuple(Device(lib.ggml_backend_dev_get(i)) for i in range(n))


def device(name: str) -> Device:
    """The device of that name, ignoring case. Raises `UnknownDeviceError` with the known names.

    C: ggml_backend_dev_by_name
    """
    with _module.REGISTERING:
        ptr = lib.ggml_backend_dev_by_name(c_text("a device's name", name))
        if ptr == NULL:
            names = [d.name for d in devices()]
            there = ", ".join(names) or "none"
            hint = meant(name, names)
            raise UnknownDeviceError(f"no device named '{name}'; there are: {there}{hint}")
        return Device(ptr)


def best_device() -> Device:
    """The first GPU; without one, the first integrated GPU; without either, the CPU.

    C: ggml_backend_init_best
    """
    for type_ in (enums.BackendDevType.GPU, enums.BackendDevType.IGPU, enums.BackendDevType.CPU):
        with _module.REGISTERING:
            ptr = lib.ggml_backend_dev_by_type(type_)
            if ptr != NULL:
                return Device(ptr)
    raise UnknownDeviceError("no device at all: this build has no backend")

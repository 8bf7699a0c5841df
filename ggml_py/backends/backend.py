"""A backend: one open device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from .. import enums
from ..boundary.arguments import describe, integer, ptr_of
from ..boundary.callback import AbortCallback, raising
from ..boundary.ffi import NULL, ffi, lib, sole_pointer, text
from ..boundary.handle import Handle
from ..boundary.uses import in_use
from ..errors import ArgumentError, ComputeError, MissingFunctionError
from ..typed import typed
from .above import AnyGraph, AnyTensor, Plannable, PlanT
from .buffer import BufferType
from .device import Device
from .threadpool import ThreadPool


class Backend(Handle):
    """One open device. Made by `Device.init`. `with` closes it, and first the schedulers on it."""

    __slots__ = ("_abort", "_n_threads", "device", "threadpool")

    def __init__(self, ptr: Any, device: Device, n_threads: int) -> None:
        super().__init__(sole_pointer(self, ptr), lib.ggml_backend_free)
        device._module.open.add(self)
        self.device = device
        self.threadpool: ThreadPool | None = None  # set by set_threadpool
        self._abort = AbortCallback()  # one for good: graph plans keep its address
        self._n_threads: int | None = None
        with contextlib.suppress(MissingFunctionError):  # a backend without threads to set
            self.n_threads = n_threads
        with contextlib.suppress(MissingFunctionError):
            self.set_abort_callback(None)  # to stop on Ctrl-C

    @classmethod
    def _borrow(cls, ptr: Any, *owners: Handle) -> Backend:
        """A backend that is freed with the last of `owners`, or later."""
        backend = cls.__new__(cls)
        Handle.__init__(backend, ptr, lambda _backend: None, *owners)
        backend.device = Device(lib.ggml_backend_get_device(ptr))
        backend.threadpool = backend._n_threads = None
        backend._abort = AbortCallback()
        return backend

    def __repr__(self) -> str:
        return f"<Backend {'closed' if self.closed else self.name}>"

    @property
    def name(self) -> str:
        """C: ggml_backend_name"""
        ptr = self.ptr
        return text(lib.ggml_backend_name(ptr))

    @property
    def buffer_type(self) -> BufferType:
        """C: ggml_backend_get_default_buffer_type"""
        ptr = self.ptr
        return BufferType(lib.ggml_backend_get_default_buffer_type(ptr))

    @property
    def is_remote(self) -> bool:
        """Whether its device is on an RPC server (`rpc_devices`). C: ggml_backend_is_rpc"""
        return self.device.registry == "RPC"

    @property
    def n_threads(self) -> int | None:
        """Threads it computes with; None for a backend without this setting.

        C: ggml_backend_set_n_threads, through the registry
        """
        return self._n_threads

    @n_threads.setter
    def n_threads(self, n: int) -> None:
        number = integer("n_threads", n, 1, lib.GGML_MAX_N_THREADS)
        pool = self.threadpool
        if pool is not None and number > pool.n_threads:
            raise ArgumentError(
                f"n_threads={n}: expected at most {pool.n_threads}, the size of its {pool!r}"
            )
        address = self.device.proc_address("ggml_backend_set_n_threads")
        with in_use("being changed", self):
            ffi.cast("ggml_backend_set_n_threads_t", address)(self.ptr, number)
        self._n_threads = number

    def set_threadpool(self, pool: ThreadPool | None) -> None:
        """Computes with all threads of `pool` from now on; set `n_threads` to use fewer. None goes
        back to threads that are started for each compute.

        Pauses the previous pool, as upstream does. Raises `ArgumentError` for a pool made for
        another backend, `MissingFunctionError` for a backend without thread pools.
        C: ggml_backend_cpu_set_threadpool, through the registry
        """
        raw = NULL if pool is None else ptr_of(ThreadPool, pool)
        if pool is not None and pool.device._module is not self.device._module:
            raise ArgumentError(
                f"{pool!r} was made for another backend than {self!r}: make one with "
                "ThreadPool(..., device=backend.device)"
            )
        address = self.device.proc_address("ggml_backend_cpu_set_threadpool")
        set_threadpool = ffi.cast("void (*)(ggml_backend_t, struct ggml_threadpool *)", address)
        # Upstream pauses the previous pool: a compute on it would wait for ever.
        pools = dict.fromkeys(one for one in (self.threadpool, pool) if one is not None)
        with in_use("being changed", self, *pools):
            set_threadpool(self.ptr, raw)
            if self.threadpool is not None:
                self.threadpool._backends.discard(self)
            self.threadpool = pool
            if pool is not None:
                pool._backends.add(self)
        if pool is not None:
            self.n_threads = pool.n_threads

    def set_abort_callback(self, callback: Callable[[], bool] | None) -> None:
        """Calls `callback()` after each node that this backend computes, on the computing thread.
        True stops the compute, which raises `ComputeError` ("aborted").

        An exception from the callback also stops the compute, and is raised there. Ctrl-C still
        works. None removes the callback. It also applies to graph plans made earlier. Raises
        `MissingFunctionError` for a backend that cannot be stopped.
        C: ggml_backend_set_abort_callback, through the registry
        """
        if callback is not None and not callable(callback):
            raise TypeError(f"expected a function, got {describe(callback)}")
        address = self.device.proc_address("ggml_backend_set_abort_callback")
        stops = ffi.cast("ggml_abort_callback", lib.gp_interrupt_callback())
        set_callback = ffi.cast("ggml_backend_set_abort_callback_t", address)
        set_callback(self.ptr, stops, self._abort.cell)
        self._abort.predicate = callback

    @typed
    def set_use_ref(self, use_ref: bool) -> None:
        """Computes each op with its plain implementation, for comparison with the fast one.

        Raises `MissingFunctionError` for a backend with only one implementation, and in releases
        before 0.9.7.
        C: ggml_backend_cpu_set_use_ref, through the registry
        """
        address = self.device.proc_address("ggml_backend_cpu_set_use_ref")
        with in_use("being changed", self):
            ffi.cast("void (*)(ggml_backend_t, bool)", address)(self.ptr, bool(use_ref))

    def _before_free(self) -> None:
        if self.threadpool is not None:
            self.threadpool._backends.discard(self)
            self.threadpool = None  # a closed backend keeps no threads

    def supports_op(self, tensor: AnyTensor) -> bool:
        """Whether it can compute the op of `tensor` with its types and shapes.

        C: ggml_backend_supports_op
        """
        return bool(lib.ggml_backend_supports_op(self.ptr, _tensor(tensor)))

    def supports_buft(self, buffer_type: BufferType) -> bool:
        """Whether it can read tensors of this buffer type. C: ggml_backend_supports_buft"""
        return bool(lib.ggml_backend_supports_buft(self.ptr, ptr_of(BufferType, buffer_type)))

    def offload_op(self, tensor: AnyTensor) -> bool:
        """Whether it wants to compute the op even though the weight is in host memory.

        C: ggml_backend_offload_op
        """
        return bool(lib.ggml_backend_offload_op(self.ptr, _tensor(tensor)))

    def compute(self, graph: AnyGraph) -> None:
        """Computes a graph. All its tensors must be allocated in memory that this backend reads.

        Raises `NoDataError` for a tensor without memory and, as `Scheduler.compute` does, for a
        leaf without data, `ArgumentError` for a tensor in other memory,
        `ComputeError`, and whatever a custom op raised. With a scheduler, use `Scheduler.compute`.
        C: ggml_backend_graph_compute
        """
        from .computing import computing

        mine, raw = self.ptr, ptr_of(AnyGraph, graph)
        status = computing(
            lib.ggml_backend_graph_compute, (mine, raw), graph, (self,), lambda: (self._abort,),
            check=lambda: self._check_graph(graph), backends=(self,),
        )  # fmt: skip
        check_status(status, f"backend {self.name}")

    def _check_graph(self, graph: AnyGraph) -> None:
        graph._check_buffers(self)
        graph._check_custom([self], lambda _node: self)

    def graph_plan(self, graph: Plannable[PlanT]) -> PlanT:
        """Prepares `graph` once for many computes. Raises the same errors as `compute`, and
        `MissingFunctionError` for a backend without graph plans (the CPU has them).

        C: ggml_backend_graph_plan_create
        """
        ptr_of(AnyGraph, graph)
        return graph._plan_on(self)

    def synchronize(self) -> None:
        """Waits for everything submitted, and raises what failed in it, as `compute` does.

        C: ggml_backend_synchronize
        """
        raw = self.ptr
        with raising([self._abort]):
            lib.ggml_backend_synchronize(raw)

    def copy_async(self, src_backend: Backend, src: AnyTensor, dst: AnyTensor) -> None:
        """Copies `src`, which `src_backend` computes, to `dst` on this backend.

        The copy runs after everything already submitted to `src_backend`, and before anything
        submitted to this backend later. If both backends are asynchronous (`props.caps.async_`),
        it returns at once; otherwise the copy is done on return. Call `synchronize()` before you
        close the buffer of either tensor. Raises `ArgumentError` if type, ne or nb differ,
        `NoDataError` before allocation.
        C: ggml_backend_tensor_copy_async
        """
        _tensor(src)
        src._check_copy(dst)
        lib.ggml_backend_tensor_copy_async(ptr_of(Backend, src_backend), self.ptr, src.ptr, dst.ptr)


class Event(Handle):
    """A mark in the work of a backend that other backends can wait for. Made by `Device.event`.

    Closing a backend that recorded it closes it too.
    """

    __slots__ = ("_recorded", "device")

    def __init__(self, ptr: Any, device: Device) -> None:
        super().__init__(sole_pointer(self, ptr), lib.ggml_backend_event_free)
        device._module.open.add(self)
        self.device = device
        self._recorded = False

    def __repr__(self) -> str:
        return f"<Event {'closed' if self.closed else self.device.name}>"

    def record(self, backend: Backend) -> None:
        """Marks everything submitted to `backend` so far.

        Raises `ArgumentError` for a backend of another device. C: ggml_backend_event_record
        """
        raw = ptr_of(Backend, backend)
        if backend.device != self.device:
            raise ArgumentError(
                f"this event belongs to device {self.device.name}: expected a backend of that "
                f"device, got one of {backend.device.name}"
            )
        lib.ggml_backend_event_record(self.ptr, raw)
        self._depend(backend)
        self._recorded = True

    def wait(self, backend: Backend) -> None:
        """Makes `backend` wait for the mark before it runs anything submitted to it from now on.

        Returns at once. Does nothing if the event was never recorded. Raises `ArgumentError` for
        a backend of another registry: use `synchronize()` there.
        C: ggml_backend_event_wait
        """
        waiting = ptr_of(Backend, backend)
        if backend.device.registry != self.device.registry:
            raise ArgumentError(
                f"device {backend.device.name} ({backend.device.registry}) cannot wait for an "
                f"event of {self.device.name} ({self.device.registry}): use synchronize()"
            )
        event = self.ptr
        if self._recorded:
            lib.ggml_backend_event_wait(waiting, event)

    def synchronize(self) -> None:
        """Waits here until the marked work is done. C: ggml_backend_event_synchronize"""
        event = self.ptr
        if self._recorded:  # otherwise upstream's RPC waits for ever for a mark that nobody sets
            lib.ggml_backend_event_synchronize(event)


def _tensor(tensor: AnyTensor) -> Any:
    return ptr_of(AnyTensor, tensor)


def settle(backends: Iterable[Backend]) -> None:
    """Waits for the backends, before memory that they work on is freed. Skips RPC servers: they
    work in order, and one may be stalled."""
    for backend in backends:
        if not backend.is_remote:
            backend.synchronize()


def check_status(status: int, what: str) -> None:
    """Raises for anything but GGML_STATUS_SUCCESS."""
    if status != enums.Status.SUCCESS:
        raise ComputeError(f"{what}: {text(lib.ggml_status_to_string(status))}")

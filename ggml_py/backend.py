"""A backend: one open device."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from . import enums
from ._device import Device
from ._ffi import NULL, ffi, lib, text
from ._handle import Handle
from .buffer import BufferType
from .errors import ComputeError, MissingFunctionError

if TYPE_CHECKING:
    from .graph import Graph
    from .tensor import Tensor


class Backend(Handle):
    """One open device. Made by `Device.init`; `with` closes it, and the schedulers on it before."""

    __slots__ = ("_n_threads", "device")

    def __init__(self, ptr: Any, device: Device, n_threads: int) -> None:
        super().__init__(ptr, lib.ggml_backend_free)
        self.device = device
        self._n_threads: int | None = None
        with contextlib.suppress(MissingFunctionError):  # this backend has no threads to set
            self.n_threads = n_threads
        self._stop_on_ctrl_c()

    def __repr__(self) -> str:
        return f"<Backend {'closed' if self.closed else self.name}>"

    @property
    def name(self) -> str:
        """C: ggml_backend_name"""
        return text(lib.ggml_backend_name(self.ptr))

    @property
    def buffer_type(self) -> BufferType:
        """C: ggml_backend_get_default_buffer_type"""
        return BufferType(lib.ggml_backend_get_default_buffer_type(self.ptr))

    @property
    def n_threads(self) -> int | None:
        """Threads it computes with; None for a backend without a setting.

        C: ggml_backend_set_n_threads, through the registry
        """
        return self._n_threads

    @n_threads.setter
    def n_threads(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"n_threads={n}: expected at least 1")
        address = self.device.proc_address("ggml_backend_set_n_threads")
        ffi.cast("ggml_backend_set_n_threads_t", address)(self.ptr, n)
        self._n_threads = n

    def _stop_on_ctrl_c(self) -> None:
        try:
            address = self.device.proc_address("ggml_backend_set_abort_callback")
        except MissingFunctionError:
            return
        callback = ffi.cast("ggml_abort_callback", lib.gp_interrupt_callback())
        ffi.cast("ggml_backend_set_abort_callback_t", address)(self.ptr, callback, NULL)

    def supports_op(self, tensor: Tensor) -> bool:
        """Whether it can compute `tensor`'s op on its types and shapes.

        C: ggml_backend_supports_op
        """
        return bool(lib.ggml_backend_supports_op(self.ptr, tensor.ptr))

    def supports_buft(self, buffer_type: BufferType) -> bool:
        """Whether it reads tensors of this buffer type. C: ggml_backend_supports_buft"""
        return bool(lib.ggml_backend_supports_buft(self.ptr, buffer_type.ptr))

    def offload_op(self, tensor: Tensor) -> bool:
        """Whether it wants the op although the weight is in host memory.

        C: ggml_backend_offload_op
        """
        return bool(lib.ggml_backend_offload_op(self.ptr, tensor.ptr))

    def compute(self, graph: Graph) -> None:
        """Computes a graph whose tensors are all allocated where this backend reads them.

        Raises `ComputeError`, and whatever a custom op raised. With a scheduler use
        `Scheduler.compute`.
        C: ggml_backend_graph_compute
        """
        graph._check_custom([self], lambda _node: self)
        with graph._computing():
            status = lib.ggml_backend_graph_compute(self.ptr, graph.ptr)
        check_status(status, f"backend {self.name}")

    def synchronize(self) -> None:
        """Waits for everything submitted. C: ggml_backend_synchronize"""
        lib.ggml_backend_synchronize(self.ptr)


def check_status(status: int, what: str) -> None:
    """Raises for anything but GGML_STATUS_SUCCESS."""
    if status != enums.Status.SUCCESS:
        raise ComputeError(f"{what}: {text(lib.ggml_status_to_string(status))}")

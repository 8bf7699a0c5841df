"""Which device holds which layer, by llama.cpp's rule for `n_gpu_layers`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .._device import Device, device
from .._ffi import NULL, lib
from ..backend import Backend
from ..buffer import BufferType
from ..enums import BackendDevType
from ..rpc import rpc_devices

GPU_TYPES = (BackendDevType.GPU, BackendDevType.IGPU)
INPUT: Final = -1  # in place of a layer's number: the token embedding

log = logging.getLogger("ggml_py")


@dataclass(frozen=True)
class Placement:
    """The last `n_gpu_layers` layers are on the first GPU; the output counts as one more layer.

    The input is always on the CPU, `backends[-1]`.
    """

    backends: tuple[Backend, ...]
    n_layer: int
    n_gpu_layers: int

    @property
    def gpu(self) -> Backend | None:
        """The first backend on a GPU."""
        return next((b for b in self.backends if b.device.type in GPU_TYPES), None)

    @property
    def full_offload(self) -> bool:
        """Whether everything but the input is on the GPU."""
        return self.n_gpu_layers > self.n_layer

    @property
    def output(self) -> int:
        """The number that stands for the output among the layers."""
        return self.n_layer

    def backend(self, il: int) -> Backend:
        """The backend of layer `il`, of `output`, or of `INPUT`."""
        first_on_gpu = max(self.n_layer + 1 - self.n_gpu_layers, 0)
        if self.gpu is not None and il != INPUT and il >= first_on_gpu:
            return self.gpu
        return self.backends[-1]

    def buffer_type(self, il: int) -> BufferType:
        """Where layer `il` keeps its weights and its KV cache."""
        return self.backend(il).device.buffer_type

    def compute_buffer_types(self) -> list[BufferType]:
        """What the scheduler allocates from, per backend: beside a GPU the CPU takes the GPU's host
        memory, which copies faster."""
        types = [backend.buffer_type for backend in self.backends]
        if self.gpu is not None:
            host = lib.ggml_backend_dev_host_buffer_type(self.gpu.device.ptr)
            if host != NULL:
                types[-1] = BufferType(host)
        return types


def open_backends(devices: Sequence[str | Device], n_threads: int | None) -> tuple[Backend, ...]:
    """A backend on each device, in the order given; a CPU is added at the end if there is none.

    "rpc:HOST:PORT" stands for all devices of that server. Raises `UnknownDeviceError` with the
    names there are, `RpcError`.
    """
    chosen = [d for given in devices for d in _devices(given)]
    if not any(d.type == BackendDevType.CPU for d in chosen):
        chosen.append(device("CPU"))
    return tuple(d.init(n_threads=n_threads) for d in dict.fromkeys(chosen))


def _devices(given: str | Device) -> tuple[Device, ...]:
    if isinstance(given, Device):
        return (given,)
    if not isinstance(given, str):
        raise TypeError(f"devices: expected Devices and their names, got {type(given).__name__}")
    return rpc_devices(given[4:]) if given.startswith("rpc:") else (device(given),)


def place(backends: tuple[Backend, ...], n_layer: int, n_gpu_layers: int) -> Placement:
    """The placement; without a GPU `n_gpu_layers` has no effect, and a warning is logged."""
    placement = Placement(backends, n_layer, n_gpu_layers)
    if n_gpu_layers and placement.gpu is None:
        names = ", ".join(b.name for b in backends)
        log.warning("n_gpu_layers=%d has no effect: %s is no GPU", n_gpu_layers, names)
        return Placement(backends, n_layer, 0)
    return placement

"""Which device holds which layer, by llama.cpp's rule for `n_gpu_layers`."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .._device import Device, device
from .._ffi import NULL, lib
from ..backend import Backend
from ..buffer import BufferType
from ..context import Context
from ..enums import BackendDevType, Type
from ..rpc import rpc_devices
from ..sim_text import sim_device_of
from ..tensor import Tensor

GPU_TYPES = (BackendDevType.GPU, BackendDevType.IGPU)
INPUT: Final = -1  # in place of a layer's number: the token embedding

log = logging.getLogger("ggml_py")


@dataclass(frozen=True)
class Placement:
    """The last `n_gpu_layers` layers are on the GPUs; the output counts as one more layer. Several
    GPUs have runs of them, in their order, as long as their part of `splits`.

    The input is always on the CPU, `backends[-1]`.
    """

    backends: tuple[Backend, ...]
    n_layer: int
    n_gpu_layers: int
    splits: tuple[float, ...] = ()  # where each GPU's part ends, the last at 1.0

    @property
    def gpus(self) -> tuple[Backend, ...]:
        """The backends on GPUs."""
        return tuple(b for b in self.backends if b.device.type in GPU_TYPES)

    @property
    def full_offload(self) -> bool:
        """Whether everything but the input is on GPUs."""
        return self.n_gpu_layers > self.n_layer

    @property
    def output(self) -> int:
        """The number that stands for the output among the layers."""
        return self.n_layer

    def backend(self, il: int) -> Backend:
        """The backend of layer `il`, of `output`, or of `INPUT`."""
        first_on_gpu = max(self.n_layer + 1 - self.n_gpu_layers, 0)
        if not self.gpus or il == INPUT or il < first_on_gpu:
            return self.backends[-1]
        n_on_gpus = min(self.n_gpu_layers, self.n_layer + 1)
        part = np.float32(il - first_on_gpu) / np.float32(n_on_gpus)
        return self.gpus[bisect.bisect_right(self.splits, float(part))]

    def buffer_type(self, il: int) -> BufferType:
        """Where layer `il` keeps its KV cache, and the weights that its device computes with."""
        return self.backend(il).device.buffer_type

    def weight_buffer_type(
        self, il: int, name: str, type_: Type, ne: tuple[int, ...]
    ) -> BufferType:
        """Where layer `il` keeps a weight: on the CPU if its device lacks the op that uses it, for
        a batch of 512, as llama.cpp's loader decides."""
        device = self.backend(il).device
        if device.type == BackendDevType.CPU:
            return device.buffer_type
        with Context() as context:
            takes = device.supports_op(_user_of(context, name, type_, ne))
        return (device if takes else self.backends[-1].device).buffer_type

    def compute_buffer_types(self) -> list[BufferType]:
        """What the scheduler allocates from, per backend: beside GPUs the CPU takes the first
        one's host memory, which copies faster."""
        types = [backend.buffer_type for backend in self.backends]
        if self.gpus:
            host = lib.ggml_backend_dev_host_buffer_type(self.gpus[0].device.ptr)
            if host != NULL:
                types[-1] = BufferType(host)
        return types


def open_backends(devices: Sequence[str | Device], n_threads: int | None) -> tuple[Backend, ...]:
    """A backend on each device, in the order given; a CPU is added at the end if there is none.

    "rpc:HOST:PORT" stands for all devices of that server, "sim:NAME" for a simulated one, with its
    settings (`sim_text.sim_device_of`). Raises `UnknownDeviceError` with the names there are,
    `RpcError`.
    """
    chosen = [d for given in devices for d in named_devices(given)]
    if not any(d.type == BackendDevType.CPU for d in chosen):
        chosen.append(device("CPU"))
    return tuple(d.init(n_threads=n_threads) for d in dict.fromkeys(chosen))


def named_devices(given: str | Device) -> tuple[Device, ...]:
    """What a name of `open_backends` stands for."""
    if isinstance(given, Device):
        return (given,)
    if not isinstance(given, str):
        raise TypeError(f"devices: expected Devices and their names, got {type(given).__name__}")
    if given.startswith("rpc:"):
        return rpc_devices(given[4:])
    return (sim_device_of(given[4:]) if given.startswith("sim:") else device(given),)


def place(backends: tuple[Backend, ...], n_layer: int, n_gpu_layers: int) -> Placement:
    """The placement, over several GPUs by their free memory; without a GPU `n_gpu_layers` has no
    effect, and a warning is logged."""
    gpus = Placement(backends, n_layer, 0).gpus
    if n_gpu_layers and not gpus:
        names = ", ".join(b.name for b in backends)
        log.warning("n_gpu_layers=%d has no effect: %s is no GPU", n_gpu_layers, names)
        n_gpu_layers = 0
    return Placement(backends, n_layer, n_gpu_layers, _splits(gpus))


def _splits(gpus: Sequence[Backend]) -> tuple[float, ...]:
    """In single precision, as llama_model::load_tensors has them: other roundings could move a
    layer."""
    sizes = []
    for gpu in gpus:
        free, total = gpu.device.memory
        sizes.append(free if total else device("CPU").memory[0])
    ends = np.cumsum(np.array(sizes, np.float32), dtype=np.float32)
    return tuple((ends / ends[-1]).tolist()) if gpus else ()


def _user_of(context: Context, name: str, type_: Type, ne: tuple[int, ...]) -> Tensor:
    """The op that a weight is for, by its name, on a batch as llama.cpp's loader tries it."""
    weight = context.new_tensor(type_, *ne)
    if name.endswith((".bias", "_norm.weight")):
        op = context.add if name.endswith(".bias") else context.mul
        return op(context.new_tensor("f32", *ne), weight)
    if name.startswith("rope_freqs."):
        x, positions = context.new_tensor("f32", 2 * ne[0], 1, 512), context.new_tensor("i32", 512)
        return context.rope_ext(x, positions, weight, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return context.mul_mat(weight, context.new_tensor("f32", ne[0], 512))

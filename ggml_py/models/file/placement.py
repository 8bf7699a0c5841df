"""The devices of layers and weights, by llama.cpp's rules."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...backends.backend import Backend
from ...backends.buffer import BufferType
from ...backends.device import Device, device
from ...boundary.ffi import NULL, lib
from ...enums import BackendDevType, Op, Type
from ...errors import ModelError
from ...llama.overrides import Override
from ...scheduler.scheduler import Scheduler
from ...typed import typed
from .hparams import HParams
from .weight_ops import INPUT, op_of, supports

GPU_TYPES = (BackendDevType.GPU, BackendDevType.IGPU)

log = logging.getLogger("ggml_py")


@dataclass(frozen=True)
class LayerPlacement:
    """Puts the last `n_gpu_layers` layers on the GPUs; the output counts as one more layer. Several
    GPUs get consecutive runs of layers, in order, as long as their parts of `splits`.

    The input is always on the CPU, `backends[-1]`. The options are those of `models.load`.
    """

    backends: tuple[Backend, ...]
    hparams: HParams
    n_gpu_layers: int
    splits: tuple[float, ...] = ()  # where each GPU's part ends; the last one at 1.0
    overrides: tuple[Override, ...] = ()  # the first one that matches a weight's name counts
    repack: bool = True  # whether weights may go to extra buffer types, in a device's own layout
    host: bool = True  # whether weights of the CPU may go to a GPU's host memory
    mmap: bool = True  # whether weights in the CPU's plain memory stay in the mapped file
    offload_kqv: bool = True  # whether the KV cache is on the layers' devices
    op_offload: bool = True
    layer_split: bool = True  # whether several GPUs may share the layers
    pipeline: bool = True  # whether several GPUs may work on several batches at once

    @property
    def n_layer(self) -> int:
        """The number of layers, without the output."""
        return self.hparams.n_layer

    @property
    def gpus(self) -> tuple[Backend, ...]:
        """The backends on GPUs."""
        return tuple(b for b in self.backends if b.device.type in GPU_TYPES)

    @property
    def full_offload(self) -> bool:
        """Whether everything except the input is to be on GPUs. llama.cpp then pins norms for any
        batch size, even if there is no GPU."""
        return self.n_gpu_layers > self.n_layer

    @property
    def output(self) -> int:
        """The layer number that stands for the output."""
        return self.n_layer

    def backend(self, il: int) -> Backend:
        """The backend of layer `il`, of `output`, or of `INPUT`."""
        if not self.gpus:
            return self.backends[-1]
        first_on_gpu = max(self.n_layer + 1 - self.n_gpu_layers, 0)
        if il == INPUT or il < first_on_gpu:
            return self.backends[-1]
        n_on_gpus = min(self.n_gpu_layers, self.n_layer + 1)
        part = np.float32(il - first_on_gpu) / np.float32(n_on_gpus)
        return self.gpus[bisect.bisect_right(self.splits, float(part))]

    @property
    def cpu(self) -> Device:
        """The device of everything that is not on a GPU."""
        return self.backends[-1].device

    def buffer_type(self, il: int) -> BufferType:
        """The buffer type for layer `il`'s part of the cache."""
        return (self.backend(il).device if self.offload_kqv else self.cpu).buffer_type

    @typed
    def weight_buffer_type(
        self, il: int, name: str, type_: Type, ne: tuple[int, ...]
    ) -> BufferType:
        """The buffer type for a weight of layer `il`, as llama.cpp's loader decides. Without an
        override it is the first of llama.cpp's candidates whose device supports the weight's op for
        a batch of 512. An override to the CPU takes the first such candidate of the CPU. An
        override to other memory is taken without asking for the op. Raises `ModelError` if no
        device supports the op.
        """
        op, buft = op_of(il, name), None
        override = next((o for o in self.overrides if o.pattern.search(name)), None)
        if override is not None:
            buft = override.buffer_type
            if buft == self.cpu.buffer_type:
                buft = self._choose(self.cpu, op, name, type_, ne)
            else:
                self._check_readable(name, override)
        buft = buft or self._choose(self.backend(il).device, op, name, type_, ne)
        if buft is None:
            raise ModelError(
                f"tensor '{name}' ({type_.name.lower()}, ne {list(ne)}): none of the devices "
                f"supports {op.name} for it"
            )
        # A mapped file is in plain memory, whichever device reads it.
        pinned = buft.device is not None and buft == buft.device.host_buffer_type
        return self.cpu.buffer_type if pinned and self.mmap else buft

    def _check_readable(self, name: str, override: Override) -> None:
        """Raises `ModelError` for memory that no backend of the model reads. An example is a GPU's
        memory when split_mode="none" leaves the GPU out. llama.cpp loads such a model, and aborts
        when it plans a graph."""
        buft = override.buffer_type
        if not any(backend.device.supports_buft(buft) for backend in self.backends):
            names = ", ".join(backend.name for backend in self.backends)
            raise ModelError(
                f"tensor_overrides: '{override.pattern.pattern}' puts '{name}' into {buft.name} "
                f"memory, which no device of this model ({names}) reads: llama.cpp would abort. "
                "Add its device (devices, -d), use split_mode='layer' (-sm), or name another device"
            )

    def _choose(
        self, device: Device, op: Op, name: str, type_: Type, ne: tuple[int, ...]
    ) -> BufferType | None:
        """The first candidate for a layer on `device`."""
        weight = (op, name, type_, ne, self.hparams)
        candidates = self._candidates(device)
        return next((buft for tried, buft in candidates if supports(tried, buft, *weight)), None)

    def _candidates(self, device: Device) -> list[tuple[Device, BufferType]]:
        """The candidates in llama.cpp's order (make_gpu_buft_list, make_cpu_buft_list)."""
        cpu, plain = self.cpu, self.cpu.buffer_type
        found = [] if device == cpu else [device.buffer_type, *device.extra_buffer_types]
        tried = [(device, buft) for buft in found]
        for backend in self.backends:
            if backend.device.type == BackendDevType.ACCEL and backend.buffer_type != plain:
                tried.append((backend.device, backend.buffer_type))
        hosts = ((gpu.device, gpu.device.host_buffer_type) for gpu in self.gpus if self.host)
        tried += [(gpu, host) for gpu, host in hosts if host is not None][:1]
        if self.repack:
            tried += [(cpu, extra) for extra in cpu.extra_buffer_types]
        return [*tried, (cpu, plain)]

    @cached_property
    def parallel(self) -> bool:
        """Whether llama.cpp would let several GPUs work on several batches at once. The scheduler
        then has copies of the inputs (llama_context's pipeline_parallel)."""
        caps = (b.device.props.caps for b in self.backends[:-1])
        return (
            self.pipeline
            and len(self.gpus) > 1
            and self.full_offload
            and self.layer_split
            and self.offload_kqv
            and not self.overrides
            and all(c.async_ and c.events for c in caps)
        )

    def scheduler(self, graph_size: int) -> Scheduler:
        """A scheduler on the backends, as llama.cpp would make it."""
        types = self.compute_buffer_types()
        return Scheduler(self.backends, graph_size, self.parallel, self.op_offload, types)

    def compute_buffer_types(self) -> list[BufferType]:
        """The buffer type that the scheduler allocates from, per backend. If there are GPUs, the
        CPU uses the first one's host memory, which copies faster."""
        types = [backend.buffer_type for backend in self.backends]
        if self.gpus:
            host = lib.ggml_backend_dev_host_buffer_type(self.gpus[0].device.ptr)
            if host != NULL:
                types[-1] = BufferType(host)
        return types


def open_backends(
    devices: Sequence[Device],
    n_threads: int | None,
    split_mode: str = "layer",
    main_gpu: int = 0,
) -> tuple[Backend, ...]:
    """Opens a backend on each device, in the given order. With split_mode="none" only GPU number
    `main_gpu` is used, or none if that is negative."""
    chosen = list(devices)
    gpus = [d for d in chosen if d.type in GPU_TYPES]
    if split_mode == "none" and gpus:
        kept = gpus[main_gpu : main_gpu + 1] if main_gpu >= 0 else []
        chosen = [d for d in chosen if d not in gpus or d in kept]
    return tuple(d.init(n_threads=n_threads) for d in chosen)


def place(
    backends: tuple[Backend, ...],
    hparams: HParams,
    n_gpu_layers: int,
    tensor_split: Sequence[float] | None = None,
    **options: Any,
) -> LayerPlacement:
    """Makes the placement; `options` are its attributes. Several GPUs share the layers in the
    proportions of `tensor_split`, by default in those of their free memory. n_gpu_layers below 0
    means all. Without a GPU, `n_gpu_layers` does not change where things are."""
    placement = LayerPlacement(backends, hparams, n_gpu_layers, **options)
    gpus = placement.gpus
    if n_gpu_layers < 0:
        n_gpu_layers = hparams.n_layer + 1
    splits = _splits(gpus, _parts(tensor_split, gpus))
    return replace(placement, n_gpu_layers=n_gpu_layers, splits=splits)


def keeps_mapped(load_mode: str, backends: Sequence[Backend]) -> bool:
    """Whether weights of the CPU stay in the mapped file. With "auto" they do unless there is a GPU
    without mmap support."""
    gpus = (b.device for b in backends if b.device.type in GPU_TYPES)
    return load_mode == "mmap" or (
        load_mode == "auto" and all(gpu.props.caps.mmap_support for gpu in gpus)
    )


def _parts(tensor_split: Sequence[float] | None, gpus: Sequence[Backend]) -> list[float]:
    """A number per GPU; an empty list if all are 0, which means the same as no tensor_split."""
    parts = [float(part) for part in tensor_split or ()][: len(gpus)]
    return parts + [0.0] * (len(gpus) - len(parts)) if any(parts) else []


def _splits(gpus: Sequence[Backend], parts: list[float]) -> tuple[float, ...]:
    """Where each GPU's part ends. In single precision, as in llama_model::load_tensors: other
    rounding could move a layer."""
    if not gpus:
        return ()
    for gpu in () if parts else gpus:
        free, total = gpu.device.memory
        parts.append(free if total else device("CPU").memory[0])
    ends = np.cumsum(np.array(parts, np.float32), dtype=np.float32)
    return tuple((ends / ends[-1]).tolist())

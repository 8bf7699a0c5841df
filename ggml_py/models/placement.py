"""Which device holds which layer, by llama.cpp's rule for `n_gpu_layers`."""

from __future__ import annotations

import bisect
import contextlib
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from .._device import Device, device
from .._ffi import NULL, lib
from ..backend import Backend
from ..buffer import BufferType
from ..context import Context
from ..enums import BackendDevType, Op, Type
from ..errors import MissingFunctionError, ModelError
from ..rpc import rpc_devices
from ..sim_text import sim_device_of
from ..tensor import Tensor
from ..threadpool import ThreadPool
from .hparams import Ssm

GPU_TYPES = (BackendDevType.GPU, BackendDevType.IGPU)
_SSM_OPS = {"ssm_conv1d.weight": Op.SSM_CONV, "ssm_a": Op.SSM_SCAN, "ssm_d": Op.MUL}
SCAN_K = (1,) if "K" in inspect.signature(Context.ssm_scan).parameters else ()  # since 0.21.0
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
    repack: bool = True  # whether weights may go to extra buffer types, laid out for a device
    ssm: Ssm | None = None  # sizes of the scan, which ssm_a alone does not tell
    _chosen: dict[tuple[Device, Op, Type, tuple[int, ...]], BufferType] = field(
        default_factory=dict, compare=False, repr=False
    )

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
        """Where layer `il` keeps a weight: in the first of llama.cpp's candidates whose device has
        the op that uses it, for a batch of 512, as llama.cpp's loader decides. Raises `ModelError`
        when none has.
        """
        op = op_of(il, name)
        key = (self.backend(il).device, op, type_, ne)
        if key not in self._chosen:
            self._chosen[key] = self._choose(il, name, op, type_, ne)
        return self._chosen[key]

    def _choose(self, il: int, name: str, op: Op, type_: Type, ne: tuple[int, ...]) -> BufferType:
        for tried, buft in self._candidates(il):
            if _supports(tried, buft, op, type_, ne, self.ssm):
                # A mapped file is in plain memory, whoever reads it from there.
                pinned = buft.device is not None and buft == buft.device.host_buffer_type
                return self.backends[-1].device.buffer_type if pinned else buft
        raise ModelError(
            f"tensor '{name}' ({type_.name.lower()}, ne {list(ne)}): no device here has "
            f"{op.name} for it"
        )

    def _candidates(self, il: int) -> list[tuple[Device, BufferType]]:
        """What llama.cpp tries, in its order (make_gpu_buft_list, make_cpu_buft_list)."""
        device, cpu = self.backend(il).device, self.backends[-1].device
        plain = cpu.buffer_type
        found = [] if device == cpu else [device.buffer_type, *device.extra_buffer_types]
        tried = [(device, buft) for buft in found]
        for backend in self.backends:
            if backend.device.type == BackendDevType.ACCEL and backend.buffer_type != plain:
                tried.append((backend.device, backend.buffer_type))
        hosts = ((gpu.device, gpu.device.host_buffer_type) for gpu in self.gpus)
        tried += [(gpu, host) for gpu, host in hosts if host is not None][:1]
        if self.repack:
            tried += [(cpu, extra) for extra in cpu.extra_buffer_types]
        return [*tried, (cpu, plain)]

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


def keep_threads(backends: Sequence[Backend]) -> list[ThreadPool]:
    """A pool for each backend that takes one, so that its threads last from compute to compute.
    They sleep until the first."""
    pools = []
    for backend in backends:
        with contextlib.suppress(MissingFunctionError):
            if backend.n_threads is not None:
                pool = ThreadPool(backend.n_threads, paused=True, device=backend.device)
                pools.append(pool)
                backend.set_threadpool(pool)
    return pools


def named_devices(given: str | Device) -> tuple[Device, ...]:
    """What a name of `open_backends` stands for."""
    if isinstance(given, Device):
        return (given,)
    if not isinstance(given, str):
        raise TypeError(f"devices: expected Devices and their names, got {type(given).__name__}")
    if given.startswith("rpc:"):
        return rpc_devices(given[4:])
    return (sim_device_of(given[4:]) if given.startswith("sim:") else device(given),)


def place(
    backends: tuple[Backend, ...],
    n_layer: int,
    n_gpu_layers: int,
    repack: bool = True,
    ssm: Ssm | None = None,
) -> Placement:
    """The placement, over several GPUs by their free memory; without a GPU `n_gpu_layers` has no
    effect, and a warning is logged."""
    gpus = Placement(backends, n_layer, 0).gpus
    if n_gpu_layers and not gpus:
        names = ", ".join(b.name for b in backends)
        log.warning("n_gpu_layers=%d has no effect: %s is no GPU", n_gpu_layers, names)
        n_gpu_layers = 0
    return Placement(backends, n_layer, n_gpu_layers, _splits(gpus), repack, ssm)


def _splits(gpus: Sequence[Backend]) -> tuple[float, ...]:
    """In single precision, as llama_model::load_tensors has them: other roundings could move a
    layer."""
    sizes = []
    for gpu in gpus:
        free, total = gpu.device.memory
        sizes.append(free if total else device("CPU").memory[0])
    ends = np.cumsum(np.array(sizes, np.float32), dtype=np.float32)
    return tuple((ends / ends[-1]).tolist()) if gpus else ()


def op_of(il: int, name: str) -> Op:
    """The op that reads a weight (llama.cpp's LLM_TENSOR_INFOS, and its rule for biases)."""
    expert = name.endswith(("_exps.weight", "_exps.bias"))
    if name.endswith(".bias"):
        return Op.ADD_ID if expert else Op.ADD
    if name.endswith("_norm.weight"):
        return Op.MUL
    if name.startswith(("rope_freqs.", "rope_factors_")):
        return Op.ROPE
    if il == INPUT:
        return Op.GET_ROWS
    if name.endswith("attn_sinks.weight"):
        return Op.SCALE
    for suffix, op in _SSM_OPS.items():
        if name.endswith(suffix):
            return op
    return Op.MUL_MAT_ID if expert else Op.MUL_MAT


def _supports(
    device: Device, buft: BufferType, op: Op, type_: Type, ne: tuple[int, ...], ssm: Ssm | None
) -> bool:
    """Whether `device` has `op` for such a weight in a buffer of that type."""
    with Context() as context, buft.alloc(0) as nothing:
        weight = context.new_tensor(type_, *ne)
        weight.ptr.buffer = nothing.ptr  # that it has no room is not asked about
        return device.supports_op(_user_of(context, op, weight, ssm))


def _user_of(context: Context, op: Op, weight: Tensor, ssm: Ssm | None = None) -> Tensor:
    """The op on a batch of 512, with llama.cpp's shapes."""
    ne = weight.ne
    if op == Op.GET_ROWS:
        return context.get_rows(weight, context.new_tensor("i32", 512))
    if op in (Op.ADD, Op.MUL):
        cur = context.new_tensor("f32", *ne)
        return (context.add if op == Op.ADD else context.mul)(cur, weight)
    if op == Op.SCALE:
        return context.scale(weight, 1.0)
    if op == Op.ROPE:
        cur, positions = (
            context.new_tensor("f32", 2 * ne[0], 1, 512),
            context.new_tensor("i32", 512),
        )
        return context.rope_ext(cur, positions, weight, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if op == Op.SSM_CONV:
        return context.ssm_conv(context.new_tensor("f32", ne[0] - 1 + 512, ne[1], 3), weight)
    if op == Op.SSM_SCAN and ssm is not None:
        return _scan_of(context, weight, ssm)
    ids = context.new_tensor("i32", 1, 512)  # one expert: how many it is makes no difference
    if op == Op.ADD_ID:
        return context.add_id(context.new_tensor("f32", ne[0], 1, 512), weight, ids)
    if op == Op.MUL_MAT_ID:
        return context.mul_mat_id(weight, context.new_tensor("f32", ne[0], 1, 512), ids)
    return context.mul_mat(weight, context.new_tensor("f32", ne[0], 512, *ne[2:]))


def _scan_of(context: Context, ssm_a: Tensor, ssm: Ssm) -> Tensor:
    """The scan of three sequences of 512 tokens; mamba has a factor per state, mamba2 per head."""
    d_state, n_head = (ssm.d_state if ssm_a.ne[0] == 1 else ssm_a.ne[0]), ssm_a.ne[1]
    head_dim, tokens = ssm.d_inner // n_head, (512, 3)
    states = context.new_tensor("f32", d_state, head_dim, n_head, 3)
    x = context.new_tensor("f32", head_dim, n_head, *tokens)
    dt = context.new_tensor("f32", n_head, *tokens)
    b, c = (context.new_tensor("f32", d_state, max(ssm.n_group, 1), *tokens) for _ in "bc")
    return context.ssm_scan(states, x, dt, ssm_a, b, c, context.new_tensor("i32", 3), *SCAN_K)

"""Opens a model: options, devices, weights, cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from .._arguments import SIZE_MAX, given, whole
from .._device import Device
from .._ffi import lib
from ..enums import Type
from ..errors import ModelError
from ..gguf import Gguf
from ..scheduler import Scheduler
from ..tensor import TypeLike, type_of
from . import hparams as hparams_
from .archs import ARCHS
from .cells import pad
from .graphs import Graphs
from .kv_caches import KvCaches
from .memory import Memory
from .model import Model
from .placement import keep_threads, open_backends, place
from .reading import Progress
from .recurrent import RecurrentCache
from .weights import Weights

_FLASH_ATTN = ("auto", "on", "off")


def load(
    path: str | os.PathLike[str],
    devices: Sequence[str | Device] = ("CPU",),
    n_gpu_layers: int = 0,
    n_ctx: int = 512,
    n_batch: int = 512,
    n_ubatch: int = 512,
    n_threads: int | None = None,
    flash_attn: bool | str = "auto",
    type_k: TypeLike = "f16",
    type_v: TypeLike = "f16",
    repack: bool = True,
    swa_full: bool = False,
    n_seq_max: int = 1,
    kv_unified: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Opens a GGUF model for evaluation. Options are llama.cpp's, with its meanings.

    `devices` are names ("rpc:HOST:PORT" for a server's, "sim:NAME" for a simulated one) or
    `Device`s, highest priority first; a CPU is added if there is none. The last `n_gpu_layers`
    layers (the output counts as one) go to the GPUs among them, by their free memory; weights that
    a GPU has no op for stay on the CPU. `n_ctx` is the number of tokens the cache holds, rounded up
    to 256, 0 for what the model was trained with; `n_ubatch` how many tokens one graph takes at
    most. `flash_attn` is "on" (or True), "off" (or False), or "auto": on where the device of each
    layer supports it. `type_k` and `type_v` are the cache's types; layers with a sliding window
    have a cache of their own, which holds the window only, unless `swa_full`. `n_seq_max` sequences
    can be evaluated; they share n_ctx evenly, or with `kv_unified` as they need it (see `Batch`).
    A recurrent model has a state for each sequence, whatever its length: to it n_ctx and what is
    said of caches mean nothing.
    `repack` copies
    weights that the CPU multiplies with into layouts for its kernels, where it has such (buffer
    type CPU_REPACK and others); without it they stay in the mapped file.

    Weights are read when the first token is evaluated: until then, for plans, only the file's
    header is. With `progress` they are read here, and it is called with the share of bytes that is
    done, from 0.0 to 1.0 (weights that stay in the mapped file do not count); when it returns False
    loading ends with a `ModelError`, and what it raises is raised here.

    Raises `ModelError` for a file that is no complete model of a known architecture and for options
    it cannot take, `GgufError`, `UnknownDeviceError`, `AllocError`.
    """
    if isinstance(flash_attn, bool):
        flash_attn = "on" if flash_attn else "off"
    _check_options(n_gpu_layers, n_ctx, n_batch, n_ubatch, n_seq_max, n_threads, flash_attn)
    for name, value in (
        ("repack", repack),
        ("swa_full", swa_full),
        ("kv_unified", kv_unified),
    ):
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}: expected True or False")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress: expected a function of (share) or None, got {given(progress)}")
    type_k, type_v = type_of(type_k), type_of(type_v)
    flash_attn = _with_quantised_v(flash_attn, type_v)
    with Gguf.open(path) as gguf:
        arch = gguf.metadata.get("general.architecture")
        if not isinstance(arch, str) or arch not in ARCHS:
            named = "no architecture" if arch is None else f"architecture '{arch}'"
            raise ModelError(f"{gguf.path} names {named}; supported: {', '.join(sorted(ARCHS))}")
        graph = ARCHS[arch]
        hp = hparams_.read(gguf.metadata, arch, graph.rope_mode)
        hp = graph.read_hparams(hparams_.Keys(gguf.metadata, arch), hp)
        with ExitStack() as stack:
            backends = open_backends(devices, n_threads)
            for backend in backends:
                stack.callback(backend.close)
            for pool in keep_threads(backends):
                stack.callback(pool.close)
            placement = place(backends, hp.n_layer, n_gpu_layers, repack, hp.ssm)
            # llama.cpp's bound on the nodes of a graph (llama_context::graph_max_nodes)
            graph_size = max(1024, 8 * len(gguf.tensors))
            sched = Scheduler(backends, graph_size, buffer_types=placement.compute_buffer_types())
            weights = Weights(gguf, placement)
            stack.callback(weights.close)
            tensors = graph.declare(weights, hp)
            weights.alloc()
            # "auto" may still end without flash attention; as in llama.cpp the cache is laid out
            # before that is known.
            v_trans = flash_attn == "off"
            n_ctx = pad(n_ctx or hp.n_ctx_train)
            n_batch = min(n_batch, n_ctx)
            n_ubatch = min(n_ubatch, n_batch)
            options = (type_k, type_v, v_trans)
            sizes = (n_ctx, n_ubatch, n_seq_max)
            memory: Memory
            if hp.ssm is not None:
                memory = RecurrentCache(hp, placement, n_seq_max)
            else:
                memory = KvCaches(hp, placement, *sizes, kv_unified, swa_full, *options)
            stack.callback(memory.close)
            parts = (hp, placement, sched, weights, tensors, memory)
            graphs = Graphs(*parts, n_ubatch, flash_attn)
            stack.callback(graphs.close)
            if progress is not None:
                weights.read(progress)
            model = (hp, placement, weights, memory, graphs, n_batch, n_ubatch)
            return Model(*model, stack.pop_all())


def _check_options(
    n_gpu_layers: int,
    n_ctx: int,
    n_batch: int,
    n_ubatch: int,
    n_seq_max: int,
    n_threads: int | None,
    flash_attn: str,
) -> None:
    for name, value, least in (
        ("n_gpu_layers", n_gpu_layers, 0),
        ("n_ctx", n_ctx, 0),
        ("n_batch", n_batch, 1),
        ("n_ubatch", n_ubatch, 1),
        ("n_seq_max", n_seq_max, 1),
        ("n_threads", 1 if n_threads is None else n_threads, 1),
    ):
        if whole(name, value, -SIZE_MAX) < least:
            raise ModelError(f"{name}={value}: expected at least {least}")
    if flash_attn not in _FLASH_ATTN:
        raise ModelError(f"flash_attn={flash_attn!r}: expected one of {', '.join(_FLASH_ATTN)}")


def _with_quantised_v(flash_attn: str, type_v: Type) -> str:
    """Plain attention cannot read a quantised V: "auto" means on then, as in llama.cpp."""
    if not lib.ggml_is_quantized(type_v):
        return flash_attn
    if flash_attn == "off":
        raise ModelError(
            f"type_v={type_v.name.lower()}: a quantised V cache needs flash attention; take "
            'flash_attn="on" or type_v="f16"'
        )
    return "on"

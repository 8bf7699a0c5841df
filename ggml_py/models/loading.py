"""Opens a model: options, devices, weights, cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from ..backends.device import Device
from ..boundary.arguments import SIZE_MAX, given, whole
from ..boundary.ffi import lib
from ..enums import Type
from ..errors import ModelError
from ..gguf.reader import Gguf
from ..tensors.tensor import TypeLike, type_of
from .archs import ARCHS
from .cache.cells import pad
from .cache.kv_caches import KvCaches
from .cache.memory import MAX_SEQ, Memory
from .cache.recurrent import RecurrentCache
from .file import hparams as hparams_
from .file.overrides import Overrides, cpu_overrides, override_pairs, resolve_overrides
from .file.placement import keeps_mapped, open_backends, place
from .file.reading import Progress
from .file.room import check_room, naming
from .file.threads import Threads
from .file.weights import Weights
from .graphs import Graphs
from .model import Model

_CHOICES = {
    "flash_attn": ("auto", "on", "off"),
    "split_mode": ("layer", "none"),
    "load_mode": ("auto", "mmap", "none"),
}
_LESS_WEIGHTS = (
    "Fewer layers on the GPUs (n_gpu_layers, -ngl), some weights elsewhere (tensor_overrides, -ot; "
    "cpu_moe, -cmoe) or no copies of those on the CPU (repack=False, -nr) need less"
)
_LESS_CACHE = (
    "A smaller n_ctx (-c), smaller types (type_k and type_v, -ctk and -ctv) or the cache on the "
    "CPU (offload_kqv=False, -nkvo) need less"
)
_LESS_STATES = "Fewer sequences, or the states on the CPU (offload_kqv=False) need less"
_INT_MAX = (1 << 31) - 1  # llama.cpp's own numbers end there
_CELL_BYTES = 32  # of the machine's memory, beside the cell's keys and values


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
    offload_kqv: bool = True,
    op_offload: bool = True,
    tensor_overrides: Overrides | None = None,
    cpu_moe: bool = False,
    n_cpu_moe: int = 0,
    n_cpu_ffn: int = 0,
    split_mode: str = "layer",
    main_gpu: int = 0,
    tensor_split: Sequence[float] | None = None,
    load_mode: str = "auto",
    no_host: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Opens a GGUF model for evaluation. Options are llama.cpp's, with its meanings.

    `devices` are names ("rpc:HOST:PORT" for a server's, "sim:NAME" for a simulated one) or
    `Device`s, highest priority first; a CPU is added if there is none. The last `n_gpu_layers`
    layers (the output counts as one; -1: all) go to the GPUs among them, by their free memory;
    weights that a GPU has no op for stay on the CPU. `n_ctx` is the number of tokens the cache
    holds, rounded up to 256, 0 for what the model was trained with; `n_ubatch` how many tokens one
    graph takes at most. `flash_attn` is "on" (or True), "off" (or False), or "auto": on where the
    device of each layer supports it. `type_k` and `type_v` are the cache's types; layers with a
    sliding window have a cache of their own, which holds the window only, unless `swa_full`.
    `n_seq_max` sequences can be evaluated; they share n_ctx evenly, or with `kv_unified` as they
    need it (see `Batch`). A recurrent model has a state for each sequence, whatever its length: to
    it n_ctx and what is said of caches mean nothing. `repack` copies weights that the CPU
    multiplies with into layouts for its kernels, where it has such (buffer type CPU_REPACK and
    others); without it they stay in the mapped file.

    Where things are, besides: without `offload_kqv` the cache is on the CPU; without `op_offload`
    GPUs compute with weights in their own memory only. `tensor_overrides` places weights by their
    names, {regex: device or buffer type}; the first regex that is found in a name counts. After
    those come `cpu_moe`, which keeps all experts on the CPU, `n_cpu_moe` (those of the first N
    layers) and `n_cpu_ffn` (the dense networks of the first N). `tensor_split` is how much of the
    layers each GPU gets, like (3, 1); with split_mode="none" GPU number `main_gpu` gets all.
    `load_mode` is "mmap" (weights in plain memory of the CPU stay in the mapped file), "none" (they
    are copied), or "auto": mapped unless a GPU does not like that. With `no_host` weights of the
    CPU are not put into a GPU's host memory, so that they can be laid out for the CPU.

    Weights are read when the first token is evaluated, by `n_threads` threads into the CPU's
    memory: until then, for plans, only the file's header is. With `progress` they are read here,
    and it is called with the share of bytes that is done, from 0.0 to 1.0 (weights that stay in the
    mapped file do not count); when it returns False loading ends with a `ModelError`, and what it
    raises is raised here.

    Raises `ModelError` for a file that is no complete model of a known architecture and for options
    it cannot take, `GgufError`, `UnknownDeviceError`, and `AllocError` with the part that does not
    fit (weights, cache), how many bytes of which buffer type it is, and what would need less. What
    was made so far is freed then. Compute buffers are made when the first token is evaluated.
    """
    if isinstance(flash_attn, bool):
        flash_attn = "on" if flash_attn else "off"
    if isinstance(n_gpu_layers, str):
        raise TypeError(f"n_gpu_layers={n_gpu_layers!r}: expected a number of layers; -1 means all")
    _check_numbers(
        n_ctx=(n_ctx, 0),
        n_batch=(n_batch, 1),
        n_ubatch=(n_ubatch, 1),
        n_seq_max=(n_seq_max, 1),
        n_threads=(1 if n_threads is None else n_threads, 1),
        n_gpu_layers=(n_gpu_layers, -SIZE_MAX),
        main_gpu=(main_gpu, -SIZE_MAX),
        n_cpu_moe=(n_cpu_moe, 0),
        n_cpu_ffn=(n_cpu_ffn, 0),
    )
    if n_seq_max > MAX_SEQ:
        raise ModelError(f"n_seq_max={n_seq_max}: expected at most {MAX_SEQ} sequences")
    _check_choices(flash_attn=flash_attn, split_mode=split_mode, load_mode=load_mode)
    _check_flags(
        repack=repack,
        swa_full=swa_full,
        kv_unified=kv_unified,
        offload_kqv=offload_kqv,
        op_offload=op_offload,
        cpu_moe=cpu_moe,
        no_host=no_host,
    )
    pairs = override_pairs(tensor_overrides)
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
        try:
            hp = hparams_.read(gguf.metadata, arch, graph.rope_mode)
            hp = graph.read_hparams(hparams_.Keys(gguf.metadata, arch), hp)
        except ModelError as error:
            raise ModelError(f"{gguf.path}: {error}") from None
        with ExitStack() as stack:
            backends = open_backends(devices, n_threads, split_mode, main_gpu)
            for backend in backends:
                stack.callback(backend.close)
            threads = Threads(backends)
            stack.callback(threads.close)
            pairs += cpu_overrides(cpu_moe, n_cpu_moe, n_cpu_ffn, hp.n_layer)
            placement = place(
                backends,
                hp.n_layer,
                n_gpu_layers,
                tensor_split,
                overrides=resolve_overrides(pairs, [b.device for b in backends]),
                repack=repack,
                host=not no_host,
                mmap=keeps_mapped(load_mode, backends),
                offload_kqv=offload_kqv,
                op_offload=op_offload,
                layer_split=split_mode == "layer",
                ssm=hp.ssm,
            )
            # llama.cpp's bound on the nodes of a graph (llama_context::graph_max_nodes)
            graph_size = max(1024, 8 * len(gguf.tensors))
            sched = placement.scheduler(graph_size)
            weights = Weights(gguf, placement)
            stack.callback(weights.close)
            tensors = graph.declare(weights, hp)
            with naming(f"the weights of {gguf.path}", _LESS_WEIGHTS):
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
                with naming(f"the states of {n_seq_max:,} sequences (n_seq_max)", _LESS_STATES):
                    memory = RecurrentCache(hp, placement, n_seq_max)
            else:
                with naming(f"the KV cache of {n_ctx:,} tokens (n_ctx)", _LESS_CACHE):
                    check_room("the table of its cells", _CELL_BYTES * n_ctx)
                    memory = KvCaches(hp, placement, *sizes, kv_unified, swa_full, *options)
            stack.callback(memory.close)
            parts = (hp, placement, threads, sched, weights, tensors, memory)
            graphs = Graphs(*parts, n_ubatch, flash_attn)
            stack.callback(graphs.close)
            if progress is not None:
                weights.read(progress)
            model = (hp, placement, weights, memory, graphs, n_batch, n_ubatch)
            return Model(*model, stack.pop_all())


def _check_numbers(**options: tuple[int, int]) -> None:
    """Each a value, and what it is at least."""
    for name, (value, least) in options.items():
        if whole(name, value, -SIZE_MAX) < least:
            raise ModelError(f"{name}={value}: expected at least {least}")
        if value > _INT_MAX:
            raise ModelError(f"{name}={value}: expected at most {_INT_MAX:,}")


def _check_choices(**options: str) -> None:
    for name, value in options.items():
        if value not in _CHOICES[name]:
            raise ModelError(f"{name}={value!r}: expected one of {', '.join(_CHOICES[name])}")


def _check_flags(**options: bool) -> None:
    for name, value in options.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}: expected True or False")


def _with_quantised_v(flash_attn: str, type_v: Type) -> str:
    """Plain attention cannot read a quantised V: "auto" means on then, as in llama.cpp."""
    if not lib.ggml_is_quantized(type_v):
        return flash_attn
    if flash_attn == "off":
        raise ModelError(
            f"type_v={type_v.name.lower()}: a quantised V cache needs flash attention; take "
            'flash_attn="on" (-fa) or type_v="f16" (-ctv)'
        )
    return "on"

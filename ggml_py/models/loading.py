"""Opens a model: devices, weights, memory, graphs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from .. import llama
from ..backends.device import Device
from ..errors import ModelError, NotBuiltError
from ..gguf.header_file import check_has_weights, described
from ..gguf.reader import Gguf
from ..llama.archs import ARCHITECTURES
from ..llama.loaded_again import Changes, reload
from ..llama.model import Model
from ..llama.model_facts import model_made
from ..llama.options import Options, Progress, checked
from ..llama.overrides import (
    Overrides,
    cpu_overrides,
    on_cpu,
    resolve_overrides,
    warn_of_unmatched,
)
from ..llama.params import check_gpus, given_devices
from ..llama.room import rooms
from ..tensors.tensor import TypeLike
from ..typed import typed
from .archs import ARCHS
from .build.decoder import Decoder, DecoderWeights
from .cache.kv_caches import KvCaches
from .file import hparams
from .file.free_memory import check_reserved, check_room, naming
from .file.hparams import HParams, UnsupportedError
from .file.placement import LayerPlacement, keeps_mapped, open_backends, place
from .file.threads import Threads
from .file.weights import Weights
from .graphs import Graphs
from .own_model import OwnModel

_LESS_WEIGHTS = (
    "To need less, put fewer layers on the GPUs (n_gpu_layers, -ngl), place some weights elsewhere "
    "(tensor_overrides, -ot; cpu_moe, -cmoe), or do not repack those on the CPU (repack=False, -nr)"
)
_LESS_CACHE = (
    "To need less, use a smaller n_ctx (-c) or smaller types (type_k, -ctk; type_v, -ctv), "
    "or keep the cache on the CPU (offload_kqv=False, -nkvo)"
)
_OTHER_ARCHS = (
    "Plans of any architecture can be read from a log of llama.cpp: run it with GGML_SCHED_DEBUG=2 "
    "and -v, and give the log to `ggml-py plan LOG` or Plan.from_debug_log"
)
_BY_LIBLLAMA = '. libllama loads it: graphs="libllama" (--graphs)'
_GRAPHS = ("auto", "ours", "libllama")
_LIBLLAMAS_SPLITS = ("row", "tensor")
_CELL_BYTES = 32  # of the machine's memory per cell, beside its keys and values


@typed("path", "header_only", "build")
def load(
    path: str | os.PathLike[str],
    devices: Sequence[str | Device] = ("CPU",),
    n_gpu_layers: int = 0,
    n_ctx: int | None = None,
    n_batch: int | None = None,
    n_ubatch: int | None = None,
    n_threads: int | None = None,
    flash_attn: bool | str = "auto",
    type_k: TypeLike = "f16",
    type_v: TypeLike = "f16",
    repack: bool = True,
    swa_full: bool = False,
    n_seq_max: int | None = None,
    kv_unified: bool | None = None,
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
    *,
    n_outputs_max: int | None = None,
    program: str | None = None,
    graphs: str = "auto",
    build: bool = True,
    header_only: bool = False,
) -> Model:
    """Opens a GGUF model for evaluation. Options are llama.cpp's, with its meanings.

    `devices` are `Device`s or names ("rpc:HOST:PORT" for a server's devices, "sim:NAME" for a
    simulated one), highest priority first. A CPU is added if there is none. The last `n_gpu_layers`
    layers (the output counts as one; -1: all) go to the GPUs among them, in proportion to their
    free memory. Weights for which a GPU lacks the op stay on the CPU. `n_ctx` is the number of
    tokens that the cache holds (512), rounded up to a multiple of 256. With 0 it is the length that
    the model was trained with. `n_batch` is the most tokens that one `decode` takes (512),
    `n_ubatch` the most that one graph takes (512). `flash_attn` is "on" (or True), "off" (or
    False), or "auto": on if the device of each layer supports it. `type_k` and `type_v` are the
    cache's types. Layers with a sliding window have their own cache, which holds only the window
    unless `swa_full`. `n_seq_max` sequences (1) can be evaluated, several by libllama. They share
    n_ctx evenly, or with `kv_unified` as they need it (see `Batch`). `repack` copies
    weights that the CPU multiplies with into layouts for its kernels, if it has any (buffer type
    CPU_REPACK and others); without it they stay in the mapped file.

    More on placement: without `offload_kqv` the cache is on the CPU. Without `op_offload` GPUs
    compute only with weights in their own memory. `tensor_overrides` places weights by name,
    {regex: device or buffer type}; the first regex that matches a name counts. It goes before
    `cpu_moe`, which keeps all experts on the CPU, `n_cpu_moe` (experts of the first N layers) and
    `n_cpu_ffn` (dense networks of the first N). `tensor_split` is each GPU's share of the layers,
    like (3, 1). With split_mode="none" GPU number `main_gpu` gets all layers. `load_mode` is "mmap"
    (weights in plain CPU memory stay in the mapped file), "none" (they are copied) or "auto":
    mapped unless a GPU does not support that. With `no_host` weights of the CPU are not put into a
    GPU's host memory, so they can be repacked for the CPU.

    Compute buffers have room for the logits of `n_outputs_max` tokens (as many as a batch has), as
    in llama.cpp; more logits make them grow. `program` is one of llama.cpp's programs ("bench",
    "server", "cli", "completion", "perplexity"). Its defaults then replace ours for n_ctx, n_batch,
    n_ubatch, n_seq_max, kv_unified and n_outputs_max, so that `Model.memory` agrees with its log.

    `graphs` are "ours", of an architecture in `ARCHS`, or "libllama", of any that llama.cpp loads
    (`llama.open`, which builds libllama if it is not there, unless `build` is False). "auto" means
    ours if we write that architecture and split mode, for one sequence, and the file has nothing
    that our own graphs lack; otherwise libllama's. `Model.graphs` says which.

    `path` may be an http(s) address, of which only the header is read. With `header_only` a file
    may end after its header. Such a model plans; evaluating raises `ModelError`.

    Weights are read when the first token is evaluated, into the CPU's memory by `n_threads`
    threads. Until then only the file's header has been read, which is enough for plans. With
    `progress` the weights are read here, and it is called with the share of bytes that has been
    read, from 0.0 to 1.0 (weights that stay in the mapped file do not count). If it returns False
    loading ends with a `ModelError`; if it raises, so does `load`.

    Raises `ModelError` for a file that is not a complete model of a known architecture and for
    invalid options, `GgufError`, and `UnknownDeviceError`. Raises `AllocError` if weights or cache
    do not fit: it has the part, its bytes by buffer type, and options that need less. Everything
    made so far is then freed. Compute buffers are made when the first token is evaluated.
    """
    asked = locals().copy()  # only the parameters, so far
    for name in ("path", "graphs", "build", "header_only"):
        del asked[name]
    with ExitStack() as stack:
        local, only_header = stack.enter_context(described(path, header_only))
        lacking: UnsupportedError | None = None
        if not _by_libllama(local, graphs, checked(asked)):
            try:
                return _ours(local, asked, only_header, stack.pop_all())
            except UnsupportedError as error:
                if graphs == "ours":
                    raise
                lacking = error
    try:
        return llama.open(path, build=build, header_only=header_only, **asked)
    except (ModelError, NotBuiltError) as error:
        if lacking is None:
            raise
        raise ModelError(f"{lacking}. Of libllama: {error}") from None


def _ours(
    path: str | os.PathLike[str],
    asked: dict[str, Any],
    only_header: str,
    closing: ExitStack,
) -> OwnModel:
    """The model with our own graphs. `closing` closes what its file needs."""
    with closing as stack, Gguf.open(path) as gguf:
        wanted = checked(asked)
        if why := _libllamas(wanted):
            raise ModelError(f'{why}, which graphs="libllama" has (--graphs)')
        graph, hp = _architecture(gguf)
        options = wanted.sized(hp.n_ctx_train)
        devices = given_devices(options.devices)
        found = rooms(devices)
        placement, threads = _placement(options, devices, hp, stack)
        made = model_made(gguf, options, devices)
        warn_of_unmatched((one.pattern.pattern for one in placement.overrides), gguf.tensors)
        # llama.cpp's bound on the nodes of a graph (llama_context::graph_max_nodes)
        sched = placement.scheduler(max(1024, 8 * len(gguf.tensors)))
        weights, tensors = _weights(gguf, graph, hp, placement, stack)
        weights.only_header = only_header
        memory = _memory(options, hp, placement)
        stack.callback(memory.close)
        weights.before_reading = partial(_check_memory, gguf, weights, options, memory)
        parts = (hp, placement, threads, sched, weights, tensors, memory)
        sizes = (options.n_ubatch, options.n_outputs_max)
        built = Graphs(*parts, *sizes, options.flash_attn)
        stack.callback(built.close)
        if options.progress is not None:
            weights.read(options.progress)

        def again(changes: Changes) -> AbstractContextManager[Model]:
            return _again(path, wanted, placement, changes)

        model = (gguf, hp, placement, weights, memory, built)
        sizes = (options.n_batch, options.n_ubatch)
        opened = OwnModel(*model, sizes, made, again, stack.pop_all())
        opened.rooms = found
        return opened


def _libllamas(wanted: Options) -> str:
    """An option that our own graphs do not have; "" if they have all."""
    if wanted.split_mode in _LIBLLAMAS_SPLITS:
        return f"split_mode={wanted.split_mode!r}: our own graphs know 'layer' and 'none'"
    if wanted.n_seq_max > 1:
        return f"n_seq_max={wanted.n_seq_max}: our own graphs have one sequence"
    return ""


def _by_libllama(path: str | os.PathLike[str], graphs: str, wanted: Options) -> bool:
    """Whether libllama builds the graphs. Raises `ModelError`."""
    if not isinstance(graphs, str) or graphs not in _GRAPHS:
        raise ModelError(f"graphs={graphs!r}: expected one of {', '.join(map(repr, _GRAPHS))}")
    if graphs != "auto":
        return graphs == "libllama"
    if _libllamas(wanted):
        return True
    with Gguf.open(path) as gguf:
        arch = gguf.metadata.get("general.architecture")
    return arch not in ARCHS and arch in ARCHITECTURES


@contextmanager
def _again(
    path: str | os.PathLike[str], options: Options, placement: LayerPlacement, changes: Changes
) -> Iterator[Model]:
    """The same model, loaded with changes that `what_if.reload` takes, while devices answer as
    assumed."""
    again = reload(changes, options, placement.backends)
    asked = vars(options) | {"progress": None, "program": None}
    asked |= again.options | {"graphs": "ours"}
    with again.assuming(), load(path, **asked) as model:
        yield model


def _architecture(gguf: Gguf) -> tuple[type[Decoder[Any]], HParams]:
    """The graph class for the file's architecture, and the hyperparameters. Raises `ModelError`."""
    check_has_weights(gguf)
    arch = gguf.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHS:
        named = "no architecture" if arch is None else f"architecture '{arch}'"
        raise ModelError(
            f"{gguf.path} names {named}; supported: {', '.join(sorted(ARCHS))}. {_OTHER_ARCHS}"
            f"{_BY_LIBLLAMA * (arch in ARCHITECTURES)}"
        )
    graph = ARCHS[arch]
    try:
        hp = hparams.read(gguf.metadata, arch, graph.rope_mode)
        return graph, graph.read_hparams(hparams.Keys(gguf.metadata, arch), hp)
    except ModelError as error:
        raise type(error)(f"{gguf.path}: {error}") from None


def _placement(
    options: Options, devices: Sequence[Device], hp: HParams, stack: ExitStack
) -> tuple[LayerPlacement, Threads]:
    """Opens the backends, with their threads, and decides which of them gets what."""
    check_gpus(options, devices)
    backends = open_backends(devices, options.n_threads, options.split_mode, options.main_gpu)
    for backend in backends:
        stack.callback(backend.close)
    threads = Threads(backends)
    stack.callback(threads.close)
    kept = cpu_overrides(options.cpu_moe, options.n_cpu_moe, options.n_cpu_ffn, hp.n_layer)
    pairs = [*options.tensor_overrides, *kept]
    placement = place(
        backends,
        hp,
        options.n_gpu_layers,
        options.tensor_split,
        overrides=resolve_overrides(pairs, [b.device for b in backends]),
        repack=options.repack,
        host=not options.no_host,
        mmap=keeps_mapped(options.load_mode, backends),
        offload_kqv=options.offload_kqv,
        op_offload=options.op_offload,
        layer_split=options.split_mode == "layer",
    )
    return placement, threads


def _weights(
    gguf: Gguf, graph: type[Decoder[Any]], hp: HParams, placement: LayerPlacement, stack: ExitStack
) -> tuple[Weights, DecoderWeights[Any]]:
    """Declares and places the tensors of the file. Their data is not read yet."""
    weights = Weights(gguf, placement)
    stack.callback(weights.close)
    tensors = graph.declare(weights, hp)
    elsewhere = partial(_elsewhere, gguf.tensors, placement.op_offload)
    with naming(f"the weights of {gguf.path}", _LESS_WEIGHTS, elsewhere):
        weights.alloc()
    return weights, tensors


def _elsewhere(all_names: Iterable[str], op_offload: bool, too_large: Sequence[str]) -> str:
    """The options that keep tensors on the CPU that are larger than any buffer of a GPU."""
    places = on_cpu(too_large, all_names)
    advice = f"Keep what is larger on the CPU: tensor_overrides={places!r} (-ot)"
    if op_offload:
        advice += ". A prompt needs a copy as large, unless op_offload=False (--no-op-offload)"
    return advice


def _memory(options: Options, hp: HParams, placement: LayerPlacement) -> KvCaches:
    """Makes the KV caches."""
    with naming(*_cache_part(options)):
        check_room("the table of its cells", _CELL_BYTES * options.n_ctx)
        types = (options.type_k, options.type_v)
        sizes = (options.n_ctx, options.n_ubatch, options.swa_full)
        return KvCaches(hp, placement, *sizes, *types, options.v_trans)


def _cache_part(options: Options) -> tuple[str, str]:
    """The cache's name in errors, and what would need less."""
    return f"the KV cache of {options.n_ctx:,} tokens (n_ctx)", _LESS_CACHE


def _check_memory(gguf: Gguf, weights: Weights, options: Options, memory: KvCaches) -> None:
    """Raises `AllocError` if this machine lacks memory for what was only reserved so far."""
    cache = _cache_part(options)
    check_reserved((
        (f"the weights of {gguf.path}", _LESS_WEIGHTS, weights.nbytes_by_buffer_type()),
        (*cache, memory.nbytes_by_buffer_type()),
    ))  # fmt: skip

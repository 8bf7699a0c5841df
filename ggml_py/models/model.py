"""A model: weights, KV cache, scheduler and the graphs that run on them."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arguments import SIZE_MAX, whole
from .._device import Device
from .._ffi import lib
from ..enums import Type
from ..errors import ClosedError, ModelError
from ..gguf import Gguf
from ..scheduler import Scheduler
from ..tensor import TypeLike, type_of
from . import hparams as hparams_
from .archs import ARCHS
from .blocks import Shape
from .cells import pad
from .decoder import Decoder
from .hparams import HParams
from .kv_cache import KvCaches
from .placement import Placement, keep_threads, open_backends, place
from .weights import Weights

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..trace.plan import Plan

_FLASH_ATTN = ("auto", "on", "off")
_MAX_GRAPHS = 4  # a prompt, its rest, a single token, and one to spare


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
) -> Model:
    """Opens a GGUF model for evaluation. Options are llama.cpp's, with its meanings.

    `devices` are names ("rpc:HOST:PORT" for a server's, "sim:NAME" for a simulated one) or
    `Device`s, highest priority first; a CPU is added if there is none. The last `n_gpu_layers`
    layers (the output counts as one) go to the GPUs among them, by their free memory; weights that
    a GPU has no op for stay on the CPU. `n_ctx` is the number of tokens the cache holds, rounded up
    to 256, 0 for what the model was trained with; `n_ubatch` how many tokens one graph takes at
    most. `flash_attn` is "on" (or True), "off" (or False), or "auto": on where the device of each
    layer supports it. `type_k` and `type_v` are the cache's types; layers with a sliding window
    have a cache of their own, which holds the window only, unless `swa_full`. `repack` copies
    weights that the CPU multiplies with into layouts for its kernels, where it has such (buffer
    type CPU_REPACK and others); without it they stay in the mapped file.

    Weights are read when the first token is evaluated: until then, for plans, only the file's
    header is.

    Raises `ModelError` for a file that is no complete model of a known architecture and for options
    it cannot take, `GgufError`, `UnknownDeviceError`, `AllocError`.
    """
    if isinstance(flash_attn, bool):
        flash_attn = "on" if flash_attn else "off"
    _check_options(n_gpu_layers, n_ctx, n_batch, n_ubatch, n_threads, flash_attn)
    for name, value in (("repack", repack), ("swa_full", swa_full)):
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}: expected True or False")
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
            placement = place(backends, hp.n_layer, n_gpu_layers, repack)
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
            kv = KvCaches(hp, placement, n_ctx, n_ubatch, swa_full, *options)
            stack.callback(kv.close)
            model = Model(hp, placement, sched, weights, tensors, kv, n_batch, n_ubatch, flash_attn)
            model._closing = stack.pop_all()
            return model


class Model:
    """A model that was loaded, and the one sequence it evaluates. Made by `load`; `with` closes.

    `eval` adds tokens to the sequence, `reset` starts a new one. Graphs are built once per shape
    and kept; decoding token by token sets inputs and computes, nothing else.
    """

    def __init__(
        self,
        hparams: HParams,
        placement: Placement,
        sched: Scheduler,
        weights: Weights,
        tensors: Any,
        kv: KvCaches,
        n_batch: int,
        n_ubatch: int,
        flash_attn: str,
    ) -> None:
        self.hparams = hparams
        self.placement = placement
        self.weights = weights
        self.n_batch = n_batch
        self.n_ubatch = n_ubatch
        self._sched = sched
        self._tensors = tensors
        self._kv = kv
        self._graphs: dict[Shape, Decoder[Any]] = {}  # least recently used first
        self._allocated: Decoder[Any] | None = None
        self._reserved = False
        self._closed = False
        self._closing = ExitStack()
        self.flash_attn = flash_attn == "on" or (flash_attn == "auto" and self._flash_attn_fits())

    def __repr__(self) -> str:
        if self._closed:
            return "<Model closed>"
        hp = self.hparams
        names = ", ".join(b.name for b in self.placement.backends)
        return (
            f"<Model {hp.arch} {self.weights.n_params / 1e6:.1f}M, {hp.n_layer} layers on {names}, "
            f"{self.n_past} of {self.n_ctx} tokens>"
        )

    @property
    def n_ctx(self) -> int:
        """Tokens that the sequence can have: no more than a model has learned positions for."""
        return min(self._kv.n_ctx, self.hparams.n_positions or self._kv.n_ctx)

    @property
    def n_past(self) -> int:
        """Tokens that the sequence has."""
        return self._kv.n_past

    # --- running

    def eval(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
        all_logits: bool = False,
        copy: bool = True,
    ) -> npt.NDArray[np.float32]:
        """Adds `tokens` to the sequence; the logits [n_vocab] after the last of them.

        With `all_logits` those after each, [n_tokens, n_vocab]. Without `copy` they may be, to be
        read only, the memory that they were computed in: the next evaluation writes to it. When it
        fails the sequence is what it was before; or empty, where it took several graphs and a
        window has moved on. Raises `ModelError` for no tokens, a token that the vocabulary does not
        have, and more tokens than the context has room for.
        """
        self._check_open()
        return self._eval(self._check_tokens(tokens), all_logits, copy)

    def _eval(
        self, ids: npt.NDArray[np.int32], all_logits: bool, copy: bool
    ) -> npt.NDArray[np.float32]:
        """`eval` of ids that were checked."""
        n_past, ubatches = self.n_past, self._ubatches(len(ids))
        rows: list[npt.NDArray[np.float32]] = []
        try:
            for start, stop in ubatches:
                n = stop - start
                wanted = n if all_logits else int(stop == len(ids))
                self._kv.take(n_past + start, n)
                shape = Shape(n, self._kv.n_kv(), wanted)
                builder = self._compute(shape, ids[start:stop], n_past + start)
                if wanted:
                    logits = builder.read_logits()
                    rows.append(logits.copy() if copy or len(ubatches) > 1 else logits)
        except BaseException:
            self._kv.rewind()
            raise
        self._kv.n_past = n_past + len(ids)
        logits = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return logits if all_logits else logits.reshape(-1)

    def generate(self, tokens: Sequence[int], n: int) -> list[int]:
        """Continues the sequence with `tokens` and then `n` tokens, each the likeliest next one.

        All but the last of the n are part of the sequence afterwards. Raises `ModelError` as `eval`
        does, before anything is computed when the context has no room for all of them.
        """
        self._check_open()
        if n < 0:
            raise ModelError(f"n={n}: expected the number of tokens to generate")
        self._check_room(len(tokens) + max(n - 1, 0))
        out: list[int] = []
        last = np.empty(1, np.int32)
        logits = self.eval(tokens, copy=False)
        while len(out) < n:
            last[0] = logits.argmax()
            out.append(int(last[0]))
            if len(out) < n:
                logits = self._eval(last, all_logits=False, copy=False)
        return out

    def reset(self) -> None:
        """Starts a new sequence."""
        self._check_open()
        self._kv.reset()

    def plan(self, n_tokens: int = 1, n_past: int = 0) -> Plan:
        """Where every node would run for a graph of n_tokens tokens after n_past others.

        Allocates no compute buffers and leaves the model as it is. Raises `ModelError` for more
        tokens than `n_ubatch` or the context takes.
        """
        self._check_open()
        if not 1 <= n_tokens <= self.n_ubatch:
            raise ModelError(
                f"n_tokens={n_tokens}: one graph takes 1 to {self.n_ubatch} tokens (n_ubatch)"
            )
        if n_past < 0 or n_past + n_tokens > self.n_ctx:
            raise ModelError(
                f"n_past={n_past} and n_tokens={n_tokens}: the context has {self.n_ctx} tokens"
            )
        shape = Shape(n_tokens, self._kv.n_kv(n_past + n_tokens), 1)
        with (
            closing(self._build(shape, self.flash_attn)) as builder,
            self._own_scheduler() as sched,
        ):
            _pin(sched, builder)
            return sched.plan(builder.graph)

    # --- graphs

    def _ubatches(self, n: int) -> list[tuple[int, int]]:
        """Ranges of at most n_ubatch tokens within batches of n_batch."""
        if n <= self.n_ubatch:
            return [(0, n)]
        return [
            (start, min(start + self.n_ubatch, batch + self.n_batch, n))
            for batch in range(0, n, self.n_batch)
            for start in range(batch, min(batch + self.n_batch, n), self.n_ubatch)
        ]

    def _build(self, shape: Shape, flash_attn: bool) -> Decoder[Any]:
        builder = ARCHS[self.hparams.arch](
            self.hparams, self.placement, self._kv, shape, flash_attn, self._sched.graph_size
        )
        builder.build(self._tensors)
        return builder

    def _compute(self, shape: Shape, ids: npt.NDArray[np.int32], n_past: int) -> Decoder[Any]:
        self.weights.read()
        builder = self._allocate(shape)
        builder.set_inputs(ids, n_past)
        try:
            self._sched.compute(builder.graph)
        except BaseException:
            self._allocated = None  # what a stopped compute leaves behind is not used again
            raise
        return builder

    def _allocate(self, shape: Shape) -> Decoder[Any]:
        """The graph of that shape, built if need be, with memory on the scheduler."""
        if self._allocated is not None and self._allocated.shape == shape:
            return self._allocated
        builder = self._graphs.pop(shape, None)
        self._sched.reset()
        self._allocated = None
        self._reserve()
        if builder is None:
            builder = self._build(shape, self.flash_attn)
        self._graphs[shape] = builder
        if len(self._graphs) > _MAX_GRAPHS:
            self._graphs.pop(next(iter(self._graphs))).close()
        _pin(self._sched, builder)
        self._sched._alloc(builder.graph)
        builder.share()
        self._allocated = builder
        return builder

    def _reserve(self) -> None:
        """Compute buffers for the largest graph at once, so that none is made anew later on."""
        if self._reserved:
            return
        shape = Shape(self.n_ubatch, self._kv.n_kv(self._kv.n_ctx), 1)
        with closing(self._build(shape, self.flash_attn)) as builder:
            _pin(self._sched, builder)
            self._sched.reserve(builder.graph)
        self._reserved = True

    def _own_scheduler(self) -> Scheduler:
        """Another scheduler on the same backends, to plan on while ours has a graph allocated."""
        return Scheduler(
            self._sched.backends,
            self._sched.graph_size,
            buffer_types=self.placement.compute_buffer_types(),
        )

    def _flash_attn_fits(self) -> bool:
        """Whether flash attention would run on the device of each layer, in a decoding graph."""
        builder = self._build(Shape(1, self._kv.n_kv(self._kv.n_ctx), 1), flash_attn=True)
        with closing(builder), self._own_scheduler() as sched:
            _pin(sched, builder)
            with sched._deciding(builder.graph):
                lib.ggml_backend_sched_split_graph(sched.ptr, builder.graph.ptr)
            return all(
                lib.ggml_backend_sched_get_tensor_backend(sched.ptr, node.ptr)
                == self.placement.backend(il).ptr
                for il, node in enumerate(builder.flash_attn_nodes)
            )

    # --- checks

    def _check_tokens(self, tokens: Any) -> npt.NDArray[np.int32]:
        if type(tokens) is list and len(tokens) == 1:  # decoding: numpy's checks take longer
            token = tokens[0]
            if type(token) is int and 0 <= token < self.hparams.n_vocab:
                self._check_room(1)
                return np.array(token, np.int32, ndmin=1)
        try:
            ids = np.asarray(tokens)
        except ValueError:  # lists of different lengths
            ids = np.empty((0, 0))
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ModelError(f"tokens {reprlib.repr(tokens)}: expected a list of token ids (int)")
        if not ids.size:
            raise ModelError("no tokens: give at least one token id")
        if ids.min() < 0 or ids.max() >= self.hparams.n_vocab:
            bad = ids[(ids < 0) | (ids >= self.hparams.n_vocab)]
            raise ModelError(
                f"token {bad[0]} is not in the vocabulary: ids are 0 to {self.hparams.n_vocab - 1}"
            )
        self._check_room(ids.size)
        return np.ascontiguousarray(ids, np.int32)

    def _check_room(self, n: int) -> None:
        if self.n_past + n > self.n_ctx:
            raise ModelError(
                f"the context is full: {self.n_past} tokens and {n} more are {self.n_past + n}, "
                f"n_ctx is {self.n_ctx}. Call reset(), or load with a larger n_ctx"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this Model is closed: make another, or close it later")

    # --- lifetime

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Frees everything: graphs, scheduler, cache, weights, backends."""
        if self._closed:
            return
        self._closed = True
        self._allocated = None
        self._sched.close()
        for builder in self._graphs.values():
            builder.close()
        self._graphs.clear()
        self._closing.close()

    def __enter__(self) -> Model:
        self._check_open()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


def _pin(sched: Scheduler, builder: Decoder[Any]) -> None:
    for tensor, backend in builder.pins:
        sched.set_tensor_backend(tensor, backend)


def _check_options(
    n_gpu_layers: int,
    n_ctx: int,
    n_batch: int,
    n_ubatch: int,
    n_threads: int | None,
    flash_attn: str,
) -> None:
    for name, value, least in (
        ("n_gpu_layers", n_gpu_layers, 0),
        ("n_ctx", n_ctx, 0),
        ("n_batch", n_batch, 1),
        ("n_ubatch", n_ubatch, 1),
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

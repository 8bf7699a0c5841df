"""The graphs of a model: built once per shape, kept, planned and computed on one scheduler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..backends.buffer import BufferType
from ..boundary.ffi import lib
from ..errors import AllocError, BusyError, MissingFunctionError
from ..llama.choices import no_pipeline, refused_op
from ..llama.decodes import Decode, DecodedUbatch, Differs, differing
from ..scheduler.callbacks import EvalFunction, both
from ..scheduler.refusal import deciding
from ..scheduler.scheduler import Scheduler
from ..scheduler.strict import without_requirements
from .archs import ARCHS
from .build.decoder import Decoder
from .cache.kv_caches import KvCaches, Shape
from .cache.ubatch import Ubatch
from .decode_one import decode_one, takes_one
from .file.free_memory import check_room, is_machines, naming
from .file.hparams import HParams
from .file.placement import LayerPlacement
from .file.threads import Threads
from .file.weights import Weights

if TYPE_CHECKING:
    from ..llama.choices import Choice
    from ..plan import Plan
    from ..scheduler.recording import Recording

_MAX_GRAPHS = 4  # a token, a prompt, its rest, and one to spare
_LOST, _OTHER = lib.GP_DECODE_LOST, lib.GP_DECODE_OTHER
_LESS_COMPUTE = (
    "To need less, evaluate fewer tokens at once (n_ubatch, -ub), or load with a smaller n_ctx "
    "(-c) or fewer layers on GPUs (n_gpu_layers, -ngl). The model stays usable"
)
log = logging.getLogger("ggml_py")


class Graphs:
    """Graphs by their shapes; one of them has memory on the scheduler.

    `flash_attn` is "on", "off" or "auto". For "auto" a trial plan decides.
    """

    def __init__(
        self,
        hparams: HParams,
        placement: LayerPlacement,
        threads: Threads,
        sched: Scheduler,
        weights: Weights,
        tensors: Any,
        memory: KvCaches,
        n_ubatch: int,
        n_outputs_max: int,
        flash_attn: str,
    ) -> None:
        self._hparams = hparams
        self._placement = placement
        self._threads = threads
        self._sched = sched
        self._weights = weights
        self._tensors = tensors
        self._memory = memory
        self._largest = memory.full_shape(n_ubatch, min(n_ubatch, n_outputs_max))
        self._kept: dict[Shape, Decoder[Any]] = {}  # least recently used first
        self._allocated: Decoder[Any] | None = None
        self._allocation = 0  # the scheduler's count for that graph
        self._why = "the first graph"  # why none is allocated
        self._ubatches: list[DecodedUbatch] = []  # of the last decode
        self.n_reused = 0
        self.watching: list[list[Decode]] = []  # lists that get each decode
        self._reserved = False  # whether it was tried
        self._fits = False  # whether it worked
        self._sizes: dict[BufferType, int] | None = None  # see `compute_sizes`
        self._auto = flash_attn == "auto"
        self.flash_attn = flash_attn == "on" or (flash_attn == "auto" and self._flash_attn_fits())

    def compute(self, shape: Shape, ubatch: Ubatch) -> Decoder[Any]:
        """Evaluates a ubatch whose tokens have their cells, and returns the graph with its logits.
        Reads the weights before the first ubatch."""
        self._weights.read()
        builder = self._allocate(shape)
        builder.set_inputs(ubatch)
        self._ubatches[-1] = self._ubatches[-1]._replace(inputs=builder.inputs_set)
        try:
            self._sched.compute(builder.graph)
        except BaseException:
            self._forget("the previous compute failed")  # its remains must not be used again
            raise
        return builder

    def compute_one(self, token: int, greedy: bool) -> Decoder[Any] | None:
        """Evaluates one more token and returns the graph with its logits, and with
        `greedy` the likeliest token in its `one`. If the token needs another graph than the
        allocated one, or if that may have changed, it does nothing and returns None.

        If it fails the sequence is what it was before.
        """
        builder, sched = self._allocated, self._sched
        if (
            builder is None
            or builder.one is None
            or sched.allocation != self._allocation  # other code has used the scheduler
        ):
            return None
        one, graph = builder.one, builder.graph
        call, args = lib.gp_decode_one, (one, token, 0, greedy)
        try:
            sched.compute_by(graph, call, args, checked=True)
            pos: int = one.pos
            if pos == _LOST:
                one.changes = lib.gp_changes()  # before the check, to notice changes during it
                sched.compute_by(graph, call, args)
                pos = one.pos
        except BusyError:
            raise  # the unfinished compute is another thread's
        except BaseException:
            self._forget("the previous compute failed")
            if one.pos >= 0:
                self._memory.rm(one.pos)
            raise
        if pos < 0:
            return None
        one.pos = _OTHER
        self.n_reused += 1
        if self.watching:
            inputs = builder.inputs_set
            self._ubatches = [DecodedUbatch(1, 1, True, False, (), "", inputs, native=True)]
            self.end_decode()
        return builder

    # --- the decode flow

    def begin_decode(self) -> None:
        """Starts a decode: later computes belong to it. A `compute_one` is a decode of its own."""
        self._ubatches = []

    def end_decode(self) -> None:
        """Ends a decode, and adds it to the lists of `Model.watch`."""
        decode = Decode(tuple(self._ubatches))
        for decodes in self.watching:
            decodes.append(decode)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that plans and computes the graphs."""
        return self._sched

    def _forget(self, why: str) -> None:
        """Makes the next decode allocate its graph anew."""
        self._allocated, self._why = None, why

    def _note(self, shape: Shape, built: bool, differs: tuple[Differs, ...] = ()) -> None:
        """Records a ubatch of that shape: on the previous graph or, if something differs, on
        another one."""
        reused = self._allocated is not None and not differs
        why = "" if self._allocated is not None else self._why
        self._ubatches.append(
            DecodedUbatch(shape.n_tokens, shape.n_outputs, reused, built, differs, why, (), False)
        )
        self.n_reused += reused

    # --- graphs and their memory

    def plan(self, shape: Shape) -> Plan:
        """The plan of a graph of that shape. It is made on another scheduler, because the model's
        own may have a graph allocated."""
        with closing(self.built(shape)) as builder, self._scheduler() as sched:
            _pin(sched, builder)
            return sched.plan(builder.graph)

    def record(self, per_op: bool) -> Recording:
        """See `Model.record`."""
        self._reserve()  # may make another scheduler
        return self._sched.record(per_op)

    @contextmanager
    def watched(self, look: EvalFunction) -> Iterator[None]:
        """In the block `look` sees nodes, as the scheduler's own eval callback does."""
        self._reserve()  # may make another scheduler
        before = self._sched.eval_callback
        self._sched.set_eval_callback(look if before is None else both(before, look))
        self._forget("the scheduler had an eval callback")
        try:
            yield
        finally:
            self._sched.set_eval_callback(before)
            self._forget("the scheduler had an eval callback")

    def close(self) -> None:
        """Closes the scheduler and all graphs."""
        self._allocated = None
        self._sched.close()
        for builder in self._kept.values():
            builder.close()
        self._kept.clear()

    def built(self, shape: Shape) -> Decoder[Any]:
        """A new graph of that shape, which the caller closes."""
        return self._build(shape, self.flash_attn)

    def _build(self, shape: Shape, flash_attn: bool) -> Decoder[Any]:
        builder = ARCHS[self._hparams.arch](
            self._hparams, self._placement, self._memory, shape, flash_attn, self._sched.graph_size
        )
        builder.build(self._tensors)
        return builder

    def _allocate(self, shape: Shape) -> Decoder[Any]:
        """The graph of that shape with memory on the scheduler, built if necessary."""
        before, sched = self._allocated, self._sched
        if before is not None and sched.allocation != self._allocation:
            self._forget("other code has reset the scheduler, or given it a graph")
            before = None
        if before is not None and before.shape == shape:
            self._note(shape, built=False)
            return before
        builder = self._kept.pop(shape, None)
        if builder is not None and builder.graph.closed:
            builder = None
        differs = () if before is None else differing(_sizes(before.shape), _sizes(shape))
        self._note(shape, builder is None, differs)
        self._sched.reset()
        self._forget("a graph could not be allocated")
        self._reserve()
        if builder is None:
            builder = self._build(shape, self.flash_attn)
        self._kept[shape] = builder
        if len(self._kept) > _MAX_GRAPHS:
            self._kept.pop(next(iter(self._kept))).close()
        self._alloc(builder)
        builder.share()
        builder.one = decode_one(self._sched, builder) if takes_one(builder) else None
        self._allocated, self._allocation = builder, self._sched.allocation
        return builder

    def _reserve(self) -> None:
        """Makes compute buffers for the largest graph first, so they need not grow later. If these
        do not fit, smaller ones may."""
        if self._reserved:
            return
        self._reserved = True
        with closing(self._build(self._largest, self.flash_attn)) as builder:
            self._fits = self._reserves(builder)
            if not self._fits and self._placement.parallel:
                self._make_sequential()
                self._fits = self._reserves(builder)

    def _reserves(self, builder: Decoder[Any]) -> bool:
        """Tries to make compute buffers for a graph. Returns whether there are some now."""
        try:
            self._check_host(builder)
            self._sched.reserve(builder.graph)
        except AllocError as error:
            n_ubatch = self._largest.n_tokens
            log.warning("no compute buffers for graphs of n_ubatch=%d: %s", n_ubatch, error)
            self._sched.reset()
            return False
        return True

    def _make_sequential(self) -> None:
        """Makes another scheduler without pipeline parallelism, which needs only one copy of each
        input. llama.cpp does the same."""
        log.warning("trying again without pipeline parallelism")
        self._sched.close()
        self._placement = replace(self._placement, pipeline=False)
        self._sizes = None  # there are fewer copies now
        self._sched = self._scheduler()

    def _alloc(self, builder: Decoder[Any]) -> None:
        """Gives a graph its memory. Raises `AllocError`."""
        n_tokens, n_ubatch = builder.shape.n_tokens, self._largest.n_tokens
        tokens = f"{n_tokens:,} token{'s' * (n_tokens != 1)}"
        part = f"the compute buffers of {tokens} (n_ubatch={n_ubatch:,})"
        with naming(part, _LESS_COMPUTE):
            if self._fits:
                _pin(self._sched, builder)
            else:
                self._check_host(builder)
            self._sched.alloc_without_plan(builder.graph)
        self._threads.fit(self._sched, builder.graph)

    def _check_host(self, builder: Decoder[Any]) -> None:
        """Pins nodes, and raises `AllocError` if the machine lacks memory for the graph."""
        sched = self._sched
        _pin(sched, builder)
        try:
            sizes = sched.reserve_size(builder.graph)
        except MissingFunctionError:
            return  # this release or build cannot measure
        for backend, nbytes in zip(sched.backends, sizes.values(), strict=True):
            buft = sched.buffer_type(backend)
            if is_machines(buft):
                check_room(buft.name, nbytes - sched.buffer_size(backend))

    def _scheduler(self) -> Scheduler:
        """Makes another scheduler on the same backends."""
        return self._placement.scheduler(self._sched.graph_size)

    @property
    def _smallest(self) -> Shape:
        """The shape of a graph with one token."""
        return self._memory.full_shape(1, 1)

    def compute_sizes(self) -> dict[BufferType, int] | None:
        """Bytes of the compute buffers by type, as llama.cpp reserves them: for the largest graph,
        and for one with one token. None in releases that cannot measure.
        C: llama_context::sched_reserve"""
        if self._sizes is not None:
            return self._sizes
        found: dict[BufferType, int] = {}
        with self._scheduler() as sched:
            most = [0] * len(sched.backends)
            for shape in (self._largest, self._smallest):
                with closing(self._build(shape, self.flash_attn)) as builder:
                    _pin(sched, builder)
                    try:
                        sizes = sched.reserve_size(builder.graph).values()
                    except MissingFunctionError:
                        return None
                    sched.reset()
                most = list(map(max, most, sizes))
            for backend, nbytes in zip(sched.backends, most, strict=True):
                buft = sched.buffer_type(backend)
                found[buft] = found.get(buft, 0) + nbytes
        self._sizes = found
        return found

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """What llama.cpp would have decided before it plans, as `LlamaModel.choices`."""
        place = self._placement
        found = []
        if self._auto and not self.flash_attn:
            builder = self._build(self._smallest, flash_attn=True)
            with closing(builder), self._scheduler() as sched, without_requirements():
                _pin(sched, builder)
                plan = sched.plan(builder.graph)
                at = {node.ptr: i for i, node in enumerate(builder.graph.nodes)}
                nodes = [plan.node(at[node.ptr]) for node in builder.flash_attn_nodes]
            for il, node in enumerate(nodes):
                device = place.backend(il).device
                if node.backend != place.backend(il).name:
                    args = ("Flash Attention", plan, node, il, device, place.offload_kqv)
                    found.append(refused_op(*args))
                    break
        if place.parallel or not place.pipeline:
            return tuple(found)
        rest = [b.device for b in place.backends[:-1] if b not in place.gpus]
        mode = "layer" if place.layer_split else "none"
        return (*found, *no_pipeline(
            [b.device for b in place.gpus], rest, n_gpu_layers=place.n_gpu_layers,
            n_layer=place.n_layer, split_mode=mode, offload_kqv=place.offload_kqv,
            overrides=bool(place.overrides),
        ))  # fmt: skip

    def _flash_attn_fits(self) -> bool:
        """Whether flash attention would run on each layer's own device, in a decoding graph."""
        builder = self._build(self._smallest, flash_attn=True)
        with closing(builder), self._scheduler() as sched:
            _pin(sched, builder)
            with deciding(sched, builder.graph):
                lib.ggml_backend_sched_split_graph(sched.ptr, builder.graph.ptr)
            return all(
                lib.ggml_backend_sched_get_tensor_backend(sched.ptr, node.ptr)
                == self._placement.backend(il).ptr
                for il, node in enumerate(builder.flash_attn_nodes)
            )


def _sizes(shape: Shape) -> dict[str, int]:
    """The parameters that a graph is built for, by upstream's names."""
    n_kv = dict(zip(("n_kv", "n_kv_swa"), shape.n_kv, strict=False))
    return {"n_tokens": shape.n_tokens, "n_outputs": shape.n_outputs, **n_kv}


def _pin(sched: Scheduler, builder: Decoder[Any]) -> None:
    for tensor, backend, why in builder.pins:
        sched.set_tensor_backend(tensor, backend, by="llama.cpp", why=why)

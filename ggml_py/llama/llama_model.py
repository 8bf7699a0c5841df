"""A model of libllama."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.arguments import integer
from ..boundary.ffi import ffi, text
from ..boundary.handle import Handle
from ..boundary.uses import in_use, reading
from ..errors import ArgumentError, DamagedFileError, ModelError
from ..gguf.header_file import whole
from ..gguf.reader import Gguf
from ..graphs.graph import Graph
from ..memory.shortfalls import UncutBuffer
from ..plan import MemoryRow
from ..scheduler.borrowed import BorrowedScheduler
from ..tensors.tensor import Tensor
from ..trace.choice import Choice
from ..typed import typed
from .batch import POS_MAX
from .batch_checks import checked_tokens
from .choices import choices_of
from .command_line import CommandLine
from .evaluating import LlamaContext
from .library import Library
from .likeliest import likeliest
from .loaded_again import Again, Changes, reload
from .memory import ContextMemory, Reserved, estimate, fit_print, give_up_pipeline, measure
from .model import check_flags
from .model_facts import model_made, with_fit
from .model_sizes import ModelSizes
from .native import ContextHandle, give_threads, lacking, load_model, naming, new_context
from .observer import ContextRecording
from .options import Fit, Options
from .overrides import warn_of_unmatched
from .params import Params
from .plans import Look, build, plan_of, reserved_plan_of, trace
from .room import rooms
from .sequences import SequenceCalls
from .tokenizer import Tokenizer
from .watching import Looking, watched

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..backends.device import Device
    from ..plan import Plan
    from ..scheduler.recording import Recording
    from .decodes import Decode
    from .generation import Sample

_PLANNING = "planning"
_ONLY_READ = "this graph is libllama's, without weights: it can be read and planned, not computed"
log = logging.getLogger("ggml_py")


class LlamaModel(SequenceCalls):
    """A `Model` that libllama has loaded, with all that llama.h offers. Made by `open`.

    Plans need the header only. The first evaluation loads the model once more, with its weights.
    `pipeline_lacks` is what devices lack for pipeline parallelism: libllama then goes on without.
    """

    graphs = _promised_graphs = "libllama"

    def __init__(
        self,
        library: Library,
        gguf: Gguf,
        arch: str,
        options: Options,
        fit: Fit | None = None,
        only_header: str = "",
        line: CommandLine | None = None,
        again: Callable[[Options], LlamaModel] | None = None,
    ) -> None:
        """`again` opens the model with other options."""
        self._library = library
        self.path, self.metadata = gguf.path, gguf.metadata
        self._n_layer = int(np.max(self.metadata.get(f"{arch}.block_count", 0)))
        self._params = Params(library, options, self._n_layer, line)
        self._fit, self._fits = fit, True
        self.rooms = rooms(self._params.devices)  # the devices' memory before it was opened
        self.left_out = () if line is None else line.left_out
        self._handles: list[Handle] = []  # in the order in which they are made
        self._only_header = only_header
        self._stamps = gguf._stamps
        self._weights, self._opened_again = tuple(gguf.tensors), again
        patterns = (pattern for pattern, _place in self.fitted.get("tensor_overrides", ()))
        warn_of_unmatched(patterns, self._weights)
        learned = gguf.tensors.get("position_embd.weight")
        self._n_positions = POS_MAX if learned is None else int(learned.ne[1])
        self._made = model_made(gguf, options, self._params.devices, line)
        self._running: LlamaContext | None = None
        self._looking: Looking | None = None
        try:
            with whole(gguf) as path, self._naming():
                if fit is not None:
                    self._fits = self._params.fit(path, fit.margins, fit.n_ctx)
                self._params.choose_accelerators()
                with self._params.planning():
                    self._model = load_model(
                        library, path, self._params.model, self._params.devices
                    )
            self._handles.append(self._model)
            self._made = with_fit(self._made, self.fit_arguments)
            with self._naming():
                self._context = new_context(library, self._model, self._params)
            self._handles.append(self._context)
            self.pipeline_lacks = give_up_pipeline(
                library, self._context, self.rooms, lambda: self._measured
            )
            if self.pipeline_lacks:
                del self._measured
            if options.progress is not None:
                self._loaded()
        except BaseException:
            self.close()
            raise
        self._tokenizer = Tokenizer(library, self._model)

    @property
    def fitted(self) -> dict[str, Any]:
        """The options that `fit` may choose, as they are now."""
        return self._params.fitted

    @property
    def fit_arguments(self) -> str:
        """What `fit` has chosen, as options of llama.cpp's programs, the same as llama-fit-params
        prints: "-c 4096 -ngl 20 -ts 3,1". Empty without `fit`, and if it could not: see `fits`."""
        return self._params.fit_arguments if self._fit is not None and self._fits else ""

    @property
    def fits(self) -> bool:
        """False if `fit` found no numbers that fit, or none that it may change. The model is then
        opened as it was given, as llama.cpp's programs do."""
        return self._fits

    def _naming(self) -> AbstractContextManager[None]:
        return naming(self.path)

    def __repr__(self) -> str:
        if self.closed:
            return "<LlamaModel closed>"
        return (
            f"<LlamaModel {self.description} on {', '.join(d.name for d in self._params.devices)}>"
        )

    @property
    def description(self) -> str:
        """What libllama calls it: "llama 7B Q4_0". C: llama_model_desc"""
        out = ffi.new("char[256]")
        self._library.lib.llama_model_desc(self._model.ptr, out, 256)
        return text(out)

    @cached_property
    def hparams(self) -> ModelSizes:
        """See `Model`. C: llama_model_n_embd, llama_model_n_head and others"""
        lib, model = self._library.lib, self._model.ptr
        return ModelSizes(
            self.arch,
            int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))),
            int(lib.llama_model_n_ctx_train(model)),
            int(lib.llama_model_n_embd(model)),
            self._n_layer,
            int(lib.llama_model_n_head(model)),
            int(lib.llama_model_n_head_kv(model)),
        )

    @property
    def n_expert(self) -> int:
        """Experts of a layer; 0 for a dense model."""
        return int(np.max(self.metadata.get(f"{self.arch}.expert_count", 0)))

    @property
    def has_gpu(self) -> bool:
        """Whether layers may be on another device than the CPU."""
        return bool(self._params.gpus)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that it was opened for."""
        return tuple(self._params.devices)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template."""
        self._check_open()
        return self._tokenizer

    @property
    def n_ctx(self) -> int:
        """How many tokens all sequences together can have. C: llama_n_ctx"""
        return int(self._library.lib.llama_n_ctx(self._context.ptr))

    @property
    def n_ctx_seq(self) -> int:
        """How many tokens one sequence can have. C: llama_n_ctx_seq"""
        return int(self._library.lib.llama_n_ctx_seq(self._context.ptr))

    @property
    def n_batch(self) -> int:
        """The most tokens of one evaluation. C: llama_n_batch"""
        return int(self._library.lib.llama_n_batch(self._context.ptr))

    @property
    def n_ubatch(self) -> int:
        """The most tokens of one graph. C: llama_n_ubatch"""
        return int(self._library.lib.llama_n_ubatch(self._context.ptr))

    @property
    def n_seq_max(self) -> int:
        """How many sequences there are. C: llama_n_seq_max"""
        return int(self._library.lib.llama_n_seq_max(self._context.ptr))

    @property
    def flash_attn(self) -> bool:
        """Whether attention is a single op."""
        return bool(self._state().flash_attn)

    @property
    def _full_offload(self) -> bool:
        n_gpu_layers = int(self._params.model.n_gpu_layers)
        return n_gpu_layers < 0 or n_gpu_layers > self._n_layer

    def _state(self) -> Any:
        found = self._library.ffi.new("struct gpl_context_state *")
        self._library.lib.gpl_read_state(self._context.ptr, found)
        return found

    # --- plans

    def _plan(self, n_tokens: int, n_past: int, n_seqs: int) -> Plan:
        with self._context.using(_PLANNING):
            args = (self._library, self._context.ptr, self._full_offload, n_tokens, n_past, n_seqs)
            return plan_of(*args)

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """What llama.cpp decided before it plans: fused ops it does without, why there is no
        pipeline parallelism, what --fit put on the CPU. C++: llama_context::resolve_fused_ops"""
        margins = self._fit.margins if self._fit is not None and self._fits else None
        with self._context.using(_PLANNING):
            return choices_of(self._library, self._context, self._params, self._n_layer, margins)

    def reserved_plan(self, n_tokens: int | None = None) -> Plan:
        """The plan of a graph that libllama reserves memory for when it starts: a full cache, and
        n_ubatch tokens or, with n_tokens=n_seq_max, one in each sequence.
        C: llama_context::sched_reserve"""
        most = self._n_reserved
        n = most if n_tokens is None else integer("n_tokens", n_tokens, 1, self.n_ubatch)
        plan = self._reserved(n, self.n_seq_max)
        return self._promised(plan, n, None, self.n_seq_max)

    @property
    def _n_reserved(self) -> int:
        return min(self.n_ctx, self.n_ubatch)

    def _reserved(self, n_tokens: int, n_seqs: int, look: Look | None = None) -> Plan:
        with self._context.using(_PLANNING):
            args = (self._library, self._context.ptr, self._full_offload, n_tokens, n_seqs)
            return reserved_plan_of(*args, look)

    @property
    def scheduler(self) -> BorrowedScheduler:
        """libllama's scheduler, to look at (`state`, `inspect`, `reallocations`): that of the model
        with its weights, after an evaluation, otherwise the one that plans."""
        if self._running is not None:
            return self._running.scheduler
        return self._context.scheduler

    @typed
    @contextmanager
    def graph(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1) -> Iterator[Graph]:
        """See `Model`. It cannot be computed, as its weights have no data."""
        self._check_shape(n_tokens, n_past, n_seqs)
        with self._context.using(_PLANNING):
            native = build(self._library, self._context.ptr, n_tokens, n_past, n_seqs)
            graph = Graph._borrow(native, only_read=_ONLY_READ)
            try:
                yield graph
            finally:
                graph.close()
                self._library.lib.gpl_forget(self._context.ptr)

    def _loads_again(self) -> Again | None:
        return None if self._opened_again is None else self._again

    def _weight_names(self) -> Iterable[str]:
        return self._weights

    @contextmanager
    def _again(self, changes: Changes) -> Iterator[LlamaModel]:
        """The same model under changes, while devices answer as assumed."""
        assert self._opened_again is not None
        fitted = self.fitted if self._fit is not None and self._fits else {}
        options = replace(self._params.options, progress=None, **fitted)
        again = reload(changes, options, self.scheduler.backends)
        with again.assuming(), self._opened_again(replace(options, **again.options)) as model:
            yield model

    @property
    def memory(self) -> tuple[MemoryRow, ...]:
        """Bytes of the buffers of each type: weights, cache, compute and outputs, as llama.cpp
        allocates them for a context with these options. With split_mode "tensor" they are each
        GPU's part. C: llama_get_memory_breakdown, ggml_gallocr_reserve_n"""
        self._check_open()
        return self._measured.rows

    @property
    def uncut_buffers(self) -> tuple[UncutBuffer, ...]:
        """The largest buffer of each type and kind that is allocated in one piece."""
        return self._measured.uncut

    @property
    def reserved(self) -> Reserved:
        """The graphs that libllama reserves memory for, as its log describes them."""
        return self._measured.reserved

    @cached_property
    def _measured(self) -> ContextMemory:
        names = tuple(device.name for device in self._params.gpus)
        order = tuple(room.device for room in self.rooms)
        ctx, n, n_seqs = self._context.ptr, self._n_reserved, self.n_seq_max
        return measure(self._library, ctx, self._reserved, self.arch, n, n_seqs, names, order)

    @property
    def estimate(self) -> tuple[MemoryRow, ...]:
        """`memory` as libllama estimates it before it allocates anything: --fit rests on it, and
        llama-fit-params prints it. C: llama_get_memory_breakdown"""
        if self._params.options.split_mode == "tensor":
            return ()
        return estimate(self._library, self._context.ptr)

    def fit_print(self) -> str:
        """What llama-fit-params of this release prints with --fit-print on, which is `estimate` by
        device: "CUDA0 1200 448 263 ", and so on, in whole MiB; the last line is for host memory.

        That program maps no file, which puts weights elsewhere: open the model with
        load_mode="none". Otherwise this raises `ModelError`. C++: common_fit_print
        """
        return fit_print(self._library, self._model.ptr, self._context.ptr, self._params)

    # --- running

    @property
    def n_past(self) -> int:
        """The next position of sequence 0."""
        return self.seq_pos_max(0) + 1

    @property
    def n_reused(self) -> int:
        """How many graphs were used again for the next tokens, instead of being built.
        C: llama_perf_context_data.n_reused"""
        self._check_open()
        running = self._running
        if running is None:
            return 0
        with reading(running.context):
            return running.n_reused()

    def eval(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
        all_logits: bool = False,
        copy: bool = True,
        seq: int = 0,
        watch: Sequence[str] = (),
    ) -> Any:
        """See `Model`."""
        if type(all_logits) is not bool or type(copy) is not bool:
            check_flags(all_logits, copy)
        seq, values = self._seq(seq), watched(watch)
        if values is not None:
            self._check_whole("watch")
        context = self._loaded()
        if type(tokens) is not list or len(tokens) != 1:  # one token is checked where it is used
            tokens = self._check_tokens(tokens, seq)
            self._check_room(len(tokens), seq)
        if values is None:
            return context.eval(tokens, all_logits, seq, self._looking)
        looking = Looking(values.look, self._looking)
        logits = context.eval(tokens, all_logits, seq, looking, values.end_graph)
        return logits, values.by_name()

    @typed
    @contextmanager
    def look_at_nodes(self, look: Callable[[Tensor, bool], bool]) -> Iterator[None]:
        """See `Model`. Raises `ModelError` with split_mode "tensor"."""
        self._check_whole("look_at_nodes")
        self._check_open()
        before, self._looking = self._looking, Looking(look, self._looking)
        try:
            yield
        finally:
            self._looking = before

    def _check_whole(self, what: str) -> None:
        if self._params.options.split_mode == "tensor":
            raise ModelError(
                f'{what}: with split_mode "tensor" each device has a part of a node, and upstream '
                "gives none of them: use another split_mode (-sm)"
            )

    def encode(self, tokens: Sequence[int]) -> None:
        """Gives a model with an encoder (T5) the text that its decoder reads. Raises `ModelError`
        for a model without one. C: llama_encode"""
        self._loaded().encode(tokens)

    def embed(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The embedding of a text, [n_embd]; a model that does not pool gives one per token,
        [n_tokens, n_embd]. Empties the sequences, before and after. C: llama_get_embeddings_seq"""
        return self._loaded().embed(tokens)

    def reset(self) -> None:
        """Empties all sequences."""
        self._check_open()
        if self._running is not None:
            self._running.reset()

    def _check_tokens(self, tokens: Any, _seq: int) -> npt.NDArray[np.int32]:
        return checked_tokens(tokens, self.n_vocab)

    def _check_room(self, n: int, seq: int) -> None:
        n_past = self.seq_pos_max(seq) + 1
        gaps = self._running is not None and self._running.has_gaps
        most = min(self.n_ctx_seq, self._n_positions) if self._bounded else self._n_positions
        if n_past + n > most and (most == self._n_positions or not gaps):
            raise ModelError(
                f"the context is full: {n_past} of {most} tokens (n_ctx) are used, so "
                f"there is no room for {n} more. Remove tokens (reset, seq_rm), or load with a "
                "larger n_ctx (-c)"
            )

    @property
    def _bounded(self) -> bool:
        """Whether the context bounds the number of tokens: a recurrent state does not."""
        return not self._library.lib.llama_model_is_recurrent(self._model.ptr)

    def _sampled(self, tokens: Any, seq: int, sample: Sample) -> Any:
        return sample(self.eval(tokens, seq=seq))

    def _likeliest_after(self, token: int, seq: int) -> int:
        running = self._running
        if running is None or self._looking is not None or running.observer:
            return likeliest(self.eval([token], seq=seq))
        return running.likeliest_after(token, seq)

    @property
    def eog_tokens(self) -> frozenset[int]:
        """The tokens that end a generation. C: llama_vocab_is_eog"""
        return self.tokenizer.eog

    @typed
    def record(self, per_op: bool = False) -> Recording:
        """See `Model`. Reads the weights. Tokens are evaluated one ubatch at a time meanwhile. If
        a `decode` takes several graphs, only the last one's plan is known."""
        self._check_whole("record")
        if per_op and self._looking is not None:
            raise ArgumentError("record: per_op needs the eval callback that look_at_nodes uses")
        return ContextRecording(self._loaded(), per_op)

    def _decode_lists(self) -> list[list[Decode]]:
        observer = self._loaded().observer
        if not observer:
            observer.begin()
        return observer.lists

    def _loaded(self) -> LlamaContext:
        """The model with its weights."""
        if self._running is None:
            self._check_open()
            if self._only_header:
                raise ModelError(self._only_header)
            with Gguf.open(self.path) as gguf:  # raises for a file that ends early
                if gguf._stamps != self._stamps:
                    raise DamagedFileError(
                        str(self.path), "has changed since it was opened: open it again"
                    )
                paths = gguf.paths
            keeps_rows = self._keeps_rows()
            doing = self._context.using("loading weights")
            with self._naming(), lacking(self.shortfalls), doing:
                params, devices = self._params.model, self._params.devices
                self._params.choose_accelerators()
                with self._params.progress():
                    model = load_model(self._library, self.path, params, devices, paths)
                self._handles.append(model)
                context = new_context(self._library, model, self._params)
                self._handles.append(context)
                trace(self._library, context.ptr)
                self._handles.append(give_threads(self._library, context, self._params))
            self._running = LlamaContext(
                self._library, model, context, keeps_rows, self._n_positions, self._full_offload
            )
        return self._running

    def _keeps_rows(self) -> bool:
        """Whether its graph has logits for all tokens although only the last ones are wanted:
        upstream's of cogvlm (no inp_out_ids). The first row would then be taken for the last."""
        n = min(2, self.n_ubatch, self.n_ctx_seq)
        with self.graph(n) as graph:
            return any(t.name == "result_output" and t.ne[1] > 1 for t in graph.nodes[-2:])

    # --- lifetime

    def _check_open(self) -> None:
        self._context.ptr  # noqa: B018  raises when closed

    def close(self) -> None:
        """Frees everything. Raises `BusyError`, and closes nothing, while it plans or computes."""
        contexts = [h for h in self._handles if isinstance(h, ContextHandle) and not h.closed]
        with ExitStack() as idle:
            for context in contexts:
                idle.enter_context(in_use("being closed", context))
        for handle in reversed(self._handles):
            handle.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._model.closed

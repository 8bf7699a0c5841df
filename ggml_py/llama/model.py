"""A model of libllama."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.arguments import integer
from ..boundary.ffi import ffi, text
from ..boundary.handle import Handle, in_use, reading
from ..errors import DamagedFileError, ModelError
from ..gguf.reader import Gguf
from ..gguf.whole import whole
from ..graphs.graph import Graph
from ..memory.shortfalls import Reserve, Shortfall, UncutBuffer, shortfalls
from ..plan import MemoryRow, Promise
from ..scheduler.borrowed import BorrowedScheduler
from ..tensors.tensor import Tensor
from ..trace.choice import Choice
from .batch import POS_MAX
from .batch_checks import checked_tokens
from .choices import choices_of
from .command_line import CommandLine
from .context import LlamaContext
from .generation import Generation, generated
from .library import Library
from .likeliest import likeliest
from .memory import ContextMemory, Reserved, estimate, fit_print, give_up_pipeline, measure
from .native import ContextHandle, give_threads, lacking, load_model, naming, new_context
from .options import Fit, Options
from .params import Params
from .plans import Look, build, plan_of, reserved_plan_of
from .provenance import made_for, model_made, with_fit
from .room import rooms
from .sequences import SequenceCalls
from .shapes import check_shape
from .tokenizer import Tokenizer
from .watching import Looking, Watching
from .what_if import Changes, reload, what_if

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..backends.device import Device
    from ..plan import Plan
    from .generation import Sample

_PLANNING = "planning"
_ONLY_READ = "this graph is libllama's, without weights: it can be read and planned, not computed"
log = logging.getLogger("ggml_py")


class LlamaModel(SequenceCalls):
    """A model that libllama has loaded. Made by `open`; `with` closes it.

    Plans need the header only. The first evaluation loads the model once more, with its weights.
    `pipeline_lacks` is what devices lack for pipeline parallelism: libllama then goes on without.
    """

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
        self.path, self.arch = gguf.path, arch
        self.metadata = gguf.metadata
        self._n_layer = int(np.max(self.metadata.get(f"{arch}.block_count", 0)))
        self._params = Params(library, options, self._n_layer, line)
        self._fit, self._fits = fit, True
        self.rooms = rooms(self._params.devices)  # the devices' memory before it was opened
        self.left_out = () if line is None else line.left_out
        self._handles: list[Handle] = []  # in the order in which they are made
        self._only_header = only_header
        self._stamps = gguf._stamps
        self._weights, self._opened_again = tuple(gguf.tensors), again
        learned = gguf.tensors.get("position_embd.weight")
        self._n_positions = POS_MAX if learned is None else int(learned.ne[1])
        self._made = model_made(gguf, options, self._params.devices, line)
        self._running: LlamaContext | None = None
        self._looking: Looking | None = None
        try:
            with whole(gguf) as path, self._naming():
                if fit is not None:
                    self._fits = self._params.fit(path, fit.margins, fit.n_ctx)
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
        self.tokenizer = Tokenizer(library, self._model)

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

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return self._n_layer

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
    def vocab(self) -> tuple[str, ...]:
        """The texts of the tokens, as the file has them; () if it has none."""
        return tuple(self.metadata.get("tokenizer.ggml.tokens", ()))

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

    def plan(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1) -> Plan:
        """Plans where every node would run, for the graph that llama_decode would make of n_tokens
        tokens after n_past others in each of n_seqs sequences.

        Raises `ModelError` for more tokens than `n_ubatch` or the context takes, and for more
        sequences than there are.
        """
        self._check_shape(n_tokens, n_past, n_seqs)
        with self._context.using(_PLANNING):
            args = (self._library, self._context.ptr, self._full_offload, n_tokens, n_past, n_seqs)
            plan = plan_of(*args)
        past = int(n_past) if n_seqs == 1 else None
        promise = Promise("llama.cpp", graphs="libllama", n_past=past)
        made = made_for(self._made, self.n_ctx, n_tokens * n_seqs, n_past, n_seqs)
        return plan.promised(promise, self.memory, made).chosen(self.choices)

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """What llama.cpp decided before it plans: fused ops it does without, why there is no
        pipeline parallelism, what --fit put on the CPU. C++: llama_context::resolve_fused_ops"""
        margins = self._fit.margins if self._fit is not None and self._fits else None
        with self._context.using(_PLANNING):
            return choices_of(self._library, self._context, self._params, self._n_layer, margins)

    def _check_shape(self, n_tokens: int, n_past: int, n_seqs: int) -> None:
        check_shape(
            n_tokens, n_past, n_seqs,
            n_ubatch=self.n_ubatch, n_ctx_seq=self.n_ctx_seq, n_seq_max=self.n_seq_max,
        )  # fmt: skip

    def reserved_plan(self, n_tokens: int | None = None) -> Plan:
        """The plan of a graph that libllama reserves memory for when it starts: a full cache, and
        n_ubatch tokens or, with n_tokens=n_seq_max, one in each sequence.
        C: llama_context::sched_reserve"""
        most = self._n_reserved
        n = most if n_tokens is None else integer("n_tokens", n_tokens, 1, self.n_ubatch)
        plan = self._reserved(n, self.n_seq_max)
        promise = Promise("llama.cpp", graphs="libllama")
        made = made_for(self._made, self.n_ctx, n, None, self.n_seq_max)
        return plan.promised(promise, self.memory, made).chosen(self.choices)

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

    @contextmanager
    def graph(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1) -> Iterator[Graph]:
        """In the block, the graph that `plan` plans: its nodes and leafs, to look at, to export, or
        to plan on another scheduler. It cannot be computed, as its weights have no data. The model
        makes no other plan meanwhile (`BusyError`).

            with model.graph(512) as graph, Scheduler(model.scheduler.backends) as mine:
                plan = mine.plan(graph)  # without llama.cpp's pins

        Raises `ModelError` as `plan` does.
        """
        self._check_shape(n_tokens, n_past, n_seqs)
        with self._context.using(_PLANNING):
            native = build(self._library, self._context.ptr, n_tokens, n_past, n_seqs)
            graph = Graph._borrow(native, only_read=_ONLY_READ)
            try:
                yield graph
            finally:
                graph.close()
                self._library.lib.gpl_forget(self._context.ptr)

    def what_if(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1, **changes: Any) -> Plan:
        """What llama.cpp would plan for such a graph if something were otherwise.

        `changes` are arguments of `Plan.what_if`, and profiles={"gpu0": "cuda"}, which gives a
        backend the ops of a profile. A device that answers otherwise makes llama.cpp put weights
        elsewhere, and pin other norms. The model is therefore opened again for other answers of
        devices (supports, offload), moved weights (as by tensor_overrides), omitted backends and
        op_offload. The plan is then llama.cpp's promise. The loader knows nothing of pins, copies
        for pipeline parallelism, other releases, single nodes by number, moved caches or a smallest
        number of rows. A plan with such a change is the scheduler's promise alone, and so is every
        plan of a model of `open_command_line`. `Plan.promise` says which it is.

        Raises what `Plan.what_if` raises, and what `open` raises if llama.cpp would not load the
        model then.
        """
        shape = n_tokens, n_past, n_seqs
        if self._opened_again is None:
            return self.plan(*shape).what_if(**changes)
        return what_if(self, self._again, self._weights, shape, changes)

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
        self._context.ptr  # noqa: B018  raises when closed
        return self._measured.rows

    @property
    def uncut_buffers(self) -> tuple[UncutBuffer, ...]:
        """The largest buffer of each type and kind that is allocated in one piece."""
        return self._measured.uncut

    @property
    def reserved(self) -> Reserved:
        """The graphs that libllama reserves memory for, as its log describes them."""
        return self._measured.reserved

    def shortfalls(self, reserve: Reserve = 0) -> tuple[Shortfall, ...]:
        """Missing memory by device, and tensors larger than any buffer; () if the model fits.
        `reserve` bytes (or bytes by device) stay free on each device."""
        return shortfalls(self.memory, self.uncut_buffers, self.rooms, reserve)

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
        running = self._running
        if running is None:
            return 0
        with reading(running.context):
            return int(running.lib.llama_perf_context(running.ptr).n_reused)

    def eval(
        self,
        tokens: Sequence[int],
        all_logits: bool = False,
        seq: int = 0,
        watch: Sequence[str] = (),
    ) -> Any:
        """Adds `tokens` to a sequence and returns the logits [n_vocab] after the last of them, or
        with `all_logits` after each, [n_tokens, n_vocab].

        `watch` lists names of nodes or shell patterns ("l_out-*"). With it the result is the logits
        and a dict of these nodes' values by name, with ggml's first axis last, as in numpy. If it
        fails, the sequence is as before the call. It is empty instead if the model is recurrent, or
        if a window has moved on. Raises `ModelError` for tokens outside the vocabulary and a full
        context. C: llama_decode
        """
        seq = self._seq(seq)
        if isinstance(watch, str):
            raise TypeError(f"watch={watch!r}: expected a list of names, like [{watch!r}]")
        if not watch:
            context = self._loaded()
            if len(tokens) > 1:
                self._check_room(len(tokens), seq)
            return context.eval(tokens, all_logits, seq, self._looking)
        self._check_whole("watch")
        if self._looking is not None:
            raise ModelError("watch: another function looks at the nodes (look_at_nodes)")
        watching = Watching(watch)
        return self._loaded().eval(tokens, all_logits, seq, watching), watching.found

    @contextmanager
    def look_at_nodes(self, look: Callable[[Tensor, bool], bool]) -> Iterator[None]:
        """In the block `look(node, ask)` sees every node of each `eval`, as an eval callback does:
        True as the answer to `ask` makes the scheduler compute up to this node and call again with
        its result, whose data may then be changed. Raises `ModelError` with split_mode "tensor".
        C: ggml_backend_sched_set_eval_callback"""
        self._check_whole("look_at_nodes")
        before, self._looking = self._looking, Looking(look)
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
        [n_tokens, n_embd]. Empties the sequences first. C: llama_get_embeddings_seq"""
        return self._loaded().embed(tokens)

    def reset(self) -> None:
        """Empties all sequences."""
        if self._running is not None:
            self._running.reset()

    def generate(
        self, tokens: Sequence[int], n: int, sampler: Sample | None = None, **options: Any
    ) -> list[int]:
        """Continues a sequence with `tokens` and then `n` generated tokens, which it returns as a
        list. Options are those of `stream`.

        Ctrl-C raises `Interrupted`, a KeyboardInterrupt whose `tokens` were generated by then.
        """
        return generated(self.stream(tokens, n, sampler, **options), n)

    def stream(
        self,
        tokens: Sequence[int],
        n: int,
        sampler: Sample | None = None,
        stop: Collection[int] = (),
        seq: int = 0,
        context_shift: bool = False,
        n_keep: int = 0,
    ) -> Iterator[int]:
        """Continues a sequence with `tokens` and then yields up to `n` generated tokens, each
        computed when it is requested.

        `sampler`, a `Sampler` or another function of logits [n_vocab], chooses each token; without
        one it is the likeliest. A token in `stop` is the last one. With `context_shift` a full
        context loses half of the tokens after the first `n_keep` (-1: the prompt), as with
        llama.cpp's option of that name. Without it, more tokens than there is room for raise
        `ModelError` here, before anything is computed. So do tokens that `eval` does not take.
        After a part of a sequence was removed or moved, or a state was loaded, the room is not
        known: the first token that does not fit raises `ModelError`.
        """
        seq = self._seq(seq)
        kept = n_keep if context_shift else None
        return iter(Generation(self, tokens, n, sampler, stop, seq, kept))

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
        if running is None or self._looking is not None:
            return likeliest(self.eval([token], seq=seq))
        return running.likeliest_after(token, seq)

    @property
    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary. C: llama_vocab_n_tokens"""
        lib = self._library.lib
        return int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model.ptr)))

    @property
    def eog_tokens(self) -> frozenset[int]:
        """The tokens that end a generation. C: llama_vocab_is_eog"""
        return self.tokenizer.eog

    def tokenize(self, text: str, **options: bool) -> list[int]:
        """See `Tokenizer.tokenize`."""
        return self.tokenizer.tokenize(text, **options)

    def detokenize(self, tokens: Sequence[int], **options: bool) -> str:
        """See `Tokenizer.detokenize`."""
        return self.tokenizer.detokenize(tokens, **options)

    def _loaded(self) -> LlamaContext:
        """The model with its weights."""
        if self._running is None:
            self._context.ptr  # noqa: B018  raises when closed
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
                with self._params.progress():
                    model = load_model(self._library, self.path, params, devices, paths)
                self._handles.append(model)
                context = new_context(self._library, model, self._params)
                self._handles.append(context)
                self._handles.append(give_threads(self._library, context, self._params))
            self._running = LlamaContext(
                self._library, model, context, keeps_rows, self._n_positions
            )
        return self._running

    def _keeps_rows(self) -> bool:
        """Whether its graph has logits for all tokens although only the last ones are wanted:
        upstream's of cogvlm (no inp_out_ids). The first row would then be taken for the last."""
        n = min(2, self.n_ubatch, self.n_ctx_seq)
        with self.graph(n) as graph:
            return any(t.name == "result_output" and t.ne[1] > 1 for t in graph.nodes[-2:])

    # --- lifetime

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

    def __enter__(self) -> LlamaModel:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

"""A model with our own graphs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from ..llama.batch_checks import check_seq
from ..llama.generation import Generation, generated
from ..llama.provenance import made_for
from ..llama.sequences import SequenceCalls
from ..llama.shapes import check_shape
from ..llama.tokenizer import Tokenizer
from ..llama.what_if import Again, what_if
from ..plan import MemoryRow, Promise
from .alone import CHANGING, CLOSING, PLANNING, alone
from .cache.kv_caches import KvCaches
from .evaluation import Evaluation
from .file.hparams import HParams
from .file.placement import LayerPlacement
from .file.weights import Weights
from .flow import Decode, ModelGraph
from .graphs import Graphs

if TYPE_CHECKING:
    from ..llama.generation import Sample
    from ..llama.room import Rooms
    from ..plan import Plan
    from ..scheduler.callbacks import EvalFunction
    from ..scheduler.recording import Recording
    from ..scheduler.scheduler import Scheduler


_LIBLLAMAS = 'our own graphs have one sequence, which only grows: load with graphs="libllama"'


class Model(Evaluation):
    """A loaded model with our own graphs, and its tokens so far. Made by `load`; `with` closes it.

    `eval` adds tokens, and `reset` removes all. Graphs are built once per shape and kept. Decoding
    token by token only sets inputs and computes. Several sequences, and operations on a part of
    one, are libllama's (`LlamaModel`).

    One thread uses a model at a time. While a call computes, changes or saves, calls from other
    threads and from callbacks raise `BusyError`. Between the tokens of `stream` and `generate`
    other threads may use the model, but then `generate` may raise `BusyError` at its next token.
    Each thread can have a model of its own.
    """

    rooms: Rooms = ()  # the devices' memory before it was opened

    def __init__(
        self,
        hparams: HParams,
        placement: LayerPlacement,
        weights: Weights,
        memory: KvCaches,
        graphs: Graphs,
        n_batch: int,
        n_ubatch: int,
        file: tuple[Path, Mapping[str, Any], Any],
        again: Again,
        closing: ExitStack,
    ) -> None:
        """`file` is the model's path, its metadata, and what its plans are made of; `again` loads
        the model under changes; `closing` closes its parts, its graphs first."""
        super().__init__(hparams, memory, graphs, n_batch, n_ubatch)
        self.placement = placement
        self.weights = weights
        self.path, self.metadata, self._made = file
        self._again = again
        self._tokenizer: Tokenizer | None = None
        self._closing = closing

    def __repr__(self) -> str:
        if self._closed:
            return "<Model closed>"
        hp = self.hparams
        names = ", ".join(b.name for b in self.placement.backends)
        return (
            f"<Model {hp.arch} {self.weights.n_params / 1e6:.1f}M, "
            f"{hp.n_layer} layer{'s' * (hp.n_layer != 1)} on {names}, "
            f"{self.n_past} of {self.n_ctx} tokens>"
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(SequenceCalls, name):
            raise AttributeError(f"Model.{name}: {_LIBLLAMAS}")
        raise AttributeError(f"'Model' object has no attribute {name!r}")

    @property
    def flash_attn(self) -> bool:
        """Whether attention is a single op."""
        return self._graphs.flash_attn

    # --- text

    @property
    def vocab(self) -> tuple[str, ...]:
        """The texts of the tokens, as the file has them; () if it has none."""
        return tuple(self.metadata.get("tokenizer.ggml.tokens", ()))

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template. libllama's, which is built when it is first
        needed (`llama.Tokenizer`)."""
        self._check_open()
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.open(self.path)
            self._closing.callback(self._tokenizer.close)
        return self._tokenizer

    def tokenize(self, text: str, **options: bool) -> list[int]:
        """See `llama.Tokenizer.tokenize`."""
        return self.tokenizer.tokenize(text, **options)

    def detokenize(self, tokens: Iterable[int], **options: bool) -> str:
        """See `llama.Tokenizer.detokenize`."""
        return self.tokenizer.detokenize(tokens, **options)

    @property
    def eog_tokens(self) -> frozenset[int]:
        """The tokens that end a generation."""
        return self.hparams.eog_tokens

    # --- running

    def generate(
        self, tokens: Sequence[int], n: int, sampler: Sample | None = None, **options: Any
    ) -> list[int]:
        """Continues with `tokens` and then `n` generated tokens, which it returns as a list.
        Options are those of `stream`.

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
        """Continues with `tokens` and then yields `n` generated tokens, each computed
        when it is requested.

        `sampler`, a `Sampler` or another function of logits [n_vocab], chooses each token; without
        one it is the likeliest. A token in `stop` is the last one. Afterwards all tokens except the
        last are evaluated. If you stop early, for example by Ctrl-C, you have the tokens that
        were yielded, and `n_past` tells how many were evaluated. More tokens than there is room for
        raise `ModelError` here, before anything is computed. So do tokens that `eval` does not
        take, other sequences than 0, and `context_shift`, which libllama's models have.
        """
        self._check_open()
        if seq:
            check_seq(seq, self)
        if context_shift or n_keep:
            raise ModelError(f"context_shift: {_LIBLLAMAS}")
        return iter(Generation(self, tokens, n, sampler, stop))

    @alone(PLANNING)
    def plan(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1) -> Plan:
        """Plans where every node would run, for a graph of n_tokens tokens after n_past others in
        each of n_seqs sequences.

        Allocates no compute buffers and does not change the model. Raises `ModelError` for more
        tokens than `n_ubatch` or the context takes, and for more sequences than there are.
        """
        self._check_open()
        check_shape(
            n_tokens, n_past, n_seqs,
            n_ubatch=self.n_ubatch, n_ctx_seq=self.n_ctx_seq, n_seq_max=self.n_seq_max,
        )  # fmt: skip
        plan = self._graphs.plan(self._memory.planned_shape(n_tokens, n_past))
        past = int(n_past) if n_seqs == 1 else None
        made = made_for(self._made, self.n_ctx, n_tokens * n_seqs, n_past, n_seqs)
        promise = Promise("llama.cpp", n_past=past)
        return plan.promised(promise, self.memory, made).chosen(self._graphs.choices)

    def what_if(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1, **changes: Any) -> Plan:
        """What llama.cpp would plan for such a graph if something were otherwise.

        `changes` are arguments of `Plan.what_if`, and profiles={"gpu0": "cuda"}, which gives a
        backend the ops of a profile. A device that answers otherwise makes llama.cpp put weights
        elsewhere, and pin other norms. The model is therefore loaded again for other answers of
        devices (supports, offload), moved weights (as by tensor_overrides), omitted backends and
        op_offload. The plan is then llama.cpp's promise. Meanwhile the model keeps weights twice,
        without reading them. The loader knows nothing of pins, copies for pipeline parallelism,
        other releases, single nodes by number, moved caches or a smallest number of rows. A plan
        with such a change is the scheduler's promise alone. `Plan.promise` says which it is.

        Raises what `Plan.what_if` raises, and what `load` raises if llama.cpp would not load the
        model then.
        """
        weights = (t for _buft, t in self.weights.placed)
        return what_if(self, self._again, weights, (n_tokens, n_past, n_seqs), changes)

    @property
    def memory(self) -> tuple[MemoryRow, ...]:
        """Bytes of the buffers of each type: weights, cache and compute, as llama.cpp allocates
        them for a context with these options. C: llama_get_memory_breakdown"""
        self._check_open()
        weights, cache = self.weights.nbytes_by_buffer_type(), self._memory.nbytes_by_buffer_type()
        compute = self._graphs.compute_sizes()
        return tuple(
            MemoryRow(
                buft.name,
                self.placement.cpu.name
                if buft.is_host or buft.device is None
                else buft.device.name,
                weights.get(buft, 0),
                cache.get(buft, 0),
                None if compute is None else compute.get(buft, 0),
            )
            for buft in dict.fromkeys((*weights, *cache, *(compute or ())))
        )

    # --- how it computes

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that the graphs run on. You may read it (`state`, `plan`, `buffer_size`)
        and set callbacks. If you reset it or allocate on it, the next evaluation allocates its
        graph again. The model closes it, and may replace it before the first evaluation."""
        self._check_open()
        return self._graphs.scheduler

    @property
    def graphs(self) -> tuple[ModelGraph, ...]:
        """The graphs that the model keeps, to look at but not to change. The least recently used
        ones are dropped."""
        self._check_open()
        return self._graphs.kept

    @property
    def last_decode(self) -> Decode | None:
        """The last evaluation: whether graphs were reused, otherwise the parameters that differ,
        and the inputs that were set. After `generate` it is the last token's evaluation. None
        before the first one."""
        return self._graphs.last_decode

    @property
    def n_reused(self) -> int:
        """How many ubatches have reused the previous graph. C: llama_perf_context_data.n_reused"""
        return self._graphs.n_reused

    @alone(CHANGING)
    def record(self, per_op: bool = False) -> Recording:
        """Records the evaluations in a `with` block, see `Recording`."""
        self._check_open()
        return self._graphs.record(per_op)

    @contextmanager
    def watch(self) -> Iterator[list[Decode]]:
        """A context manager with a list. Each evaluation in the block adds what it did."""
        self._check_open()
        found: list[Decode] = []
        before, self._graphs.watching = self._graphs.watching, found
        try:
            yield found
        finally:
            self._graphs.watching = before

    def look_at_nodes(self, look: EvalFunction) -> AbstractContextManager[None]:
        """A context manager in which `look(node, ask)` sees every node of each evaluation, as an
        eval callback does: True as the answer to `ask` makes the scheduler compute up to this node
        and call again with its result, whose data may then be changed. C:
        ggml_backend_sched_set_eval_callback"""
        self._check_open()
        return self._graphs.watched(look)

    # --- lifetime

    @alone(CLOSING)
    def close(self) -> None:
        """Frees everything: graphs, scheduler, cache, weights, backends."""
        self._closed = True
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

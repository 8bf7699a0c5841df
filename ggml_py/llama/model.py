"""A loaded model, whoever builds its graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..boundary.arguments import integer
from ..memory.shortfalls import Reserve, Shortfall, UncutBuffer, shortfalls
from ..plan import MemoryRow, Promise
from ..trace.choice import Choice
from ..typed import typed
from .batch import POS_MAX
from .batch_checks import check_seq
from .generation import Generation, generated
from .loaded_again import Again, what_if
from .model_facts import made_for
from .shapes import check_shape
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..backends.device import Device
    from ..graphs.graph import Graph
    from ..plan import Plan
    from ..scheduler.reads import ReadScheduler
    from ..scheduler.recording import Recording
    from ..trace.provenance import Provenance
    from .decodes import Decode
    from .generation import Sample
    from .model_sizes import ModelSizes
    from .room import Rooms

M = TypeVar("M", bound="Model")


@typed
def check_flags(all_logits: bool, copy: bool) -> None:
    """Raises TypeError for arguments of `eval` that are neither True nor False."""


class Model(ABC):
    """A loaded model, and its tokens so far. Made by `models.load`; `with` closes it.

    `eval` adds tokens, and `reset` removes all. The graphs are our own, or libllama's: such a
    `LlamaModel` has several sequences and all that llama.h offers beside.

    One thread uses a model at a time. While a call computes, changes or saves, calls from other
    threads and from callbacks raise `BusyError`. Between the tokens of `stream` and `generate`
    other threads may use the model, but then `generate` may raise `BusyError` at its next token.
    Each thread can have a model of its own.
    """

    path: Path
    metadata: Mapping[str, Any]
    rooms: Rooms = ()  # the devices' memory before it was opened
    left_out: tuple[str, ...] = ()  # options of a command line that are no part of plans
    graphs: str  # "ours" or "libllama"
    _promised_graphs = ""  # in a plan's promise
    _made: Provenance

    # --- what it is

    @property
    @abstractmethod
    def hparams(self) -> ModelSizes:
        """Its sizes."""

    @property
    def arch(self) -> str:
        """The architecture, as the file names it."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.hparams.n_vocab

    @property
    def fit_arguments(self) -> str:
        """What `fit` has chosen, as options of llama.cpp's programs: "-c 4096 -ngl 20"."""
        return ""

    @property
    def fits(self) -> bool:
        """False if `fit` found no options that fit."""
        return True

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return self.hparams.n_layer

    @property
    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The devices that it was opened for."""

    @property
    @abstractmethod
    def n_ctx(self) -> int:
        """How many tokens all sequences together can have."""

    @property
    @abstractmethod
    def n_ctx_seq(self) -> int:
        """How many tokens one sequence can have."""

    @property
    @abstractmethod
    def n_batch(self) -> int:
        """The most tokens of one batch."""

    @property
    @abstractmethod
    def n_ubatch(self) -> int:
        """The most tokens of one graph."""

    @property
    @abstractmethod
    def n_seq_max(self) -> int:
        """How many sequences there are."""

    @property
    @abstractmethod
    def flash_attn(self) -> bool:
        """Whether attention is a single op."""

    @property
    @abstractmethod
    def memory(self) -> tuple[MemoryRow, ...]:
        """Bytes of the buffers of each type: weights, cache and compute, as llama.cpp allocates
        them for a context with these options. C: llama_get_memory_breakdown"""

    @property
    def uncut_buffers(self) -> tuple[UncutBuffer, ...]:
        """The largest buffer of each type and kind that is allocated in one piece, if known."""
        return ()

    @typed
    def shortfalls(self, reserve: Reserve = 0) -> tuple[Shortfall, ...]:
        """Missing memory by device, and tensors larger than any buffer; () if the model fits.
        `reserve` bytes (or bytes by device) stay free on each device."""
        return shortfalls(self.memory, self.uncut_buffers, self.rooms, reserve)

    # --- text

    @property
    def vocab(self) -> tuple[str, ...]:
        """The texts of the tokens, as the file has them; () if it has none."""
        return tuple(self.metadata.get("tokenizer.ggml.tokens", ()))

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template, which are libllama's. It is built when it is
        first needed (`llama.Tokenizer`)."""

    @typed
    def tokenize(self, text: str, **options: bool) -> list[int]:
        """See `Tokenizer.tokenize`."""
        return self.tokenizer.tokenize(text, **options)

    @typed
    def detokenize(self, tokens: Sequence[int], **options: bool) -> str:
        """See `Tokenizer.detokenize`."""
        return self.tokenizer.detokenize(tokens, **options)

    @property
    @abstractmethod
    def eog_tokens(self) -> frozenset[int]:
        """The tokens that end a generation. C: llama_vocab_is_eog"""

    # --- plans

    @typed
    def plan(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1) -> Plan:
        """Plans where every node would run, for a graph of n_tokens tokens after n_past others in
        each of n_seqs sequences.

        Allocates no compute buffers and does not change the model. Raises `ModelError` for more
        tokens than `n_ubatch` or the context takes, and for more sequences than there are.
        """
        self._check_shape(n_tokens, n_past, n_seqs)
        plan = self._plan(n_tokens, n_past, n_seqs)
        return self._promised(plan, n_tokens * n_seqs, n_past, n_seqs)

    @abstractmethod
    def _plan(self, n_tokens: int, n_past: int, n_seqs: int) -> Plan:
        """The scheduler's plan of a graph."""

    def _promised(self, plan: Plan, n_tokens: int, n_past: int | None, n_seqs: int) -> Plan:
        """A plan with all that the model knows about it."""
        past = None if n_past is None or n_seqs > 1 else int(n_past)
        promise = Promise("llama.cpp", graphs=self._promised_graphs, n_past=past)
        made = made_for(self._made, self.n_ctx, n_tokens, n_past, n_seqs)
        return plan.promised(promise, self.memory, made).chosen(self.choices)

    def _check_shape(self, n_tokens: int, n_past: int, n_seqs: int) -> None:
        self._check_open()
        check_shape(
            n_tokens, n_past, n_seqs,
            n_ubatch=self.n_ubatch, n_ctx_seq=self.n_ctx_seq, n_seq_max=self.n_seq_max,
        )  # fmt: skip

    @property
    @abstractmethod
    def choices(self) -> tuple[Choice, ...]:
        """What llama.cpp decided before it plans: fused ops it does without, why there is no
        pipeline parallelism, what --fit put on the CPU. C++: llama_context::resolve_fused_ops"""

    @abstractmethod
    def graph(
        self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1
    ) -> AbstractContextManager[Graph]:
        """In the block, the graph that `plan` plans: its nodes and leafs, to look at, to export, or
        to plan on another scheduler. The model makes no other plan meanwhile (`BusyError`).

            with model.graph(512) as graph, Scheduler(model.scheduler.backends) as mine:
                plan = mine.plan(graph)  # without llama.cpp's pins

        Raises `ModelError` as `plan` does.
        """

    @typed
    def what_if(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1, **changes: Any) -> Plan:
        """What llama.cpp would plan for such a graph if something were otherwise.

        `changes` are arguments of `Plan.what_if`, and profiles={"gpu0": "cuda"}, which gives a
        backend the ops of a profile. A device that answers otherwise makes llama.cpp put weights
        elsewhere, and pin other norms. The model is therefore loaded again for other answers of
        devices (supports, offload), moved weights (as by tensor_overrides), omitted backends and
        op_offload, without its weights' data. The plan is then llama.cpp's promise. The loader
        knows nothing of pins, copies for pipeline parallelism, other releases, single nodes by
        number, moved caches or a smallest number of rows. A plan with such a change is the
        scheduler's promise alone, and so is every plan of a model of `open_command_line`.
        `Plan.promise` says which it is.

        Raises what `Plan.what_if` raises, and what `load` raises if llama.cpp would not load the
        model then.
        """
        shape = n_tokens, n_past, n_seqs
        again = self._loads_again()
        if again is None:
            return self.plan(*shape).what_if(**changes)
        return what_if(self, again, self._weight_names(), shape, changes)

    @abstractmethod
    def _loads_again(self) -> Again | None:
        """Loads the model under changes; None if that cannot be done."""

    @abstractmethod
    def _weight_names(self) -> Iterable[str]:
        """The names of its weights."""

    # --- running

    @property
    @abstractmethod
    def n_past(self) -> int:
        """The next position of sequence 0."""

    @abstractmethod
    def eval(
        self,
        tokens: Sequence[int],
        all_logits: bool = False,
        copy: bool = True,
        seq: int = 0,
        watch: Sequence[str] = (),
    ) -> Any:
        """Adds `tokens` to a sequence and returns the logits [n_vocab] after the last of them, or
        with `all_logits` after each, [n_tokens, n_vocab].

        `watch` lists names of nodes or shell patterns ("l_out-*"). The result is then the logits
        and a dict of the nodes' values by name, with ggml's first axis last, as in numpy. A name
        means its last node, as in a plan; earlier nodes of that name are "NAME (1)", "NAME (2)".
        Nodes that the graph does not compute are left out. If the tokens take several graphs
        (ubatches), each name has a list with a value per graph, None where it has no such node.

        Without `copy` the result may be the memory in which the logits were computed: it is
        read-only, and the next evaluation overwrites it. If `eval` fails, the sequence is as before
        the call. It is empty instead if the model is recurrent, or if a window has moved on. Raises
        `ModelError` for tokens outside the vocabulary, for a full context, and for a name in
        `watch` without a node. Raises `AllocError` without memory for the compute buffers: fewer
        tokens may fit. C: llama_decode
        """

    @abstractmethod
    def reset(self) -> None:
        """Removes all tokens."""

    def generate(
        self, tokens: Sequence[int], n: int, sampler: Sample | None = None, **options: Any
    ) -> list[int]:
        """Continues a sequence with `tokens` and then `n` generated tokens, which it returns as a
        list. Options are those of `stream`.

        Ctrl-C raises `Interrupted`, a KeyboardInterrupt whose `tokens` were generated by then.
        """
        return generated(self.stream(tokens, n, sampler, **options), n)

    @typed("context_shift")
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
        one it is the likeliest. A token in `stop` is the last one. Afterwards all tokens except the
        last are evaluated. With `context_shift` a full context loses half of the tokens after the
        first `n_keep` (-1: the prompt), as with llama.cpp's option of that name. Without it, more
        tokens than there is room for raise `ModelError` here, before anything is computed. So do
        tokens that `eval` does not take, and with our own graphs `context_shift`. After a part of a
        sequence was removed or moved, or a state was loaded, the room is not known: the first token
        that does not fit raises `ModelError`.
        """
        seq = self._seq(seq)
        kept = n_keep if context_shift else None
        return iter(Generation(self, tokens, n, sampler, stop, seq, kept))

    def _seq(self, seq: int) -> int:
        seq = integer("seq", seq, -POS_MAX, POS_MAX)
        check_seq(seq, self)
        return seq

    @abstractmethod
    def _check_tokens(self, tokens: Any, seq: int) -> npt.NDArray[Any]:
        """The tokens, checked. Raises `ModelError`."""

    @abstractmethod
    def _check_room(self, n: int, seq: int) -> None:
        """Raises `ModelError` if a sequence has no room for n more tokens."""

    @abstractmethod
    def _sampled(self, tokens: Any, seq: int, sample: Sample) -> Any:
        """The token sampled after `tokens`, before another call can overwrite their logits."""

    @abstractmethod
    def _likeliest_after(self, token: int, seq: int) -> int:
        """The likeliest token after one checked token."""

    # --- how it computes

    @property
    @abstractmethod
    def scheduler(self) -> ReadScheduler:
        """The scheduler of its graphs, to look at (`state`, `inspect`, `reallocations`)."""

    @property
    @abstractmethod
    def n_reused(self) -> int:
        """How many graphs were used again for the next tokens, instead of being built.
        C: llama_perf_context_data.n_reused"""

    @abstractmethod
    def record(self, per_op: bool = False) -> Recording:
        """Records the evaluations in a `with` block, see `Recording`. A prompt of several ubatches
        has a compute and a plan per ubatch."""

    @contextmanager
    def watch(self) -> Iterator[list[Decode]]:
        """A context manager with a list. Each evaluation in the block adds what it did, ubatch by
        ubatch."""
        found: list[Decode] = []
        lists = self._decode_lists()
        lists.append(found)
        try:
            yield found
        finally:
            lists[:] = [each for each in lists if each is not found]

    @abstractmethod
    def _decode_lists(self) -> list[list[Decode]]:
        """Lists to which each evaluation adds what it did."""

    @abstractmethod
    def look_at_nodes(self, look: Any) -> AbstractContextManager[None]:
        """A context manager in which `look(node, ask)` sees every node of each `eval`, as an eval
        callback does: True as the answer to `ask` makes the scheduler compute up to this node and
        call again with its result, whose data may then be changed.
        C: ggml_backend_sched_set_eval_callback"""

    # --- lifetime

    @abstractmethod
    def close(self) -> None:
        """Frees everything."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether `close` was called."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raises `ClosedError` after `close`."""

    def __enter__(self: M) -> M:
        self._check_open()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

"""A model: what it holds, and the sequences that it evaluates."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..boundary.arguments import integer
from ..errors import ModelError
from .alone import CHANGING, CLOSING, PLANNING, SAVING, alone
from .cache import state
from .cache.memory import Memory
from .evaluation import Evaluation
from .file.hparams import HParams
from .file.placement import LayerPlacement
from .file.weights import Weights
from .flow import Decode, ModelGraph
from .generation import Generation, Interrupted
from .graphs import Graphs

if TYPE_CHECKING:
    from ..plan import Plan
    from ..scheduler.recording import Recording
    from ..scheduler.scheduler import Scheduler
    from .generation import Sample


class Model(Evaluation):
    """A model that was loaded, and the sequences it evaluates. Made by `load`; `with` closes.

    `eval` adds tokens to a sequence, `decode` tokens to several at once, `reset` starts anew. There
    are `n_seq_max` sequences, 0 unless another is named; `seq_rm` and the like change what is in
    them, at positions from p0 up to p1, p1 not among them. Graphs are built once per shape and
    kept; decoding token by token sets inputs and computes, nothing else.

    One thread uses it at a time: in the middle of a call that computes, changes or saves, those of
    others raise `BusyError`, callbacks' too. Between the tokens of `stream` and `generate` others
    may use it, but then `generate` may raise it at its next token. Each thread can have its own.
    """

    def __init__(
        self,
        hparams: HParams,
        placement: LayerPlacement,
        weights: Weights,
        memory: Memory,
        graphs: Graphs,
        n_batch: int,
        n_ubatch: int,
        closing: ExitStack,
    ) -> None:
        """`closing` closes what the model consists of, its graphs first."""
        super().__init__(hparams, memory, graphs, n_batch, n_ubatch)
        self.placement = placement
        self.weights = weights
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

    @property
    def flash_attn(self) -> bool:
        """Whether attention is one op."""
        return self._graphs.flash_attn

    # --- running

    def generate(
        self, tokens: Sequence[int], n: int, sampler: Sample | None = None, **options: Any
    ) -> list[int]:
        """Continues the sequence with `tokens` and then `n` tokens: the list of what `stream`
        yields, with its options.

        Ctrl-C raises `Interrupted`, a KeyboardInterrupt whose `tokens` are those it had by then.
        """
        out: list[int] = []
        try:
            for token in self.stream(tokens, n, sampler, **options):
                out.append(token)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(out, n) from interrupt
        return out

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
        """Continues a sequence with `tokens` and then `n` tokens, each when it is asked for.

        `sampler`, a `Sampler` or another function of logits [n_vocab], chooses them, by default the
        likeliest. A token of `stop` is the last one. All but the last are part of the sequence
        afterwards; whoever stops early, by Ctrl-C too, has what was yielded, and `n_past` tells
        what was evaluated. With `context_shift` a full context loses half of its tokens, after the
        first `n_keep` (-1: the prompt's), as with llama.cpp's option of that name; without, more
        than there is room for raises `ModelError` here, before anything is computed. So do tokens
        that `eval` does not take.
        """
        self._check_open()
        if seq:
            self._check_seq(seq)
        return iter(Generation(self, tokens, n, sampler, stop, seq, context_shift, n_keep))

    @alone(PLANNING)
    def plan(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1) -> Plan:
        """Where every node would run for a graph of n_tokens tokens after n_past others, of each of
        n_seqs sequences.

        Allocates no compute buffers and leaves the model as it is. Raises `ModelError` for more
        tokens than `n_ubatch` or the context takes, and more sequences than there are.
        """
        self._check_open()
        if not 1 <= n_seqs <= self.n_seq_max:
            raise ModelError(
                f"n_seqs={n_seqs}: there are 1 to {self.n_seq_max} sequences (n_seq_max)"
            )
        if not 1 <= n_tokens <= self.n_ubatch // n_seqs:
            each = f" of each of {n_seqs} sequences" if n_seqs > 1 else ""
            raise ModelError(
                f"n_tokens={n_tokens}{each}: one graph takes 1 to {self.n_ubatch} tokens "
                "(n_ubatch, -ub)"
            )
        if n_past < 0 or n_past + n_tokens > self.n_ctx_seq:
            raise ModelError(
                f"n_past={n_past} and n_tokens={n_tokens}: the context has {self.n_ctx_seq} tokens"
            )
        return self._graphs.plan(self._memory.planned_shape(n_tokens, n_past, n_seqs))

    # --- sequences as bytes and as files

    @alone(SAVING)
    def seq_state(self, seq: int = 0) -> bytes:
        """A sequence, to be put back with `set_seq_state`: its cells with positions, keys and
        values, or its recurrent state. C: llama_state_seq_get_data"""
        return state.get_data(self._settled(seq), seq)

    @alone(CHANGING)
    def set_seq_state(self, seq: int, data: bytes) -> None:
        """Replaces a sequence by what `seq_state` returned, of this or another sequence, of this or
        another context of the same model and cache types; libllama's is as good.

        Raises `ModelError`, with nothing changed, for data that is damaged or of another model, and
        where there are not enough free cells. C: llama_state_seq_set_data
        """
        state.set_data(self._settled(seq), seq, data)

    @alone(SAVING)
    def save_seq(
        self, path: str | os.PathLike[str], seq: int = 0, tokens: Sequence[int] = ()
    ) -> None:
        """Writes a sequence to a file, with the tokens that it was made of, if they are given.

        The file appears when it is whole. Raises OSError, and then leaves what was there.
        C: llama_state_seq_save_file
        """
        last = self.hparams.n_vocab - 1
        ids = [integer("tokens", token, 0, last) for token in tokens]
        state.save_file(self._settled(seq), Path(path), seq, ids)

    @alone(CHANGING)
    def load_seq(self, path: str | os.PathLike[str], seq: int = 0) -> list[int]:
        """Replaces a sequence by a file's, which libllama or `save_seq` wrote; the file's tokens.

        Raises OSError, and `ModelError` as `set_seq_state`. C: llama_state_seq_load_file
        """
        return state.load_file(self._settled(seq), Path(path), seq)

    def _settled(self, seq: int) -> Memory:
        """The memory, its keys where the positions say."""
        self._check_seq(seq)
        if self._memory.has_update:
            self._graphs.update()
        return self._memory

    # --- how it computes

    @property
    def scheduler(self) -> Scheduler:
        """What the graphs run on. Read it (`state`, `plan`, `buffer_size`), give it callbacks; what
        is reset or allocated on it makes the next evaluation allocate its graph again. The model
        closes it, and before its first evaluation may make another."""
        self._check_open()
        return self._graphs.scheduler

    @property
    def graphs(self) -> tuple[ModelGraph, ...]:
        """The graphs that it keeps, each until too many others were needed since: to be looked at,
        not changed."""
        self._check_open()
        return self._graphs.kept

    @property
    def last_decode(self) -> Decode | None:
        """What the last evaluation did, of `generate` the last token's: whether graphs were used
        again, if not which parameter differs, and the inputs set. None before the first."""
        return self._graphs.last_decode

    @property
    def n_reused(self) -> int:
        """Ubatches so far whose graph was the one before. C: llama_perf_context_data.n_reused"""
        return self._graphs.n_reused

    @alone(CHANGING)
    def record(self, per_op: bool = False) -> Recording:
        """Records what evaluations do within a `with` block: see `Recording`."""
        self._check_open()
        return self._graphs.record(per_op)

    @contextmanager
    def watch(self) -> Iterator[list[Decode]]:
        """A list that has, at the end of each evaluation in the block, what it did."""
        self._check_open()
        found: list[Decode] = []
        before, self._graphs.watching = self._graphs.watching, found
        try:
            yield found
        finally:
            self._graphs.watching = before

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

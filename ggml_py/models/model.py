"""A model: what it holds, and the sequences that it evaluates."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.arguments import given, whole
from ..boundary.ffi import lib
from ..errors import ClosedError, ModelError
from .alone import CHANGING, CLOSING, COMPUTING, PLANNING, SAVING, User, alone
from .cache import state
from .cache.batch import POS_MAX, Batch
from .cache.checks import check_seq, checked
from .cache.memory import Memory
from .cache.ubatch import Tokens, Ubatch, in_order
from .file.hparams import HParams
from .file.placement import Placement
from .file.weights import Weights
from .generation import Generation, Interrupted
from .graphs import Graphs
from .sampling import likeliest
from .watched import Watched

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..scheduler.recording import Recording
    from ..trace.planned import Plan
    from .build.decoder import Decoder
    from .generation import Sample


class Model(Watched):
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
        placement: Placement,
        weights: Weights,
        memory: Memory,
        graphs: Graphs,
        n_batch: int,
        n_ubatch: int,
        closing: ExitStack,
    ) -> None:
        """`closing` closes what the model consists of, its graphs first."""
        self.hparams = hparams
        self.placement = placement
        self.weights = weights
        self.n_batch = n_batch
        self.n_ubatch = n_ubatch
        self._memory = memory
        self._graphs = graphs
        self._closing = closing
        self._closed = False
        self._user: User | None = None  # in the middle of which call it is

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
        """Tokens that all sequences together can have."""
        return self.n_ctx_seq if self.n_seq_max == 1 else self._memory.n_ctx

    @property
    def n_ctx_seq(self) -> int:
        """Tokens that one sequence can have: no more than a model has learned positions for."""
        n_ctx_seq = self._memory.n_ctx_seq
        return min(n_ctx_seq, self.hparams.n_positions or n_ctx_seq)

    @property
    def n_seq_max(self) -> int:
        """How many sequences there are."""
        return self._memory.n_seq_max

    @property
    def flash_attn(self) -> bool:
        """Whether attention is one op."""
        return self._graphs.flash_attn

    @property
    def n_past(self) -> int:
        """The next position of sequence 0: how many tokens it has, unless some were removed."""
        return self._memory.seq_pos_max(0) + 1

    # --- running

    @alone(COMPUTING)
    def eval(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
        all_logits: bool = False,
        copy: bool = True,
        seq: int = 0,
    ) -> npt.NDArray[np.float32]:
        """Adds `tokens` to a sequence; the logits [n_vocab] after the last of them.

        With `all_logits` those after each, [n_tokens, n_vocab]. Without `copy` they may be, to be
        read only, the memory that they were computed in: the next evaluation writes to it. When it
        fails the sequence is what it was before; or empty, where it took several graphs and a
        window has moved on, or where the model is recurrent and has written over its state. Raises
        `ModelError` for no tokens, a token that the vocabulary does not have, a sequence that there
        is not, and more tokens than the context has room for; `AllocError` where there is no memory
        for the compute buffers of so many: fewer may fit.
        """
        if seq:
            self._check_seq(seq)
        # Decoding: what numpy does around one token takes longer than all the rest here.
        token = tokens[0] if type(tokens) is list and len(tokens) == 1 else None
        if type(token) is int and 0 <= token < self.hparams.n_vocab:
            logits = self._eval_one(token, copy, seq)
            return logits.reshape(1, -1) if all_logits else logits
        self._check_open()
        return self._eval(self._check_tokens(tokens, seq), all_logits, copy, seq)

    def _eval(
        self, ids: npt.NDArray[np.int32], all_logits: bool, copy: bool, seq: int = 0
    ) -> npt.NDArray[np.float32]:
        """`eval` of ids that were checked."""
        if len(ids) == 1:
            logits = self._eval_one(int(ids[0]), copy, seq)
            return logits.reshape(1, -1) if all_logits else logits
        n, start = len(ids), self._memory.seq_pos_max(seq) + 1
        output = np.full(n, all_logits)
        output[-1] = True
        pos = np.arange(start, start + n, dtype=np.int32)
        tokens = Tokens(ids, pos, [(seq,)] * n, output)
        logits = self._decode(tokens, copy)
        return logits if all_logits else logits.reshape(-1)

    def _eval_one(self, token: int, copy: bool, seq: int) -> npt.NDArray[np.float32]:
        """The logits [n_vocab] after one token that was checked."""
        memory, graphs = self._memory, self._graphs
        if self._closed:
            self._check_open()
        if memory.has_update:
            graphs.update()
        builder = graphs.compute_one(token, seq, False)
        if builder is None:
            builder = self._take_one(token, seq)
        if builder is not None:
            row = builder.read_logit_row()
            return row.copy() if copy else row
        self._check_room(1, seq)
        ids, positions = np.array([[token], [memory.seq_pos_max(seq) + 1]], np.int32)
        tokens = Tokens(ids, positions, [(seq,)], np.ones(1, np.bool_))
        return self._decode(tokens, copy).reshape(-1)

    @alone(COMPUTING)
    def _likeliest_after(self, token: int, seq: int) -> int:
        """The likeliest token after one that was checked."""
        if not (self._closed or self._memory.has_update):
            builder = self._graphs.compute_one(token, seq, True)
            if builder is not None:
                found: int = builder.one.likeliest
                return found if found >= 0 else likeliest(builder.read_logit_row())
        return likeliest(self._eval_one(token, copy=False, seq=seq))

    def _take_one(self, token: int, seq: int) -> Decoder[Any] | None:
        """The graph that has evaluated it, if the memory has a way of its own for one token."""
        memory, graphs, pos = self._memory, self._graphs, self._memory.seq_pos_max(seq) + 1
        try:
            ubatch = memory.take_one(token, seq)
            if ubatch is None:
                return None
            graphs.begin_decode()
            builder = graphs.compute(memory.shape(ubatch), ubatch)
            graphs.end_decode()
            return builder
        except BaseException:
            memory.undo_one(seq, pos)
            raise

    @alone(COMPUTING)
    def decode(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Evaluates the tokens of a batch, of any sequences: the logits [n_outputs, n_vocab] of
        those that want them, in the batch's order.

        When it fails all sequences are what they were before; those are empty that had more tokens
        in the batch than fit in one graph and whose window has moved on, and those of a recurrent
        model whose states are written over. Raises `ModelError` for an empty batch, more tokens
        than n_batch or than there is room for, tokens and sequences that there are not, and
        positions that do not go on where their sequence ends. C: llama_decode
        """
        self._check_open()
        if not isinstance(batch, Batch):
            raise TypeError(f"batch: expected a Batch, got {given(batch)}")
        if len(batch) > self.n_batch:
            raise ModelError(
                f"a batch of {len(batch)} tokens: one takes at most {self.n_batch} (n_batch)"
            )
        hp = self.hparams
        return self._decode(checked(batch, self._memory, hp.n_vocab, hp.n_positions), True)

    def _decode(self, tokens: Tokens, copy: bool) -> npt.NDArray[np.float32]:
        """The logits of a batch that was checked, n_batch tokens at a time."""
        memory, graphs = self._memory, self._graphs
        if memory.has_update:
            graphs.update()
        graphs.begin_decode()
        saved, applied = memory.save(), list[Ubatch]()
        rows: list[npt.NDArray[np.float32]] = []
        places: list[npt.NDArray[np.integer[Any]]] = []  # the rows' tokens
        n = len(tokens.token)
        try:
            for start in range(0, n, self.n_batch):
                part = tokens if n <= self.n_batch else tokens.range(start, self.n_batch)
                for ubatch in memory.prepare(part, self.n_ubatch):
                    memory.apply(ubatch)
                    applied.append(ubatch)
                    builder = graphs.compute(memory.shape(ubatch), ubatch)
                    if len(ubatch.out_ids):
                        rows.append(builder.read_logits())
                        places.append(ubatch.batch_idxs[ubatch.out_ids] + start)
                        if copy or len(applied) > 1 or ubatch.n_tokens < n:
                            rows[-1] = rows[-1].copy()
        except BaseException:
            memory.restore(saved, applied)
            raise
        graphs.end_decode()
        return in_order(rows, places, self.hparams.n_vocab)

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

    @alone(CHANGING)
    def reset(self) -> None:
        """Starts anew: all sequences are empty."""
        self._check_open()
        self._memory.clear()

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

    # --- sequences

    @alone(CHANGING)
    def seq_rm(self, seq: int, p0: int = 0, p1: int | None = None) -> None:
        """Removes tokens from a sequence, to its end unless p1 says otherwise.

        What comes after them keeps its positions: `seq_add` moves it. Removing the end does not
        bring back what layers with a window have forgotten: `seq_pos_min` says from where on they
        have tokens. Raises `ModelError` for a part of a sequence of a recurrent model, whose state
        has all tokens. C: llama_memory_seq_rm
        """
        self._memory.seq_rm(self._check_seq(seq), *self._check_range(p0, p1))

    @alone(CHANGING)
    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int | None = None) -> None:
        """Gives tokens of `src` to `dst`, too: without a copy where sequences share one cache, else
        all of `src` in place of what `dst` had. C: llama_memory_seq_cp"""
        self._check_seq(src)
        self._memory.seq_cp(src, self._check_seq(dst), *self._check_range(p0, p1))

    @alone(CHANGING)
    def seq_keep(self, seq: int) -> None:
        """Removes all other sequences. C: llama_memory_seq_keep"""
        self._memory.seq_keep(self._check_seq(seq))

    @alone(CHANGING)
    def seq_add(self, seq: int, p0: int, p1: int | None, delta: int) -> None:
        """Moves tokens to positions that are higher by `delta`, or lower; those that would come
        before 0 are removed.

        Their keys are rotated before the next evaluation. Other sequences that have the tokens,
        too, have them at the new positions. C: llama_memory_seq_add
        """
        delta = whole("delta", delta, -POS_MAX, POS_MAX)
        self._memory.seq_add(self._check_seq(seq), *self._check_range(p0, p1), delta)

    @alone(CHANGING)
    def seq_div(self, seq: int, p0: int, p1: int | None, d: int) -> None:
        """Divides positions by `d`, as `seq_add` adds to them; but keys are rotated to the other
        side of where they were, which libllama of this release does. C: llama_memory_seq_div"""
        d = whole("d", d, 1, POS_MAX)
        self._memory.seq_div(self._check_seq(seq), *self._check_range(p0, p1), d)

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position of a sequence, -1 for an empty one; where layers have a window, the
        lowest that they still have. C: llama_memory_seq_pos_min"""
        return self._memory.seq_pos_min(self._check_seq(seq))

    def seq_pos_max(self, seq: int) -> int:
        """The highest position of a sequence, -1 for an empty one. C: llama_memory_seq_pos_max"""
        return self._memory.seq_pos_max(self._check_seq(seq))

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
        ids = [whole("tokens", token, 0, last) for token in tokens]
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

    @alone(CHANGING)
    def record(self, per_op: bool = False) -> Recording:
        """Records what evaluations do within a `with` block: see `Recording`."""
        self._check_open()
        return self._graphs.record(per_op)

    # --- checks

    def _check_tokens(self, tokens: Any, seq: int) -> npt.NDArray[np.int32]:
        try:
            ids = np.asarray(tokens)
        except ValueError:  # lists of different lengths
            ids = np.empty((0, 0))
        huge = ids.dtype == object and all(type(i) is int for i in ids.flat)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu" and not huge):
            raise ModelError(f"tokens {reprlib.repr(tokens)}: expected a list of token ids (int)")
        if not ids.size:
            raise ModelError("no tokens: give at least one token id")
        if ids.min() < 0 or ids.max() >= self.hparams.n_vocab:
            bad = ids[(ids < 0) | (ids >= self.hparams.n_vocab)]
            raise ModelError(
                f"token {bad[0]} is not in the vocabulary: ids are 0 to {self.hparams.n_vocab - 1}"
            )
        self._check_room(ids.size, seq)
        return np.ascontiguousarray(ids, np.int32)

    def _check_room(self, n: int, seq: int = 0) -> None:
        self._memory.check_room(seq, n)
        n_past, n_positions = self._memory.seq_pos_max(seq) + 1, self.hparams.n_positions
        if n_past + n - 1 > POS_MAX:
            raise ModelError(
                f"{n} tokens after position {n_past - 1}: the last position is {POS_MAX}. Move "
                "what is there (seq_add), or call reset()"
            )
        if n_positions and n_past + n > n_positions:
            raise ModelError(
                f"the context is full: {n_past} tokens and {n} more are {n_past + n}, n_ctx is "
                f"{self.n_ctx_seq}. Call reset(), or evaluate fewer"
            )

    def _check_seq(self, seq: int) -> int:
        self._check_open()
        seq = whole("seq", seq, -POS_MAX, POS_MAX)
        check_seq(seq, self._memory)
        return seq

    def _check_range(self, p0: int, p1: int | None) -> tuple[int, int]:
        return whole("p0", p0, 0, POS_MAX), POS_MAX if p1 is None else whole("p1", p1, 0, POS_MAX)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this Model is closed: make another, or close it later")
        lib.gp_mapped_check()

    # --- lifetime

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

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

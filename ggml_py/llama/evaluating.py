"""Evaluates tokens in a libllama context that has weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import log as _log
from ..boundary.callback import Callback, raise_instead, raise_taken
from ..boundary.ffi import NULL, ffi
from ..boundary.ffi import lib as ggml
from ..boundary.uses import COMPUTING, in_use, reading
from ..errors import ArgumentError, ComputeError, ModelError
from ..scheduler.borrowed import BorrowedScheduler
from .batch import POS_MAX
from .batch_checks import CheckedBatch, checked_tokens
from .library import Library
from .likeliest import likeliest
from .native import ContextHandle, LlamaHandle
from .observer import Observer

if TYPE_CHECKING:
    import numpy.typing as npt

R = TypeVar("R")
_NO_ROOM, _ABORTED, _INVALID = 1, 2, -1  # results of llama_decode


class LlamaContext:
    """Tokens in, logits out: one llama_context."""

    def __init__(
        self,
        library: Library,
        model: LlamaHandle,
        context: ContextHandle,
        keeps_rows: bool = False,
        n_positions: int = POS_MAX,
        full_offload: bool = False,
    ) -> None:
        """With `keeps_rows` its graphs have logits for every token, whatever is asked for. The
        model has `n_positions` positions; with `full_offload` all its layers are to be on GPUs."""
        self.lib, self.ffi = library.lib, library.ffi
        self._model = model
        self.context = context
        lib = library.lib
        vocab = lib.llama_model_get_vocab(model.ptr)
        self.n_vocab = int(lib.llama_vocab_n_tokens(vocab))
        self.n_batch = int(lib.llama_n_batch(context.ptr))
        self._keeps_rows = keeps_rows
        self.n_positions = n_positions
        self.n_ubatch = int(lib.llama_n_ubatch(context.ptr))
        state = library.ffi.new("struct gpl_context_state *")
        lib.gpl_read_state(context.ptr, state)
        self._n_outputs = min(self.n_ubatch, int(state.n_outputs_max))
        memory = lib.llama_get_memory(context.ptr)
        self.memory = None if memory == NULL else memory  # a llama_memory_t
        self.observer = Observer(self, full_offload)
        self.moved = False  # whether keys are still to be rotated to other positions
        self.has_gaps = False  # whether sequences may have fewer tokens than their last position
        self.has_encoder = bool(lib.llama_model_has_encoder(model.ptr))
        self.has_state = bool(
            lib.llama_model_is_recurrent(model.ptr) or lib.llama_model_is_hybrid(model.ptr)
        )  # one for all tokens of a sequence, of which no part can be taken away

    @property
    def ptr(self) -> Any:
        """The llama_context."""
        return self.context.ptr

    @property
    def scheduler(self) -> BorrowedScheduler:
        """The scheduler that it computes on."""
        return self.context.scheduler

    def asked(self, function: Callable[..., Any], *args: Any) -> int:
        """What one of libllama's functions says of the memory, which nobody frees meanwhile; -1 if
        the model has none. Raises `ClosedError`."""
        with reading(self.context):
            return -1 if self.memory is None else int(function(self.memory, *args))

    def n_past(self, seq: int) -> int:
        """The next position of a sequence, for a caller that uses the context.
        C: llama_memory_seq_pos_max"""
        memory = self.memory
        return 0 if memory is None else int(self.lib.llama_memory_seq_pos_max(memory, seq)) + 1

    def state_size(self, seq: int) -> int:
        """Bytes of a sequence's state. C: llama_state_seq_get_size"""
        return int(self.lib.llama_state_seq_get_size(self.ptr, seq))

    def reset(self) -> None:
        """Empties all sequences. C: llama_memory_clear"""
        with in_use("being emptied", self.context):
            if self.memory is not None:
                self.lib.llama_memory_clear(self.memory, True)
            self.moved = self.has_gaps = False

    def eval(
        self,
        tokens: Sequence[int] | npt.NDArray[np.int32],
        all_logits: bool,
        seq: int,
        watching: Callback | None,
        end_graph: Callable[[], None] | None = None,
    ) -> npt.NDArray[np.float32]:
        """The logits [n_vocab] after the last token, or [n_tokens, n_vocab]. `end_graph` is called
        after each graph."""
        # Decoding: numpy's work for a single token takes longer than everything else here.
        token = tokens[0] if type(tokens) is list and len(tokens) == 1 else None
        observed = self.observer.starts()
        if not observed and watching is None and type(token) is int and 0 <= token < self.n_vocab:
            row = self._step(token, seq, self._row)
            return row.reshape(1, -1) if all_logits else row
        ids, rows = checked_tokens(tokens, self.n_vocab), []
        every = all_logits or self._keeps_rows
        if every:
            self._check_outputs(len(ids))
        with self.context.using(COMPUTING):
            start, done = self.n_past(seq), 0
            self._check_positions(start, len(ids))
            if watching is not None:
                if self.observer.per_op:
                    raise ArgumentError("a record with per_op uses the eval callback: end it first")
                self._watch(watching)
            try:
                single = observed or end_graph is not None
                for part in self._parts(ids, single):
                    done += len(part)
                    last = done == len(ids)
                    self._decode(part, start + done - len(part), seq, every, last, watching)
                    if observed:
                        self.observer.noted(len(part), len(part) if every else int(last))
                    if end_graph is not None:
                        end_graph()
                    rows += self._logits(len(part), every, last)
                if observed:
                    self.observer.end()
            except BaseException:
                self._forget(seq, start)
                raise
            finally:
                if watching is not None:  # a graph that keeps its callback is used again
                    self._watch(None)
        return np.concatenate(rows) if all_logits else rows[-1][-1]

    def _parts(self, ids: Any, single: bool) -> Iterator[Any]:
        """The tokens of each llama_decode: a batch, or with `single` a graph's, as libllama splits
        the tokens of one sequence after every n_ubatch."""
        for first in range(0, len(ids), self.n_batch):
            batch = ids[first : first + self.n_batch]
            step = self.n_ubatch if single else self.n_batch
            yield from (batch[i : i + step] for i in range(0, len(batch), step))

    def _note_last(self, n_tokens: int, n_outputs: int) -> None:
        """Notes the last graph of a llama_decode, for an observer."""
        if self.observer.starts():
            self.observer.noted(n_tokens, n_outputs)
            self.observer.end()

    def n_reused(self) -> int:
        """How many graphs were used again. C: llama_perf_context_data.n_reused"""
        return int(self.lib.llama_perf_context(self.ptr).n_reused)

    def likeliest_after(self, token: int, seq: int) -> int:
        """The likeliest token after one checked token, without a copy of the logits."""
        return self._step(token, seq, self._likeliest)

    def _step(self, token: int, seq: int, read: Callable[[], R]) -> R:
        """Evaluates one token and reads its logits: without arrays, as a generation consists of
        it."""
        with self.context.using(COMPUTING):
            start = self.n_past(seq)
            if start >= self.n_positions:
                self._check_positions(start, 1)
            batch, made = self._one
            made.token[0], made.pos[0], made.seq_id[0][0] = token, start, seq
            try:
                self._check(self.lib.llama_decode(self.context.ptr, batch), 1)
                self.lib.llama_synchronize(self.context.ptr)
                return read()
            except BaseException:
                self._forget(seq, start)
                raise

    def _last_row(self) -> Any:
        """The last token's logits, a float pointer of the core's."""
        pointer = self.lib.llama_get_logits_ith(self.context.ptr, -1)
        if pointer == NULL:
            raise ModelError("this model has no logits: see embed()")
        return ffi.cast("float *", int(self.ffi.cast("uintptr_t", pointer)))

    def _row(self) -> npt.NDArray[np.float32]:
        raw = ffi.buffer(self._last_row(), 4 * self.n_vocab)
        row: npt.NDArray[np.float32] = np.frombuffer(raw, np.float32).copy()
        return row

    def _likeliest(self) -> int:
        found = int(ggml.gp_likeliest(self._last_row(), self.n_vocab))
        return found if found >= 0 else likeliest(self._row())  # raises

    @cached_property
    def _one(self) -> tuple[Any, Any]:
        """A llama_batch of one token, by value, and as what may be changed of it."""
        self._one_kept, batch = self._kept_batch(np.zeros(1, np.int32), 0, 0, np.ones(1, np.int8))
        return batch[0], batch

    def _check_positions(self, start: int, n: int) -> None:
        """Raises `ModelError` if the model has no positions for n tokens from `start` on, or takes
        fewer at once."""
        if self.memory is None and n > self.n_ubatch:
            raise ModelError(
                f"{n} tokens: this model takes all tokens of a text at once, and n_ubatch is "
                f"{self.n_ubatch}: load with a larger n_ubatch (-ub), and n_batch (-b)"
            )
        if start + n > self.n_positions:
            raise ModelError(
                f"{n} token{'s' * (n != 1)} from position {start} on: the last one of this model "
                f"is {self.n_positions - 1:,}. Remove tokens (reset, seq_rm), or evaluate fewer"
            )

    def _check_outputs(self, n: int) -> None:
        """Raises `ModelError` if one graph has no room for the outputs of `n` tokens."""
        if min(n, self.n_ubatch) > self._n_outputs:
            raise ModelError(
                f"this context has room for the outputs of {self._n_outputs} tokens, and "
                f"{min(n, self.n_ubatch)} are needed: load with a larger n_outputs_max"
            )

    def _forget(self, seq: int, start: int) -> None:
        """Removes the tokens of an evaluation that failed. A recurrent state cannot go back to
        where it was: that sequence is emptied."""
        lib, memory = self.lib, self.memory
        if memory is not None and not lib.llama_memory_seq_rm(memory, seq, start, -1):
            lib.llama_memory_seq_rm(memory, seq, -1, -1)

    def decode(self, batch: CheckedBatch) -> npt.NDArray[np.float32]:
        """The logits [n_outputs, n_vocab] of a batch, in its order."""
        made, n = self.ffi, len(batch.token)
        wanted = np.array(batch.output, bool)
        output = np.ones(n, np.int8) if self._keeps_rows else wanted.astype(np.int8)
        self._check_outputs(int(output.sum()))
        ids, pos = np.array(batch.token, np.int32), np.array(batch.pos, np.int32)
        counts = np.array([len(seqs) for seqs in batch.seqs], np.int32)
        lists = [made.new("llama_seq_id[]", seqs) for seqs in batch.seqs]
        sequences = made.new("llama_seq_id *[]", lists)  # kept, as the arrays are
        native = self._batch_of(ids, pos, counts, sequences, output)
        with self.context.using(COMPUTING):
            before = {seq: self.n_past(seq) for seqs in batch.seqs for seq in seqs}
            mark = _log.mark()
            try:
                self._check(self.lib.llama_decode(self.ptr, native[0]), n, mark)
                self._note_last(n, int(output.sum()))
                rows = self._logits(int(output.sum()), True, True)[0] if output.any() else None
            except BaseException:
                for seq, start in before.items():
                    self._forget(seq, start)
                raise
        if rows is None:
            return np.empty((0, self.n_vocab), np.float32)
        return rows[wanted] if self._keeps_rows else rows

    def encode(self, tokens: Sequence[int]) -> None:
        """Gives the encoder of a model that has one its tokens. C: llama_encode"""
        if not self.has_encoder and self.memory is not None:  # libllama dies of it
            raise ModelError("this model has no encoder: give eval its tokens")
        ids = checked_tokens(tokens, self.n_vocab)
        with self.context.using(COMPUTING):
            batch = self._batch(ids, 0, 0, np.ones(len(ids), np.int8))
            self._check(self.lib.llama_encode(self.context.ptr, batch), len(ids))

    def _batch(self, ids: Any, pos: int, seq: int, output: Any) -> Any:
        """A llama_batch of tokens. It is kept until the next one is made."""
        self._kept, batch = self._kept_batch(ids, pos, seq, output)
        return batch[0]

    def _kept_batch(self, ids: Any, pos: int, seq: int, output: Any) -> tuple[Any, Any]:
        """The memory that the batch points to, and the batch."""
        made, n = self.ffi, len(ids)
        places, counts = np.arange(pos, pos + n, dtype=np.int32), np.ones(n, np.int32)
        one = made.new("llama_seq_id[1]", [seq])
        sequences = made.new("llama_seq_id *[]", [one] * n)
        batch = self._batch_of(ids, places, counts, sequences, output)
        return (ids, places, counts, output, one, sequences), batch

    def _batch_of(self, ids: Any, pos: Any, counts: Any, sequences: Any, output: Any) -> Any:
        """A llama_batch of arrays, which it points to."""
        made = self.ffi
        batch = made.new("struct llama_batch *")
        batch.n_tokens = len(ids)
        batch.token = made.cast("llama_token *", ffi.from_buffer(ids))
        batch.pos = made.cast("llama_pos *", ffi.from_buffer(pos))
        batch.n_seq_id = made.cast("int32_t *", ffi.from_buffer(counts))
        batch.seq_id = sequences
        batch.logits = made.cast("int8_t *", ffi.from_buffer(output))
        return batch

    def _decode(
        self, ids: Any, pos: int, seq: int, all_logits: bool, last: bool, watching: Callback | None
    ) -> None:
        output = np.full(len(ids), all_logits, np.int8)
        output[-1] |= last
        ids = np.ascontiguousarray(ids)
        try:
            status = self.lib.llama_decode(self.context.ptr, self._batch(ids, pos, seq, output))
            if watching is not None:
                raise_taken([watching])
        except BaseException as error:
            if watching is not None:
                raise_instead(error, [watching])
            raise
        self._check(status, len(ids))

    def _check(self, status: int, n: int, mark: int | None = None) -> None:
        """Raises for the status of a decode; `mark` is where its log begins."""
        if status == 0:
            self.moved = False
            return
        said = "; ".join(_log.since(mark)) if mark is not None else ""
        if "coupled sequences" in said:
            raise ModelError("a token of several sequences: load with kv_unified=True (-kvu)")
        if status == _NO_ROOM:
            raise ModelError(
                f"the context has no room for {n} more tokens: load with a larger n_ctx (-c), or "
                "remove some (reset, seq_rm)"
            )
        if status == _ABORTED:
            raise ComputeError("the evaluation was stopped")
        if said and status == _INVALID:
            raise ModelError(f"llama.cpp does not take this batch: {said}")
        raise ComputeError(f"llama.cpp could not evaluate {n} tokens (llama_decode: {status})")

    def _logits(self, n: int, all_logits: bool, last: bool) -> list[npt.NDArray[np.float32]]:
        """Copies of the rows that were asked for."""
        lib, made = self.lib, self.ffi
        lib.llama_synchronize(self.context.ptr)
        if not all_logits and not last:
            return []
        if not all_logits:
            return [self._row().reshape(1, -1)]
        pointer = lib.llama_get_logits(self.context.ptr)
        if pointer == NULL:
            raise ModelError("this model has no logits: see embed()")
        raw = made.buffer(pointer, 4 * n * self.n_vocab)
        return [np.frombuffer(raw, np.float32).reshape(n, self.n_vocab).copy()]

    def embed(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The model's embedding of a text, [n_embd], in an empty context: pooled as the model says,
        otherwise one row per token, [n_tokens, n_embd]. Leaves it empty.
        C: llama_get_embeddings_seq"""
        lib, made = self.lib, self.ffi
        ids = checked_tokens(tokens, self.n_vocab)
        self._check_outputs(len(ids))
        self._check_positions(0, len(ids))
        self.reset()
        with self.context.using(COMPUTING):
            lib.llama_set_embeddings(self.context.ptr, True)
            try:
                batch = self._batch(ids, 0, 0, np.ones(len(ids), np.int8))
                self._check(lib.llama_decode(self.context.ptr, batch), len(ids))
                self._note_last(len(ids), len(ids))
                lib.llama_synchronize(self.context.ptr)
                pooled = lib.llama_get_embeddings_seq(self.context.ptr, 0)
                n_embd = int(lib.llama_model_n_embd_out(self._model.ptr))
                shape = (n_embd,) if pooled != NULL else (len(ids), n_embd)
                each = pooled if pooled != NULL else lib.llama_get_embeddings(self.context.ptr)
                raw = made.buffer(each, 4 * n_embd * (1 if pooled != NULL else len(ids)))
                rows: npt.NDArray[np.float32] = np.frombuffer(raw, np.float32).reshape(shape)
                return np.array(rows)
            finally:
                self._forget(0, 0)  # the next evaluation does not continue this text
                lib.llama_set_embeddings(self.context.ptr, False)

    def _watch(self, watching: Callback | None) -> None:
        if watching is None:
            self.set_eval_callback(NULL)
        else:
            self.set_eval_callback(ggml.gp_on_eval, watching.handle)

    def set_eval_callback(self, function: Any, data: Any = NULL) -> None:
        """Gives graphs from now on an eval callback, or NULL to take it away."""
        address = int(ffi.cast("uintptr_t", function))
        callback = self.ffi.cast("ggml_backend_sched_eval_callback", address)
        self.lib.gpl_set_eval_callback(self.context.ptr, callback, data)

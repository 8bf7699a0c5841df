"""The sequences of a model of libllama: batches, positions, and sequences as bytes and files."""

from __future__ import annotations

import os
import stat
import struct
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import log as _log
from ..boundary.arguments import describe, integer
from ..errors import AbortError, GgmlError, ModelError
from ..files.writing import whole_file
from ..typed import typed
from .batch import POS_MAX, Batch
from .batch_checks import checked
from .model import Model

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .evaluating import LlamaContext

_CHANGING, _SAVING = "being changed", "being saved"
_END = -1  # a position: the end of a sequence
_MOST_TOKENS = 1 << 24  # that are saved with a sequence
_STATE_HEAD = 8  # bytes of a state in memory that a file does not have: a mark, the sequence


class SequenceCalls(Model):
    """Changes and saves the sequences of a model. The base class of `LlamaModel`."""

    _running: LlamaContext | None

    @abstractmethod
    def _loaded(self) -> LlamaContext:
        """The context with weights."""

    # --- tokens

    def decode(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Evaluates a batch of tokens of any sequences. Returns the logits [n_outputs, n_vocab] of
        the tokens that were added with `logits`, in the batch's order.

        If it fails, the sequences are as before the call. They are empty instead if the model is
        recurrent, or if a window has moved on. Raises `ModelError` for an empty batch, for more
        tokens than n_batch or the context takes, for unknown tokens and sequences, and for
        positions that do not continue where their sequence
        ends. C: llama_decode
        """
        if not isinstance(batch, Batch):
            raise TypeError(f"batch: expected a Batch, got {describe(batch)}")
        if len(batch) > self.n_batch:
            raise ModelError(
                f"a batch of {len(batch)} tokens: expected at most {self.n_batch} (n_batch)"
            )
        context = self._loaded()
        return context.decode(checked(batch, self, context.n_vocab, context.n_positions))

    # --- positions

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position of a sequence, -1 if it is empty. If layers have a window, the lowest
        position that they still have. C: llama_memory_seq_pos_min"""
        return self._position(seq, "llama_memory_seq_pos_min")

    def seq_pos_max(self, seq: int) -> int:
        """The highest position of a sequence, -1 if it is empty. C: llama_memory_seq_pos_max"""
        return self._position(seq, "llama_memory_seq_pos_max")

    def _position(self, seq: int, name: str) -> int:
        seq = self._seq(seq)
        context = self._running
        return -1 if context is None else context.asked(getattr(context.lib, name), seq)

    def seq_rm(self, seq: int, p0: int = 0, p1: int | None = None) -> None:
        """Removes a sequence's tokens at positions [p0, p1), or from p0 to the end.

        Later tokens keep their positions: use `seq_add` to move them. Removing the end does not
        bring back tokens that layers with a window have forgotten: `seq_pos_min` is the first one
        that they still have. Raises `ModelError` for a part of a sequence of a recurrent model,
        which has a single state for all tokens. C: llama_memory_seq_rm
        """
        seq, span = self._seq(seq), _range(p0, p1)
        with self._changing() as (context, memory):
            # libllama says yes to a part that does not reach the end, and keeps the state.
            keeps = context.has_state and p1 is not None and p0 < p1 <= self.seq_pos_max(seq)
            if keeps or not context.lib.llama_memory_seq_rm(memory, seq, *span):
                raise ModelError(
                    f"seq_rm: this model cannot remove a part of sequence {seq}, as it has one "
                    "state for all of its tokens: remove the whole (seq_rm(seq)), or save the "
                    "state before (seq_state)"
                )
            context.has_gaps |= p1 is not None

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int | None = None) -> None:
        """Adds the tokens of `src` to `dst`. Nothing is copied if the sequences share one cache.
        Otherwise, and in recurrent models, the whole of `src` replaces `dst`, and a part raises
        `ModelError`.
        C: llama_memory_seq_cp"""
        src, dst, span = self._seq(src), self._seq(dst), _range(p0, p1)
        with self._changing() as (context, memory):
            ends = p1 is not None and p1 <= self.seq_pos_max(src)
            if context.has_state and (p0 > 0 or ends):
                raise ModelError(
                    f"seq_cp({src}, {dst}, {p0}, {p1}): this model has one state for all tokens of "
                    "a sequence, which is copied as a whole: seq_cp(src, dst)"
                )
            try:
                context.lib.llama_memory_seq_cp(memory, src, dst, *span)
            except AbortError as error:
                raise ModelError(
                    f"seq_cp({src}, {dst}, {p0}, {p1}): a sequence with a cache of its own is "
                    f"copied as a whole (or load with kv_unified=True, -kvu): {error}"
                ) from None

    def seq_keep(self, seq: int) -> None:
        """Removes all other sequences, those in streams of their own too, which upstream's
        llama_memory_seq_keep leaves. C: llama_memory_seq_rm"""
        seq = self._seq(seq)
        with self._changing() as (context, memory):
            for other in range(self.n_seq_max):
                if other != seq:
                    context.lib.llama_memory_seq_rm(memory, other, -1, -1)

    def seq_add(self, seq: int, p0: int, p1: int | None, delta: int) -> None:
        """Adds `delta`, which may be negative, to the positions of tokens. Tokens that would move
        below position 0 are removed.

        Keys are rotated before the next evaluation. The tokens also move in other sequences that
        share them. Raises `ModelError` if the model's positions cannot be moved.
        C: llama_memory_seq_add
        """
        delta = integer("delta", delta, -POS_MAX, POS_MAX)
        seq, span = self._seq(seq), _range(p0, p1)
        with self._moving("seq_add", delta != 0) as (context, memory):
            context.lib.llama_memory_seq_add(memory, seq, *span, delta)

    def seq_div(self, seq: int, p0: int, p1: int | None, d: int) -> None:
        """Divides the positions of tokens by `d`, as `seq_add` adds to them. But the keys are
        rotated the wrong way in this release. C: llama_memory_seq_div"""
        d = integer("d", d, 1, POS_MAX)
        seq, span = self._seq(seq), _range(p0, p1)
        with self._moving("seq_div", d != 1) as (context, memory):
            context.lib.llama_memory_seq_div(memory, seq, *span, d)

    @contextmanager
    def _moving(self, what: str, moves: bool) -> Iterator[tuple[LlamaContext, Any]]:
        with self._changing() as (context, memory):
            if not context.lib.llama_memory_can_shift(memory):
                raise ModelError(f"{what}: the positions of this model cannot be moved")
            context.moved |= moves
            context.has_gaps |= moves
            yield context, memory

    # --- bytes and files

    def seq_state(self, seq: int = 0) -> bytes:
        """The bytes of a sequence, for `set_seq_state`: its cells with positions, keys and values,
        or its recurrent state. C: llama_state_seq_get_data"""
        seq = self._seq(seq)
        with self._changing(_SAVING) as (context, _memory):
            return _state(context, seq)

    def set_seq_state(self, seq: int, data: bytes) -> None:
        """Replaces a sequence by one that `seq_state` or libllama saved. It may come from another
        sequence, and from another context of the same model with the same cache types.

        Raises `ModelError` if the data is damaged or from another model, or if there are not enough
        free cells. It then changes nothing, unless the sequence shares tokens with others in a full
        context: it is empty then, and the error says so. C: llama_state_seq_set_data
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data: expected bytes, got {describe(data)}")
        content = bytes(data)
        with self._replacing(self._seq(seq), "the state") as (context, seq):
            args = (context.ptr, content, len(content), seq)
            _all_taken(int(context.lib.llama_state_seq_set_data(*args)), len(content))

    @typed
    def save_seq(
        self, path: str | os.PathLike[str], seq: int = 0, tokens: Sequence[int] = ()
    ) -> None:
        """Writes a sequence to a file, with `tokens` if they are given.

        The file appears under its name when it is complete. Raises OSError, and then leaves an
        existing file unchanged. C: llama_state_seq_save_file
        """
        seq = self._seq(seq)
        with self._changing(_SAVING) as (context, _memory), whole_file(Path(path)) as out:
            last = context.n_vocab - 1
            ids = [integer("tokens", token, 0, last) for token in tokens]
            lib, state = context.lib, memoryview(_state(context, seq))
            head = (lib.LLAMA_FILE_MAGIC_GGSQ, lib.LLAMA_STATE_SEQ_VERSION, len(ids))
            # libllama itself does not notice when the end of the file is lost.
            out.write(struct.pack(f"<3I{len(ids)}i", *head, *ids))
            out.write(state[_STATE_HEAD:])

    @typed
    def load_seq(self, path: str | os.PathLike[str], seq: int = 0) -> list[int]:
        """Replaces a sequence by one from a file that `save_seq` or libllama wrote. Returns the
        tokens that were saved with it.

        Raises OSError, and `ModelError` as `set_seq_state` does. C: llama_state_seq_load_file
        """
        found = Path(path).stat()
        if not stat.S_ISREG(found.st_mode):
            raise ModelError(f"{os.fspath(path)}: expected the file of a sequence (save_seq)")
        with self._replacing(self._seq(seq), os.fspath(path)) as (context, seq):
            ffi, most = context.ffi, min(found.st_size // 4, _MOST_TOKENS)
            ids, n = ffi.new("llama_token[]", most + 1), ffi.new("size_t *")
            args = (context.ptr, os.fsencode(path), seq, ids, most, n)
            _all_taken(int(context.lib.llama_state_seq_load_file(*args)), found.st_size)
            return [int(token) for token in ids[0 : n[0]]]

    @contextmanager
    def _replacing(self, seq: int, what: str) -> Iterator[tuple[LlamaContext, int]]:
        """Around a call that replaces a sequence. If it fails, the sequence is as before, and
        `ModelError` names libllama's reason."""
        with self._changing() as (context, memory):
            before, mark = _state(context, seq), _log.mark()
            context.lib.llama_memory_seq_rm(memory, seq, -1, -1)  # an empty state leaves it
            try:
                empty = context.state_size(seq)
                context.has_gaps = True
                yield context, seq
                taken, first, last = (
                    _state(context, seq), self.seq_pos_min(seq), self.seq_pos_max(seq)
                )  # fmt: skip
                wrong = last >= POS_MAX - 1 or (first < 0 and context.state_size(seq) > empty)
                context.lib.llama_memory_seq_rm(memory, seq, -1, -1)
                # Cells at positions below 0 stay, in whichever of the model's caches they are.
                if wrong or context.state_size(seq) > empty:
                    raise ModelError("it has impossible positions")
                context.lib.llama_state_seq_set_data(context.ptr, taken, len(taken), seq)
            except BaseException as error:
                why = str(error) or _said(mark) or "it is damaged, or another model's"
                context.lib.llama_memory_seq_rm(memory, seq, -1, -1)
                found = {seq: before}
                if context.state_size(seq) > empty:  # cells at positions below 0 stay otherwise
                    others = (s for s in range(self.n_seq_max) if self.seq_pos_max(s) >= 0)
                    found |= {s: _state(context, s) for s in others if s != seq}
                    context.lib.llama_memory_clear(memory, True)
                args = [(context.ptr, state, len(state), s) for s, state in found.items()]
                lost = [a[3] for a in args if not context.lib.llama_state_seq_set_data(*a)]
                if not isinstance(error, GgmlError):
                    raise
                if lost:  # tokens that it shared with others need cells of their own now
                    why += f". There is no room to restore sequence {lost[0]}: it is empty now"
                raise ModelError(f"{what} is not a sequence of this model: {why}") from None

    # --- checks

    @contextmanager
    def _changing(self, doing: str = _CHANGING) -> Iterator[tuple[LlamaContext, Any]]:
        """The context and its memory, which no other call uses meanwhile."""
        context = self._loaded()
        if context.memory is None:
            raise ModelError("this model has no sequences: it keeps nothing between evaluations")
        with context.context.using(doing):
            yield context, context.memory


def _range(p0: int, p1: int | None) -> tuple[int, int]:
    last = _END if p1 is None else integer("p1", p1, 0, POS_MAX)
    return integer("p0", p0, 0, POS_MAX), last


def _all_taken(n: int, nbytes: int) -> None:
    """Raises `ModelError` if libllama took none or not all of the bytes."""
    if not n or n != nbytes:
        raise ModelError(f"{nbytes - n:,} bytes too many" if n else "")


def _said(mark: int) -> str:
    """What libllama logged as errors since then, without the names of its functions."""
    return "; ".join(line.partition(": ")[2] or line for line in _log.since(mark))


def _settled(context: LlamaContext) -> None:
    """Raises `ModelError` if keys are still to be rotated: libllama would save them as they are."""
    if context.moved:
        raise ModelError(
            "positions were moved (seq_add) and their keys are rotated by the next evaluation: "
            "evaluate a token before you save"
        )


def _state(context: LlamaContext, seq: int) -> bytes:
    _settled(context)
    n = context.state_size(seq)
    content = context.ffi.new("uint8_t[]", n)
    n = int(context.lib.llama_state_seq_get_data(context.ptr, content, n, seq))
    return bytes(context.ffi.buffer(content, n))

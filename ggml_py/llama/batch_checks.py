"""Checks a batch before it is evaluated (llama_batch_allocr::init)."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..errors import ModelError
from .batch import Batch

if TYPE_CHECKING:
    import numpy.typing as npt

Seqs = tuple[int, ...]  # the sequences of a token, which sees the past of the first


class HasSequences(Protocol):
    """A model with sequences."""

    @property
    def n_seq_max(self) -> int:
        """How many sequences there are."""


class Sequences(HasSequences, Protocol):
    """A model's sequences, as checks of a batch need them."""

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position of a sequence, -1 if it is empty."""

    def seq_pos_max(self, seq: int) -> int:
        """The highest position of a sequence, -1 if it is empty."""


class CheckedBatch(NamedTuple):
    """A batch that was checked, with all positions."""

    token: Sequence[int]
    pos: Sequence[int]
    seqs: Sequence[Seqs]
    output: Sequence[bool]  # whose logits are wanted


def checked(batch: Batch, memory: Sequences, n_vocab: int, n_positions: int) -> CheckedBatch:
    """The tokens of a valid batch, with the missing positions filled in. Raises `ModelError` for
    tokens and sequences that do not exist, and for positions that do not follow each other."""
    if not len(batch):
        raise ModelError("an empty batch: add at least one token")
    for i, token in enumerate(batch.token):
        if not 0 <= token < n_vocab:
            raise ModelError(
                f"token {token} (number {i} of the batch) is not in the vocabulary: ids are 0 to "
                f"{n_vocab - 1}"
            )
    for i, seqs in enumerate(batch.seq):
        for seq in seqs:
            check_seq(seq, memory, f" (token {i} of the batch)")
    pos = _positions(batch, memory)
    _check_positions(batch, pos, memory, n_positions)
    _check_coupled(batch, memory)
    return CheckedBatch(tuple(batch.token), pos, tuple(batch.seq), tuple(batch.logits))


def checked_tokens(tokens: Any, n_vocab: int) -> npt.NDArray[np.int32]:
    """Token ids as an array. Raises `ModelError` for none, and for ids outside the vocabulary."""
    try:
        ids = np.asarray(tokens)
    except ValueError:  # lists of different lengths
        ids = np.empty((0, 0))
    huge = ids.dtype == object and all(type(i) is int for i in ids.flat)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu" and not huge):
        raise ModelError(f"tokens {reprlib.repr(tokens)}: expected a list of token ids (int)")
    if not ids.size:
        raise ModelError("no tokens: give at least one token id")
    if ids.min() < 0 or ids.max() >= n_vocab:
        bad = ids[(ids < 0) | (ids >= n_vocab)]
        raise ModelError(f"token {bad[0]} is not in the vocabulary: ids are 0 to {n_vocab - 1}")
    return np.ascontiguousarray(ids, np.int32)


def check_seq(seq: int, memory: HasSequences, where: str = "") -> None:
    """Raises `ModelError` for a sequence that does not exist."""
    if not 0 <= seq < memory.n_seq_max:
        raise ModelError(
            f"sequence {seq}{where}: expected 0 to {memory.n_seq_max - 1}. For more sequences load "
            "with a larger n_seq_max"
        )


def _positions(batch: Batch, memory: Sequences) -> list[int]:
    after: dict[int, int] = {}  # the last token so far, by sequence
    out = []
    for pos, seqs in zip(batch.pos, batch.seq, strict=True):
        if pos is None:
            pos = after.get(seqs[0], -1)
            if pos < 0:
                pos = memory.seq_pos_max(seqs[0]) + 1
        for seq in seqs:
            after[seq] = pos + 1
        out.append(pos)
    return out


def _check_positions(batch: Batch, pos: list[int], memory: Sequences, n_positions: int) -> None:
    """Checks that each sequence's positions continue where it ends, without gaps. A position may
    come twice."""
    before: dict[int, int] = {}
    for i, (p, seqs) in enumerate(zip(pos, batch.seq, strict=True)):
        for seq in seqs:
            last = before.get(seq)
            if last is None:
                last = memory.seq_pos_max(seq)
                ok = last < 0 or p == last + 1
            else:
                ok = p in (last, last + 1)
            if not ok:
                raise ModelError(
                    f"position {p} (token {i} of the batch): the last token of sequence {seq} is "
                    f"at {last}, so the next one must be at {last + 1}"
                )
            before[seq] = p
        if p >= n_positions:
            raise ModelError(
                f"position {p} (token {i} of the batch): the last one of this model is "
                f"{n_positions - 1:,}"
            )


def _check_coupled(batch: Batch, memory: Sequences) -> None:
    """Checks that sequences which share a token continue from the same position."""
    for seqs in dict.fromkeys(batch.seq):
        for seq in seqs[1:]:
            if _span(memory, seq) != _span(memory, seqs[0]):
                raise ModelError(
                    f"sequences {seqs} cannot share a token: sequence {seqs[0]} has "
                    f"positions {_span(memory, seqs[0])}, but {seq} has {_span(memory, seq)}. "
                    "Use seq_cp to make them equal first"
                )


def _span(memory: Sequences, seq: int) -> tuple[int, int]:
    return memory.seq_pos_min(seq), memory.seq_pos_max(seq)

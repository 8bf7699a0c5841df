"""The cells of one cache: one stream for all sequences, or one for each (llama-kv-cache.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .cells import Cells, Idxs, Saved
from .ubatch import Ubatch

if TYPE_CHECKING:
    import numpy.typing as npt

Slot = list[Idxs]  # the cells of a ubatch's tokens, by stream


class Streams:
    """`n_stream` streams of `size` cells: one for all `n_seq_max` sequences, or one for each."""

    def __init__(self, size: int, n_seq_max: int, n_stream: int, n_swa: int = 0) -> None:
        self.size = size
        self.n_stream = n_stream
        self.n_swa = n_swa
        n_seq = n_seq_max if n_stream == 1 else 1
        self.streams = [Cells(size, n_seq, n_swa) for _ in range(n_stream)]

    def of(self, seq: int) -> tuple[Cells, int]:
        """The stream of a sequence, and the sequence's number in it."""
        return (self.streams[0], seq) if self.n_stream == 1 else (self.streams[seq], 0)

    # --- state

    def first(self, seq: int) -> int:
        """The lowest position of a sequence, -1 if it is empty."""
        cells, row = self.of(seq)
        return cells.first(row)

    def last(self, seq: int) -> int:
        """The highest position of a sequence, -1 if it is empty."""
        cells, row = self.of(seq)
        return cells.last(row)

    @property
    def has_shift(self) -> bool:
        """Whether positions were moved since the keys were last rotated."""
        return any(cells.has_shift for cells in self.streams)

    def n_kv(self, seqs: Sequence[int]) -> int:
        """How many cells attention reads for tokens of these sequences."""
        if self.n_stream == 1:
            return self.streams[0].n_kv()
        return max(self.streams[seq].n_kv() for seq in seqs)

    # --- new tokens

    def find(self, ubatch: Ubatch) -> Slot | None:
        """Cells for the ubatch's tokens, None if there are not enough free ones."""
        slot: Slot = []
        if self.n_stream == 1:
            wanted = [(self.streams[0], ubatch.n_tokens)]
        else:
            wanted = [(self.streams[seq], ubatch.n_seq_tokens) for seq in ubatch.seq_ids]
        for cells, n in wanted:
            idxs = cells.find(n)
            if idxs is None:
                return None
            slot.append(idxs)
        return slot

    def put(self, ubatch: Ubatch, slot: Slot) -> None:
        """Gives the cells to the ubatch's tokens."""
        if self.n_stream == 1:
            self.streams[0].put(slot[0], ubatch.pos, ubatch.sets)
            return
        n = ubatch.n_seq_tokens
        for i, (seq, idxs) in enumerate(zip(ubatch.seq_ids, slot, strict=True)):
            pos = ubatch.pos[i * n : (i + 1) * n]
            self.streams[seq].put(idxs, pos, [((0,), slice(None))])

    def prepare(self, ubatches: list[Ubatch]) -> list[Slot] | None:
        """Cells for the tokens of each ubatch, after the ubatches before it have taken theirs. None
        if there are not enough.

        Leaves everything as it was, except that a window's tokens whose cells later ubatches need
        are gone for earlier ubatches too, as upstream. C: llama_kv_cache::prepare
        """
        slots: list[Slot] = []
        before: list[list[tuple[Cells, Saved]]] = []
        for ubatch in ubatches:
            slot = self.find(ubatch)
            if slot is None:
                break
            slots.append(slot)
            if len(ubatches) > 1:
                pairs = zip(self._streams_of(ubatch), slot, strict=True)
                before.append([(cells, cells.save(idxs)) for cells, idxs in pairs])
                self.put(ubatch, slot)
        for states in reversed(before):
            for cells, saved in states:
                cells.restore(saved)
        return slots if len(slots) == len(ubatches) else None

    def _streams_of(self, ubatch: Ubatch) -> list[Cells]:
        if self.n_stream == 1:
            return self.streams
        return [self.streams[seq] for seq in ubatch.seq_ids]

    # --- values of inputs

    def idxs(self, ubatch: Ubatch, slot: Slot) -> Idxs:
        """The cells of the ubatch's tokens, counted through all streams."""
        if self.n_stream == 1:
            return slot[0]
        pairs = zip(ubatch.seq_ids, slot, strict=True)
        return np.concatenate([seq * self.size + idxs for seq, idxs in pairs])

    def fill_mask(self, mask: npt.NDArray[Any], ubatch: Ubatch) -> None:
        """Fills mask [n_stream, n_rows, n_kv] (numpy's order), see `Cells.fill_mask`. Rows after
        the graph's tokens are padding."""
        n_rows = ubatch.n_tokens // len(mask)
        if mask.shape[1] > n_rows:
            mask[:, n_rows:] = -np.inf
        for i, (seqs, at) in enumerate(ubatch.sets):
            cells, row = self.of(seqs[0])
            if self.n_stream > 1:
                cells.fill_mask(mask[i, :n_rows], row, ubatch.pos[at])
            elif isinstance(at, slice):
                cells.fill_mask(mask[0, at], row, ubatch.pos[at])
            else:
                rows = np.empty((len(at), mask.shape[2]), mask.dtype)
                cells.fill_mask(rows, row, ubatch.pos[at])
                mask[0, at] = rows

    def shifts(self) -> npt.NDArray[np.int32]:
        """How far each cell's key must be rotated, in positions, for all streams in turn."""
        return np.concatenate([cells.shift for cells in self.streams])

    # --- save and restore

    def save(self) -> list[Saved]:
        """A copy of the state for `restore`."""
        return [cells.save() for cells in self.streams]

    def restore(self, saved: list[Saved], written: list[tuple[Ubatch, Slot]]) -> set[int]:
        """Puts the cells back as they were, and empties those whose keys and values were
        overwritten (`written`). Returns the sequences whose next token needs an emptied cell."""
        for cells, state in zip(self.streams, saved, strict=True):
            cells.restore(state)
        missed: set[int] = set()
        for ubatch, slot in written:
            pairs = zip(self._streams_of(ubatch), slot, strict=True)
            for cells, idxs in pairs:
                for idx in idxs[cells.pos[idxs] >= 0].tolist():
                    pos, seq = int(cells.pos[idx]), int(cells.has[:, idx].argmax())
                    if pos > cells.last(seq) + 1 - self.n_swa:
                        missed.add(seq if self.n_stream == 1 else self.streams.index(cells))
                    cells.drop(idx)
        return missed

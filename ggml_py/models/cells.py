"""Which cell of a cache holds the token of which position and sequences (llama-kv-cells.h).

What is done for one more token of one sequence is done without a look at all cells, for that is
most of what a model does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

Idxs = np.ndarray[Any, np.dtype[np.int64]]
PAD = 256  # cells: llama.cpp pads the context and the part of it that attention reads to this
POS_END = (1 << 31) - 1  # after every position


def pad(n: int) -> int:
    """`n` rounded up to whole steps of `PAD`."""
    return -(-n // PAD) * PAD


def padded_n_kv(n_used: int, size: int) -> int:
    """Cells that attention reads when the first `n_used` are used: more, so that a graph lasts."""
    return min(size, max(PAD, pad(n_used)))


class Saved(NamedTuple):
    """The state of some cells."""

    idxs: Idxs | slice
    pos: npt.NDArray[np.int32]
    shift: npt.NDArray[np.int32]
    has: npt.NDArray[np.bool_]
    head: int
    has_shift: bool


class Cells:
    """Cells of which each is empty, or has a position and at least one of `n_seq` sequences.

    With a window of `n_swa` tokens, cells that no later token of their sequence will see count as
    free. `shift` is what was added to positions since the keys in the cells were rotated.
    """

    def __init__(self, size: int, n_seq: int, n_swa: int = 0) -> None:
        self.size = size
        self.n_swa = n_swa
        self.pos = np.full(size, -1, np.int32)  # -1: empty
        self.shift = np.zeros(size, np.int32)
        self.has = np.zeros((n_seq, size), np.bool_)  # whether the cell is of that sequence
        self._all = np.arange(size, dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        """Nothing is used."""
        self.pos.fill(-1)
        self.shift.fill(0)
        self.has.fill(False)
        self.head = 0  # where the search for free cells begins
        self.has_shift = False
        self._forget()

    def _forget(self) -> None:
        """What was derived of the cells is not so any more."""
        n_seq = len(self.has)
        self._n_used: int | None = None
        self._end: int | None = None
        self._n_kv = 0
        self._first: list[int | None] = [None] * n_seq
        self._last: list[int | None] = [None] * n_seq
        self._visible: dict[int, npt.NDArray[Any]] = {}

    # --- what is there

    @property
    def n_used(self) -> int:
        """Cells that are not empty."""
        if self._n_used is None:
            self._n_used = int(np.count_nonzero(self.pos >= 0))
        return self._n_used

    @property
    def end(self) -> int:
        """The last of those and one."""
        if self._end is None:
            used = np.flatnonzero(self.pos >= 0)
            self._end = int(used[-1]) + 1 if used.size else 0
        return self._end

    def n_kv(self) -> int:
        """Cells that attention reads."""
        if not self._n_kv:
            self._n_kv = padded_n_kv(self.end, self.size)
        return self._n_kv

    def first(self, seq: int) -> int:
        """The lowest position of a sequence, -1 without one."""
        found = self._first[seq]
        if found is None:
            mine = self.pos[self.has[seq]]
            found = self._first[seq] = int(mine.min()) if mine.size else -1
        return found

    def last(self, seq: int) -> int:
        """The highest position of a sequence, -1 without one."""
        found = self._last[seq]
        if found is None:
            mine = self.pos[self.has[seq]]
            found = self._last[seq] = int(mine.max()) if mine.size else -1
        return found

    def n_free(self) -> int:
        """Cells that `find` can give."""
        return int(np.count_nonzero(self._free()))

    # --- new tokens

    def find(self, n: int) -> Idxs | None:
        """Cells for n tokens; None where so many are not free. C: llama_kv_cache::find_slot"""
        head = self.head
        if head > self.n_used + 2 * n:
            head = 0
        if head + n <= self.size:
            ahead = self.pos[head : head + n]
            if self._is_free(head) if n == 1 else ahead.max() < 0:
                return self._all[head : head + n]
        free = np.flatnonzero(self._free())
        if len(free) < n:
            return None
        return np.roll(free, -int(np.searchsorted(free, head)))[:n]

    def _is_free(self, idx: int) -> bool:
        pos = self.pos[idx]
        if pos < 0 or not self.n_swa:
            return bool(pos < 0)
        seqs = self.has[:, idx].nonzero()[0]
        return len(seqs) == 1 and bool(pos <= self.last(int(seqs[0])) + 1 - self.n_swa)

    def _free(self) -> npt.NDArray[np.bool_]:
        free = self.pos < 0
        if self.n_swa:
            alone = self.has.sum(0) == 1
            for seq, mine in enumerate(self.has):
                if self.last(seq) >= 0:
                    free |= mine & alone & (self.pos <= self.last(seq) + 1 - self.n_swa)
        return free

    def put_one(self, idx: int, pos: int, seq: int) -> None:
        """`put` for a token of one sequence that comes after its last."""
        lost, until = -1, int(self.pos[idx])
        if until >= 0:
            lost = int(self.has[:, idx].argmax())
            self.has[lost, idx] = False
            self._first[lost] = None
            if self._last[lost] == until:
                self._last[lost] = None
            if self._n_used is not None:
                self._n_used -= 1
        self.pos[idx] = pos
        self.has[seq, idx] = True
        self._last[seq] = pos
        if self._first[seq] == -1:
            self._first[seq] = pos
        if self._n_used is not None:
            self._n_used += 1
        self._grow(idx + 1)
        if self._visible and seq in self._visible:
            self._visible[seq][idx] = 0.0
        if lost >= 0 and 0 <= self.first(lost) <= until:
            self.rm(lost, self.first(lost), until + 1)
        self.head = idx + 1

    def put(self, idxs: Idxs, pos: npt.NDArray[np.int32], sets: list[tuple[Any, Any]]) -> None:
        """Gives cells to tokens at positions `pos`; `sets` are sequences and the tokens that have
        them. C: llama_kv_cache::apply_ubatch"""
        lost = self._take(idxs)
        self.pos[idxs] = pos
        for seqs, at in sets:
            for seq in seqs:
                self._give(seq, idxs[at], pos[at])
        if lost:
            self._forget()
        else:
            if self._n_used is not None:
                self._n_used += len(idxs)
            self._grow(int(idxs.max()) + 1)
        # Without gaps between a sequence's positions, what is older than the lost ones goes too.
        for seq, until in lost:
            if 0 <= self.first(seq) <= until:
                self.rm(seq, self.first(seq), until + 1)
        self.head = int(idxs[-1]) + 1

    def _give(self, seq: int, idxs: Idxs, pos: npt.NDArray[np.int32]) -> None:
        """Cells are a sequence's, too."""
        self.has[seq, idxs] = True
        first, last = self._first[seq], self._last[seq]
        if first is not None:
            self._first[seq] = int(pos.min()) if first < 0 else min(first, int(pos.min()))
        if last is not None:
            self._last[seq] = max(last, int(pos.max()))
        if seq in self._visible:
            self._visible[seq][idxs] = 0.0

    def _grow(self, end: int) -> None:
        """Cells before `end` are used."""
        if self._end is not None and self._end < end:
            self._end = end
            if end > self._n_kv:
                self._n_kv = 0

    def _take(self, idxs: Idxs) -> list[tuple[int, int]]:
        """Empties cells that are used: sequences that lost some, and the highest position."""
        old = self.pos[idxs]
        if not self.n_swa or old.max() < 0:
            return []
        lost = [
            (seq, int(old[mine].max())) for seq, mine in enumerate(self.has[:, idxs]) if mine.any()
        ]
        self.has[:, idxs] = False
        self.shift[idxs] = 0
        return lost

    # --- sequences

    def rm(self, seq: int, p0: int, p1: int) -> None:
        """A sequence loses its tokens at positions p0 to p1, p1 not among them."""
        mine = self._at(seq, p0, p1)
        self.has[seq, mine] = False
        self._empty(mine & ~self.has.any(0))

    def _at(self, seq: int, p0: int, p1: int) -> npt.NDArray[np.bool_]:
        at: npt.NDArray[np.bool_] = self.has[seq] & (self.pos >= p0) & (self.pos < p1)
        return at

    def _empty(self, gone: npt.NDArray[np.bool_]) -> None:
        """Cells that have no sequence any more."""
        self.pos[gone] = -1
        self.shift[gone] = 0
        self._forget()
        idxs = np.flatnonzero(gone)
        if idxs.size:
            self.head = min(self.head, int(idxs[0]))

    def drop(self, idx: int) -> None:
        """Empties a cell."""
        self.has[:, idx] = False
        self.pos[idx] = -1
        self.shift[idx] = 0
        self._forget()

    def mend(self) -> None:
        """Empties cells that have a position or a sequence, but not both: a signal came between."""
        self.has[:, self.pos < 0] = False
        self.pos[~self.has.any(0)] = -1
        self._forget()

    def keep(self, seq: int) -> None:
        """All other sequences lose their tokens."""
        gone = (self.pos >= 0) & ~self.has[seq]
        self.has[np.arange(len(self.has)) != seq] = False
        self._empty(gone)

    def cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """The tokens of `src` at those positions are of `dst`, too."""
        self.has[dst] |= self._at(src, p0, p1)
        self._forget()

    def cp_from(self, other: Cells, src: int) -> None:
        """The tokens of another stream's sequence, in the same cells, and nothing else."""
        self.clear()
        mine = other.has[src]
        self.pos[mine] = other.pos[mine]
        self.shift[mine] = other.shift[mine]
        self.has[0] = mine
        self.head = other.head
        self.has_shift = bool(self.shift.any())

    def add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Moves positions; tokens whose position would be negative are gone."""
        mine = self._at(seq, p0, p1)
        self.pos[mine] += delta
        self.shift[mine] += delta
        self.has_shift |= bool(mine.any())
        gone = mine & (self.pos < 0)
        self.has[:, gone] = False
        self.head = self.size  # searched from the first that is freed, or else from the start
        self._empty(gone)
        if not gone.any():
            self.head = 0

    def div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divides positions. The keys are then rotated from the old position to as far on the other
        side of it, which is what libllama does."""
        mine = self._at(seq, p0, p1)
        old = self.pos[mine]
        self.pos[mine] //= d
        self.shift[mine] += old - self.pos[mine]  # upstream's sign
        self.has_shift |= bool(mine.any())
        self._forget()

    def shifted(self) -> None:
        """The keys are where the positions say."""
        self.shift.fill(0)
        self.has_shift = False

    # --- going back

    def save(self, idxs: Idxs | slice = slice(None)) -> Saved:
        """What `restore` takes, for some cells or all of them."""
        return Saved(
            idxs,
            self.pos[idxs].copy(),
            self.shift[idxs].copy(),
            self.has[:, idxs].copy(),
            self.head,
            self.has_shift,
        )

    def restore(self, saved: Saved) -> None:
        """Cells and head are as they were."""
        self.pos[saved.idxs] = saved.pos
        self.shift[saved.idxs] = saved.shift
        self.has[:, saved.idxs] = saved.has
        self.head = saved.head
        self.has_shift = saved.has_shift
        self._forget()

    # --- masks

    def fill_mask(self, mask: npt.NDArray[Any], seq: int, pos: npt.NDArray[np.int32]) -> None:
        """mask [n_rows, n_kv] in numpy's order, for tokens at `pos` that have their cells: 0 for
        the cells that each attends to, -inf for all others."""
        n_kv = mask.shape[1]
        if self.n_swa:
            ages = pos[:, None] - self.pos[:n_kv]
            mask[:] = -np.inf
            mask[self.has[seq, :n_kv] & (ages >= 0) & (ages < self.n_swa)] = 0.0
            return
        mask[:] = self._row(seq, mask.dtype)[:n_kv]
        if len(pos) == 1 and pos[0] >= self.last(seq):
            return
        later = np.flatnonzero(self._at(seq, int(pos.min()) + 1, POS_END))
        if later.size:  # of most tokens: those that came with them
            n = len(later)
            together = later[-1] - later[0] + 1 == n
            at = slice(later[0], later[-1] + 1) if together else later
            seen = self.pos[at] <= pos[:, None]
            mask[:, at] = np.where(seen, mask.dtype.type(0), mask.dtype.type(-np.inf))

    def _row(self, seq: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """0 for each cell of a sequence, -inf for the others; kept up to date by `put_one`."""
        row = self._visible.get(seq)
        if row is None or row.dtype != dtype:
            row = np.full(self.size, -np.inf, dtype)
            row[self.has[seq]] = 0.0
            self._visible[seq] = row
        return row

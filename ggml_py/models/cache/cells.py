"""The cells of a cache: each holds a token, with its position and sequences (llama-kv-cells.h).

The masks are computed in C, and so is adding one token to one sequence (decode.h), because that is
most of a model's work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...boundary.ffi import ffi, lib

if TYPE_CHECKING:
    import numpy.typing as npt

Idxs = np.ndarray[Any, np.dtype[np.int64]]
POS_END = (1 << 31) - 1  # after every position


def padded_n_kv(n_used: int, size: int) -> int:
    """How many cells attention reads when the first `n_used` are used: rounded up, so that a graph
    can be used again."""
    return int(lib.gp_kv_padded(n_used, size))


class Saved(NamedTuple):
    """A copy of the state of some cells, see `Cells.save`."""

    idxs: Idxs | slice
    pos: npt.NDArray[np.int32]
    shift: npt.NDArray[np.int32]
    has: npt.NDArray[np.bool_]
    head: int
    has_shift: bool


class Cells:
    """Cells: each is empty, or has a position and at least one of `n_seq` sequences.

    With a window of `n_swa` tokens, cells that no later token of their sequence will see count as
    free. `shift` is the sum that was added to each position since the key in the cell was rotated.
    `native` has everything except `shift`, in the same memory.
    """

    def __init__(self, size: int, n_seq: int, n_swa: int = 0) -> None:
        self.size = size
        self.n_swa = n_swa
        self.pos = np.empty(size, np.int32)  # -1: empty
        self.shift = np.empty(size, np.int32)
        self.has = np.empty((n_seq, size), np.bool_)  # whether the sequence has the cell
        self._first, self._last = np.empty((2, n_seq), np.int32)
        self.native = ffi.new("struct gp_kv_cells *")
        self.native.pos = ffi.from_buffer("int32_t[]", self.pos)
        self.native.has = ffi.from_buffer("uint8_t[]", self.has)
        self.native.first = ffi.from_buffer("int32_t[]", self._first)
        self.native.last = ffi.from_buffer("int32_t[]", self._last)
        self.native.size, self.native.n_seq, self.native.n_swa = size, n_seq, n_swa
        self.clear()

    def clear(self) -> None:
        """Empties all cells."""
        self.pos.fill(-1)
        self.shift.fill(0)
        self.has.fill(False)
        self.head = 0
        self.has_shift = False
        self._forget()

    def _forget(self) -> None:
        """Marks the numbers that are derived from the cells as unknown."""
        self._first.fill(lib.GP_KV_UNKNOWN)
        self._last.fill(lib.GP_KV_UNKNOWN)
        self.native.n_used = self.native.end = lib.GP_KV_UNKNOWN

    # --- state

    @property
    def head(self) -> int:
        """The cell where the search for free ones begins."""
        return int(self.native.head)

    @head.setter
    def head(self, head: int) -> None:
        self.native.head = head

    @property
    def n_used(self) -> int:
        """How many cells are not empty."""
        return int(lib.gp_kv_n_used(self.native))

    @property
    def end(self) -> int:
        """One past the last cell that is not empty."""
        return int(lib.gp_kv_end(self.native))

    def n_kv(self) -> int:
        """How many cells attention reads."""
        return padded_n_kv(self.end, self.size)

    def first(self, seq: int) -> int:
        """The lowest position of a sequence, -1 if it is empty."""
        return int(lib.gp_kv_first(self.native, seq))

    def last(self, seq: int) -> int:
        """The highest position of a sequence, -1 if it is empty."""
        return int(lib.gp_kv_last(self.native, seq))

    def n_free(self) -> int:
        """How many cells `find` can return."""
        return int(np.count_nonzero(self._free()))

    # --- new tokens

    def find(self, n: int) -> Idxs | None:
        """Cells for n tokens, None if fewer are free. C: llama_kv_cache::find_slot"""
        head = self.head
        if head > self.n_used + 2 * n:
            head = 0
        if head + n <= self.size and self.pos[head : head + n].max() < 0:
            return np.arange(head, head + n)
        free = np.flatnonzero(self._free())
        if len(free) < n:
            return None
        return np.roll(free, -int(np.searchsorted(free, head)))[:n]

    def _free(self) -> npt.NDArray[np.bool_]:
        free = self.pos < 0
        if self.n_swa:
            alone = self.has.sum(0) == 1
            for seq, mine in enumerate(self.has):
                if self.last(seq) >= 0:
                    free |= mine & alone & (self.pos <= self.last(seq) + 1 - self.n_swa)
        return free

    def put(self, idxs: Idxs, pos: npt.NDArray[np.int32], sets: list[tuple[Any, Any]]) -> None:
        """Gives cells to tokens at positions `pos`. `sets` are pairs: sequences, and the tokens
        that belong to them. C: llama_kv_cache::apply_ubatch"""
        lost = self._take(idxs)
        self.pos[idxs] = pos
        for seqs, at in sets:
            for seq in seqs:
                self.has[seq, idxs[at]] = True
        self._forget()
        # A sequence's positions must have no gaps, so tokens older than the lost ones go, too.
        for seq, until in lost:
            if 0 <= self.first(seq) <= until:
                self.rm(seq, self.first(seq), until + 1)
        self.head = int(idxs[-1]) + 1

    def _take(self, idxs: Idxs) -> list[tuple[int, int]]:
        """Empties the given cells. Returns each sequence that lost tokens by that, with the highest
        position that it lost."""
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
        """Removes a sequence's tokens at positions [p0, p1)."""
        mine = self._at(seq, p0, p1)
        self.has[seq, mine] = False
        self._empty(mine & ~self.has.any(0))

    def _at(self, seq: int, p0: int, p1: int) -> npt.NDArray[np.bool_]:
        at: npt.NDArray[np.bool_] = self.has[seq] & (self.pos >= p0) & (self.pos < p1)
        return at

    def _empty(self, gone: npt.NDArray[np.bool_]) -> None:
        """Empties cells that have no sequence any more."""
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

    def keep(self, seq: int) -> None:
        """Removes all other sequences."""
        gone = (self.pos >= 0) & ~self.has[seq]
        self.has[np.arange(len(self.has)) != seq] = False
        self._empty(gone)

    def cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Adds the tokens of `src` at positions [p0, p1) to `dst`."""
        self.has[dst] |= self._at(src, p0, p1)
        self._forget()

    def cp_from(self, other: Cells, src: int) -> None:
        """Replaces everything here by a sequence of another stream, in the same cells."""
        self.clear()
        mine = other.has[src]
        self.pos[mine] = other.pos[mine]
        self.shift[mine] = other.shift[mine]
        self.has[0] = mine
        self.head = other.head
        self.has_shift = bool(self.shift.any())

    def add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Moves positions by delta and removes tokens whose position would be negative."""
        mine = self._at(seq, p0, p1)
        self.pos[mine] += delta
        self.shift[mine] += delta
        self.has_shift |= bool(mine.any())
        gone = mine & (self.pos < 0)
        self.has[:, gone] = False
        self.head = self.size  # then the search begins at the first freed cell, or at the start
        self._empty(gone)
        if not gone.any():
            self.head = 0

    def div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divides positions. The keys are then rotated the wrong way, by as much as the position
        changed: libllama does the same."""
        mine = self._at(seq, p0, p1)
        old = self.pos[mine]
        self.pos[mine] //= d
        self.shift[mine] += old - self.pos[mine]  # upstream's sign
        self.has_shift |= bool(mine.any())
        self._forget()

    def shifted(self) -> None:
        """Notes that the keys have been rotated to their positions."""
        self.shift.fill(0)
        self.has_shift = False

    # --- save and restore

    def save(self, idxs: Idxs | slice = slice(None)) -> Saved:
        """A copy of some or all cells for `restore`."""
        return Saved(
            idxs,
            self.pos[idxs].copy(),
            self.shift[idxs].copy(),
            self.has[:, idxs].copy(),
            self.head,
            self.has_shift,
        )

    def restore(self, saved: Saved) -> None:
        """Puts cells and head back as they were."""
        self.pos[saved.idxs] = saved.pos
        self.shift[saved.idxs] = saved.shift
        self.has[:, saved.idxs] = saved.has
        self.head = saved.head
        self.has_shift = saved.has_shift
        self._forget()

    # --- masks

    def fill_mask(self, mask: npt.NDArray[Any], seq: int, pos: npt.NDArray[np.int32]) -> None:
        """Fills mask [n_rows, n_kv] (numpy's order) for tokens at `pos` that already have cells: 0
        for the cells that a token attends to, -inf for all others."""
        assert mask.flags.c_contiguous
        n_rows, n_kv = mask.shape
        f16, data, rows = mask.dtype.itemsize == 2, ffi.from_buffer(mask), np.ascontiguousarray(pos)
        positions = ffi.from_buffer("int32_t[]", rows)
        lib.gp_kv_mask(self.native, seq, positions, n_rows, n_kv, f16, data)

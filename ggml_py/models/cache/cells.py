"""Which cell of a cache holds the token of which position and sequences (llama-kv-cells.h).

What is done for one more token of one sequence is written in C (decode.h), for that is most of what
a model does, and so are the masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...boundary.ffi import ffi, lib

if TYPE_CHECKING:
    import numpy.typing as npt

Idxs = np.ndarray[Any, np.dtype[np.int64]]
PAD = 256  # cells: llama.cpp pads the context to this
POS_END = (1 << 31) - 1  # after every position


def pad(n: int) -> int:
    """`n` rounded up to whole steps of `PAD`."""
    return -(-n // PAD) * PAD


def padded_n_kv(n_used: int, size: int) -> int:
    """Cells that attention reads when the first `n_used` are used: more, so that a graph lasts."""
    return int(lib.gp_kv_padded(n_used, size))


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
    free. `shift` is what was added to positions since the keys in the cells were rotated. `native`
    is all of it but `shift`, in the same memory.
    """

    def __init__(self, size: int, n_seq: int, n_swa: int = 0) -> None:
        self.size = size
        self.n_swa = n_swa
        self.pos = np.empty(size, np.int32)  # -1: empty
        self.shift = np.empty(size, np.int32)
        self.has = np.empty((n_seq, size), np.bool_)  # whether the cell is of that sequence
        self._first, self._last = np.empty((2, n_seq), np.int32)
        self.native = ffi.new("struct gp_kv_cells *")
        self.native.pos = ffi.from_buffer("int32_t[]", self.pos)
        self.native.has = ffi.from_buffer("uint8_t[]", self.has)
        self.native.first = ffi.from_buffer("int32_t[]", self._first)
        self.native.last = ffi.from_buffer("int32_t[]", self._last)
        self.native.size, self.native.n_seq, self.native.n_swa = size, n_seq, n_swa
        self.clear()

    def clear(self) -> None:
        """Nothing is used."""
        self.pos.fill(-1)
        self.shift.fill(0)
        self.has.fill(False)
        self.head = 0
        self.has_shift = False
        self._forget()

    def _forget(self) -> None:
        """What was derived of the cells is not so any more."""
        self._first.fill(lib.GP_KV_UNKNOWN)
        self._last.fill(lib.GP_KV_UNKNOWN)
        self.native.n_used = self.native.end = lib.GP_KV_UNKNOWN

    # --- what is there

    @property
    def head(self) -> int:
        """Where the search for free cells begins."""
        return int(self.native.head)

    @head.setter
    def head(self, head: int) -> None:
        self.native.head = head

    @property
    def n_used(self) -> int:
        """Cells that are not empty."""
        return int(lib.gp_kv_n_used(self.native))

    @property
    def end(self) -> int:
        """The last of those and one."""
        return int(lib.gp_kv_end(self.native))

    def n_kv(self) -> int:
        """Cells that attention reads."""
        return padded_n_kv(self.end, self.size)

    def first(self, seq: int) -> int:
        """The lowest position of a sequence, -1 without one."""
        return int(lib.gp_kv_first(self.native, seq))

    def last(self, seq: int) -> int:
        """The highest position of a sequence, -1 without one."""
        return int(lib.gp_kv_last(self.native, seq))

    def n_free(self) -> int:
        """Cells that `find` can give."""
        return int(np.count_nonzero(self._free()))

    # --- new tokens

    def find(self, n: int) -> Idxs | None:
        """Cells for n tokens; None where so many are not free. C: llama_kv_cache::find_slot"""
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
        """Gives cells to tokens at positions `pos`; `sets` are sequences and the tokens that have
        them. C: llama_kv_cache::apply_ubatch"""
        lost = self._take(idxs)
        self.pos[idxs] = pos
        for seqs, at in sets:
            for seq in seqs:
                self.has[seq, idxs[at]] = True
        self._forget()
        # Without gaps between a sequence's positions, what is older than the lost ones goes too.
        for seq, until in lost:
            if 0 <= self.first(seq) <= until:
                self.rm(seq, self.first(seq), until + 1)
        self.head = int(idxs[-1]) + 1

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
        assert mask.flags.c_contiguous
        n_rows, n_kv = mask.shape
        f16, data, rows = mask.dtype.itemsize == 2, ffi.from_buffer(mask), np.ascontiguousarray(pos)
        positions = ffi.from_buffer("int32_t[]", rows)
        lib.gp_kv_mask(self.native, seq, positions, n_rows, n_kv, f16, data)

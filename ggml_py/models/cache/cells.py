"""The cells of a cache: each holds a token, with its position (llama-kv-cells.h).

The masks are computed in C, and so is adding one token (decode.h), because that is most of a
model's work.
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
    head: int


class Cells:
    """Cells: each is empty, or has the position of a token.

    With a window of `n_swa` tokens, cells that no later token will see count as free. `native` has
    the same memory.
    """

    def __init__(self, size: int, n_swa: int = 0) -> None:
        self.size = size
        self.n_swa = n_swa
        self.pos = np.empty(size, np.int32)  # -1: empty
        self._has = np.empty((1, size), np.bool_)  # whether it is not empty
        self._first, self._last = np.empty((2, 1), np.int32)
        self.native = ffi.new("struct gp_kv_cells *")
        self.native.pos = ffi.from_buffer("int32_t[]", self.pos)
        self.native.has = ffi.from_buffer("uint8_t[]", self._has)
        self.native.first = ffi.from_buffer("int32_t[]", self._first)
        self.native.last = ffi.from_buffer("int32_t[]", self._last)
        self.native.size, self.native.n_seq, self.native.n_swa = size, 1, n_swa
        self.clear()

    def clear(self) -> None:
        """Empties all cells."""
        self.pos.fill(-1)
        self._has.fill(False)
        self.head = 0
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

    @property
    def last(self) -> int:
        """The highest position, -1 if all cells are empty."""
        return int(lib.gp_kv_last(self.native, 0))

    @property
    def first(self) -> int:
        """The lowest position, -1 if all cells are empty."""
        return int(lib.gp_kv_first(self.native, 0))

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
        if self.n_swa and self.last >= 0:
            free |= self.pos <= self.last + 1 - self.n_swa
        return free

    def put(self, idxs: Idxs, pos: npt.NDArray[np.int32]) -> None:
        """Gives cells to tokens at positions `pos`. C: llama_kv_cache::apply_ubatch"""
        lost = int(self.pos[idxs].max())
        self.pos[idxs] = pos
        self._has[0, idxs] = True
        self._forget()
        # Positions must have no gaps, so tokens older than the lost ones go, too.
        if 0 <= self.first <= lost:
            self.rm(self.first, lost + 1)
        self.head = int(idxs[-1]) + 1

    def rm(self, p0: int, p1: int) -> None:
        """Empties the cells of tokens at positions [p0, p1)."""
        gone = (self.pos >= p0) & (self.pos < p1)
        self.pos[gone] = -1
        self._has[0, gone] = False
        self._forget()
        idxs = np.flatnonzero(gone)
        if idxs.size:
            self.head = min(self.head, int(idxs[0]))

    # --- save and restore

    def save(self, idxs: Idxs | slice = slice(None)) -> Saved:
        """A copy of some or all cells for `restore`."""
        return Saved(idxs, self.pos[idxs].copy(), self.head)

    def restore(self, saved: Saved) -> None:
        """Puts cells and head back as they were."""
        self.pos[saved.idxs] = saved.pos
        self._has[0, saved.idxs] = saved.pos >= 0
        self.head = saved.head
        self._forget()

    def lose(self, idxs: Idxs) -> bool:
        """Empties cells whose keys and values were overwritten. Returns whether the next token
        needs one of them."""
        taken = idxs[self.pos[idxs] >= 0]
        missed = bool((self.pos[taken] > self.last + 1 - self.n_swa).any())
        self.pos[taken] = -1
        self._has[0, taken] = False
        self._forget()
        return missed

    # --- masks

    def fill_mask(self, mask: npt.NDArray[Any], pos: npt.NDArray[np.int32]) -> None:
        """Fills mask [n_rows, n_kv] (numpy's order) for tokens at `pos` that already have cells: 0
        for the cells that a token attends to, -inf for all others."""
        assert mask.flags.c_contiguous
        n_rows, n_kv = mask.shape
        f16, data, rows = mask.dtype.itemsize == 2, ffi.from_buffer(mask), np.ascontiguousarray(pos)
        positions = ffi.from_buffer("int32_t[]", rows)
        lib.gp_kv_mask(self.native, 0, positions, n_rows, n_kv, f16, data)

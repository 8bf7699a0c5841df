"""Which cell of a cache holds which token, of one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

PAD = 256  # cells: llama.cpp pads the context and the part of it that attention reads to this


def pad(n: int) -> int:
    """`n` rounded up to whole steps of `PAD`."""
    return -(-n // PAD) * PAD


class Cells:
    """Token i is in cell i. After `take` there is `idxs`: the cells of the graph's tokens."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._n_used = 0
        self._all = np.arange(size, dtype=np.int64)
        self._rows: dict[np.dtype[Any], npt.NDArray[Any]] = {}
        self.idxs = self._all[:0]

    def clear(self) -> None:
        """Nothing is used."""
        self._n_used = 0

    def take(self, n_past: int, n_tokens: int) -> None:
        """Gives the tokens from position n_past on their cells."""
        self._n_used = n_past + n_tokens
        self.idxs = self._all[n_past : n_past + n_tokens]

    def rewind(self, n_past: int) -> bool:
        """Forgets the tokens from position n_past on; whether those before are all there."""
        self._n_used = n_past
        return True

    def n_kv(self, n_used: int | None = None) -> int:
        """Cells that attention reads now, or when `n_used` tokens are there: padded, so that a
        graph lasts."""
        return min(self.size, max(PAD, pad(self._n_used if n_used is None else n_used)))

    def fill_mask(self, mask: npt.NDArray[Any], n_past: int) -> None:
        """mask [n_rows, n_kv] in numpy's order: 0 for the cells that a token of the graph attends
        to, -inf for all others. Rows after the graph's tokens are padding."""
        n, (n_rows, n_kv) = len(self.idxs), mask.shape
        row_of = self._rows.get(mask.dtype)
        if row_of is None:  # each token's row is a part of this one
            row_of = np.full(2 * self.size, -np.inf, mask.dtype)
            row_of[: self.size] = 0.0
            self._rows[mask.dtype] = row_of
        start = self.size - n_past - 1
        for row in range(n):
            mask[row] = row_of[start - row : start - row + n_kv]
        if n_rows > n:
            mask[n:] = -np.inf


class SlidingCells(Cells):
    """Tokens that the next one does not see leave their cells to others.

    Which cell is next follows llama_kv_cache::find_slot, so that attention adds up in its order.
    """

    def __init__(self, size: int, n_swa: int) -> None:
        super().__init__(size)
        self.n_swa = n_swa
        self.clear()

    def clear(self) -> None:
        """Nothing is used."""
        self._pos = np.full(self.size, -1, np.int64)  # of each cell's token, -1 without one
        self._head = 0

    def take(self, n_past: int, n_tokens: int) -> None:
        """See `Cells`."""
        pos = self._pos
        if self._head > int((pos >= 0).sum()) + 2 * n_tokens:
            self._head = 0
        in_turn = np.roll(self._all, -self._head)
        free = (pos < 0) | (int(pos.max()) + 1 - pos >= self.n_swa)
        self.idxs = in_turn[free[in_turn]][:n_tokens]
        last_lost = int(pos[self.idxs].max())
        pos[self.idxs] = np.arange(n_past, n_past + n_tokens)
        pos[pos <= last_lost] = -1  # none is missing between those that are left
        self._head = int(self.idxs[-1]) + 1

    def rewind(self, n_past: int) -> bool:
        """See `Cells`."""
        self._pos[self._pos >= n_past] = -1
        n_seen = min(n_past, self.n_swa - 1)  # by the next token
        return int((self._pos >= n_past - n_seen).sum()) == n_seen

    def n_kv(self, n_used: int | None = None) -> int:
        """See `Cells`."""
        if n_used is None:
            used = np.flatnonzero(self._pos >= 0)
            n_used = int(used[-1]) + 1 if used.size else 0
        return super().n_kv(n_used)

    def fill_mask(self, mask: npt.NDArray[Any], n_past: int) -> None:
        """See `Cells`."""
        n, pos = len(self.idxs), self._pos[: mask.shape[1]]
        ages = np.arange(n_past, n_past + n)[:, None] - pos
        mask[:] = -np.inf
        mask[:n][(pos >= 0) & (ages >= 0) & (ages < self.n_swa)] = 0.0

"""The cells of a recurrent cache: each holds the state of sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NO_CELL = -1


@dataclass(slots=True)
class Cell:
    """The state of one sequence, or of several that have read the same tokens."""

    pos: int = -1  # of the last token that went into the state
    src: int = NO_CELL  # the cell whose memory has the state now; NO_CELL: it starts as zeros
    seqs: set[int] = field(default_factory=set)

    def clear(self) -> None:
        """Empties the cell."""
        self.pos, self.src = -1, NO_CELL
        self.seqs.clear()


class RecurrentCells:
    """A cell per sequence, and which of them a graph reads and writes.

    A graph writes neighbouring cells, one for each of its sequences, in their order. `take` moves
    the states there and sets, as llama_memory_recurrent::find_slot does:

    - `head` and `n_rs`: the graph reads and writes `n_rs` cells from `head` on, and the cells of
      its own sequences come first;
    - `sources`: for each of these cells, the cell whose memory has its state;
    - `rs_z`: the cell that the graph zeros first, for new states; `NO_CELL` if there is none.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Removes all sequences."""
        self._cells = [Cell() for _ in range(self.size)]
        self._cell_of = [NO_CELL] * self.size  # by sequence
        self.head = self.n_rs = 0
        self.rs_z = NO_CELL
        self.sources: list[int] = []

    def pos(self, seq: int) -> int:
        """The position of the sequence's last token, -1 if it is empty."""
        at = self._cell_of[seq]
        return self._cells[at].pos if at != NO_CELL else -1

    def row(self, seq: int) -> int:
        """The row of the cache that has the sequence's state, `NO_CELL` if it is empty."""
        at = self._cell_of[seq]
        return self._cells[at].src if at != NO_CELL else NO_CELL

    # --- for a graph

    def take(self, seqs: Sequence[int], last: Sequence[int]) -> None:
        """Finds the cells for a graph of these sequences. `last` are the positions of their last
        tokens."""
        n_used = sum(bool(cell.seqs) for cell in self._cells)
        if self.head > n_used + 2 * len(seqs):
            self.head = 0
        self._give_each_its_own(seqs)
        at = [self._cell_of[seq] for seq in seqs]
        first, end = min(at), max(at) + 1
        for index, seq in enumerate(seqs, start=first):
            self._swap(index, self._cell_of[seq])
        for index, pos in enumerate(last, start=first):
            self._cells[index].pos = pos
            self._cells[index].seqs = {seqs[index - first]}
        self._find_sources(first, end)
        self.head, self.n_rs = first, end - first

    def _give_each_its_own(self, seqs: Sequence[int]) -> None:
        """Gives an empty cell to each sequence that has none, or that shares its cell."""
        empty = self._next_empty(self.head)
        for seq in seqs:
            at = self._cell_of[seq]
            if at != NO_CELL and len(self._cells[at].seqs) == 1:
                continue
            if at != NO_CELL:
                shared, cell = self._cells[at], self._cells[empty]
                shared.seqs.remove(seq)
                cell.pos, cell.src, cell.seqs = shared.pos, shared.src, {seq}
            self._cell_of[seq] = empty
            empty = self._next_empty(empty + 1)

    def _next_empty(self, start: int) -> int:
        """The first empty cell, searching from `start` to the end and then from 0."""
        in_turn = ((start + i) % self.size for i in range(self.size))
        return next((i for i in in_turn if not self._cells[i].seqs), start % self.size)

    def _swap(self, a: int, b: int) -> None:
        """Swaps two cells, but not their memory: `src` still tells where each state is."""
        if a == b:
            return
        self._cells[a], self._cells[b] = self._cells[b], self._cells[a]
        other = {a: b, b: a}
        self._cell_of = [other.get(at, at) for at in self._cell_of]

    def _find_sources(self, first: int, end: int) -> None:
        """Sets where the graph reads the states of the cells [first, end). It writes them to these
        cells, so each `src` is then the cell itself."""
        used = Counter(cell.src for cell in self._cells)
        free = (i for i in range(first, end) if not used[i])
        self.rs_z = next(free, NO_CELL)
        self.sources = []
        for index in range(first, end):
            cell = self._cells[index]
            self.sources.append(self.rs_z if cell.src == NO_CELL else cell.src)
            cell.src = index

    def save(self) -> Any:
        """A copy of the state for `restore`."""
        cells = [(cell.pos, cell.src, frozenset(cell.seqs)) for cell in self._cells]
        return self.head, cells, list(self._cell_of)

    def restore(self, saved: Any, written: set[int]) -> None:
        """Puts everything back, except states that were in the memory of the cells `written`: their
        sequences are empty."""
        self.head, cells, self._cell_of = saved[0], saved[1], list(saved[2])
        self._cells = [Cell(pos, src, set(seqs)) for pos, src, seqs in cells]
        for cell in self._cells:
            if cell.src in written:
                for seq in cell.seqs:
                    self._cell_of[seq] = NO_CELL
                cell.clear()

    # --- for the user

    def forget(self, seq: int) -> None:
        """Empties a sequence."""
        freed = self._leave(seq)
        if freed != NO_CELL:
            self.head = min(self.head, freed)

    def put(self, seq: int, pos: int) -> int:
        """Takes a cell for an empty sequence, with the last token at `pos`. Returns the row of the
        cache for its state."""
        self.take([seq], [pos])
        return self.row(seq)

    def copy(self, src: int, dst: int) -> None:
        """Makes `dst` share the state of `src`, until one of them gets more tokens."""
        if src == dst:
            return
        self._leave(dst)
        at = self._cell_of[dst] = self._cell_of[src]
        if at != NO_CELL:
            self._cells[at].seqs.add(dst)

    def keep(self, seq: int) -> None:
        """Empties all other sequences."""
        others = []
        for index, cell in enumerate(self._cells):
            if seq in cell.seqs:
                cell.seqs = {seq}
            else:
                cell.clear()
                others.append(index)
        self._cell_of = [at if s == seq else NO_CELL for s, at in enumerate(self._cell_of)]
        self.head = min([self.head, *others])

    def move(self, seq: int, pos: int) -> None:
        """Moves the last token of the sequence, and of those that share its state, to `pos`."""
        self._cells[self._cell_of[seq]].pos = pos

    def _leave(self, seq: int) -> int:
        """Removes the sequence from its cell. Returns the cell if it is empty now, else
        `NO_CELL`."""
        at = self._cell_of[seq]
        if at == NO_CELL:
            return NO_CELL
        self._cell_of[seq] = NO_CELL
        self._cells[at].seqs.remove(seq)
        if self._cells[at].seqs:
            return NO_CELL
        self._cells[at].clear()
        return at

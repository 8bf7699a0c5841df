"""The interface to the memory of a model's sequences, whatever its kind (llama-memory.h)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...backends.buffer import BufferType
from .cells import POS_END
from .state_reader import StateReader
from .ubatch import Tokens, Ubatch


class Shape(NamedTuple):
    """The properties that a graph is built for. Another shape needs another graph."""

    n_tokens: int
    n_seqs: int  # sets of sequences, all with the same number of tokens
    n_outputs: int  # tokens whose logits are computed
    memory: Any  # other properties of the memory that the graph depends on


class Memory(ABC):
    """The past of up to `n_seq_max` sequences: `n_ctx` tokens, at most `n_ctx_seq` of each."""

    n_seq_max: int
    n_ctx: int
    n_ctx_seq: int
    has_update: bool  # whether `Graphs.update` must run before the next evaluation

    # --- new tokens

    @abstractmethod
    def check_room(self, seq: int, n: int) -> None:
        """Raises `ModelError` if a sequence has no room for n more tokens."""

    @abstractmethod
    def prepare(self, tokens: Tokens, n_ubatch: int) -> list[Ubatch]:
        """The ubatches of a batch, with the cells for their tokens. Does not take the cells yet.
        Raises `ModelError` if there is no room for all tokens."""

    @abstractmethod
    def apply(self, ubatch: Ubatch) -> None:
        """Takes the cells for the ubatch's tokens. Called for one ubatch after the other, before
        its graph is computed."""

    def take_one(self, _token: int, _seq: int) -> Ubatch | None:
        """`prepare` and `apply` for one more token of a sequence, with its logits. None if this
        memory has no faster way to do that. The returned ubatch is reused by the next call."""
        return None

    def undo_one(self, seq: int, pos: int) -> None:
        """Takes back the last token of a sequence, if it is at position `pos`."""
        self.seq_rm(seq, pos, POS_END)

    @abstractmethod
    def save(self) -> Any:
        """A copy of the state for `restore`."""

    @abstractmethod
    def restore(self, saved: Any, applied: list[Ubatch]) -> None:
        """Puts all sequences back as they were when `saved` was made. A sequence is empty instead
        if the ubatches `applied` have overwritten something that its next token needs."""

    # --- shapes of graphs

    @abstractmethod
    def shape(self, ubatch: Ubatch) -> Shape:
        """The shape of the graph for a ubatch that was applied."""

    @abstractmethod
    def planned_shape(self, n_tokens: int, n_past: int, n_seqs: int) -> Shape:
        """The shape of the graph for `n_tokens` more tokens in each of `n_seqs` sequences that have
        n_past tokens, with logits for each sequence's last token."""

    @abstractmethod
    def full_shape(self, n_tokens: int, n_outputs: int) -> Shape:
        """The shape of the largest graph for `n_tokens` tokens of all sequences, with the logits of
        `n_outputs`. Each sequence has the same number of tokens, so there may be some more.
        C: llama_context::graph_reserve"""

    # --- sequences

    @abstractmethod
    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Removes the tokens at positions [p0, p1). Raises `ModelError` if that is impossible."""

    @abstractmethod
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Adds the tokens of `src` at positions [p0, p1) to `dst`. Raises `ModelError` if that is
        impossible."""

    @abstractmethod
    def seq_keep(self, seq: int) -> None:
        """Removes all other sequences."""

    @abstractmethod
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Moves the tokens at positions [p0, p1) by delta. Raises `ModelError` if that is
        impossible."""

    @abstractmethod
    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divides the positions in [p0, p1) by d. Raises `ModelError` if that is impossible."""

    @abstractmethod
    def seq_pos_min(self, seq: int) -> int:
        """The lowest position of a sequence, -1 if it is empty."""

    @abstractmethod
    def seq_pos_max(self, seq: int) -> int:
        """The highest position of a sequence, -1 if it is empty."""

    @abstractmethod
    def state_write(self, seq: int) -> Iterator[bytes]:
        """A sequence in libllama's format."""

    @abstractmethod
    def state_read(self, seq: int, reader: StateReader) -> Callable[[], None]:
        """Reads a state in that format and changes nothing. Returns a function that replaces the
        sequence by it. Raises `ModelError`."""

    @abstractmethod
    def clear(self) -> None:
        """Empties all sequences."""

    @abstractmethod
    def nbytes_by_buffer_type(self) -> dict[BufferType, int]:
        """Bytes of its buffers of each type."""

    @abstractmethod
    def close(self) -> None:
        """Frees the memory."""

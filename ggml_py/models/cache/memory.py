"""What a model asks of the memory of its sequences, whichever kind it is (llama-memory.h)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .cells import POS_END
from .state_reader import StateReader
from .ubatch import Tokens, Ubatch

MAX_SEQ = 256  # sequences: LLAMA_MAX_SEQ


class Shape(NamedTuple):
    """What a graph is built for; another shape needs another graph."""

    n_tokens: int
    n_seqs: int  # sets of sequences, each with as many tokens
    n_outputs: int  # tokens whose logits are computed
    memory: Any  # what else of the memory the graph depends on


class Memory(ABC):
    """The past of up to `n_seq_max` sequences, for `n_ctx` tokens, each of `n_ctx_seq` at most."""

    n_seq_max: int
    n_ctx: int
    n_ctx_seq: int
    has_update: bool  # whether `Graphs.update` has to compute before the next evaluation

    # --- new tokens

    @abstractmethod
    def check_room(self, seq: int, n: int) -> None:
        """Raises `ModelError` where a sequence cannot have n more tokens."""

    @abstractmethod
    def prepare(self, tokens: Tokens, n_ubatch: int) -> list[Ubatch]:
        """The ubatches of a batch, each with the place of its tokens; nothing has changed yet.
        Raises `ModelError` where there is no room for all of them."""

    @abstractmethod
    def apply(self, ubatch: Ubatch) -> None:
        """Its tokens are there now; called before their graph is computed, one after the other."""

    def take_one(self, _token: int, _seq: int) -> Ubatch | None:
        """`prepare` and `apply` for one token after the last of a sequence, its logits wanted, if
        this memory has a quicker way for that. What is returned is used again."""
        return None

    def undo_one(self, seq: int, pos: int) -> None:
        """Takes the last token of a sequence back, at that position, if it is there."""
        self.seq_rm(seq, pos, POS_END)

    @abstractmethod
    def save(self) -> Any:
        """What `restore` takes."""

    @abstractmethod
    def restore(self, saved: Any, applied: list[Ubatch]) -> None:
        """All sequences are as they were when that was saved, but those of which `applied` have
        overwritten what the next token needs: they are empty."""

    # --- shapes of graphs

    @abstractmethod
    def shape(self, ubatch: Ubatch) -> Shape:
        """Of the graph for a ubatch that was applied."""

    @abstractmethod
    def planned_shape(self, n_tokens: int, n_past: int, n_seqs: int) -> Shape:
        """Of the graph for `n_tokens` more tokens of each of `n_seqs` sequences of n_past tokens,
        with the logits of each one's last."""

    @abstractmethod
    def full_shape(self, n_tokens: int) -> Shape:
        """Of the largest graph, for about `n_tokens` tokens of all sequences."""

    # --- sequences

    @abstractmethod
    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Removes the tokens at positions p0 to p1, p1 not among them. Raises `ModelError` where
        that cannot be done."""

    @abstractmethod
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Gives the tokens of `src` at those positions to `dst`, too. Raises `ModelError`."""

    @abstractmethod
    def seq_keep(self, seq: int) -> None:
        """Removes all other sequences."""

    @abstractmethod
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Moves positions by delta. Raises `ModelError` where that cannot be done."""

    @abstractmethod
    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divides positions. Raises `ModelError` where that cannot be done."""

    @abstractmethod
    def seq_pos_min(self, seq: int) -> int:
        """The lowest position of a sequence, -1 for an empty one."""

    @abstractmethod
    def seq_pos_max(self, seq: int) -> int:
        """The highest position of a sequence, -1 for an empty one."""

    @abstractmethod
    def state_write(self, seq: int) -> Iterator[bytes]:
        """A sequence in libllama's format."""

    @abstractmethod
    def state_read(self, seq: int, reader: StateReader) -> Callable[[], None]:
        """Reads that, and changes nothing; what is returned puts it in place of the sequence.
        Raises `ModelError`."""

    @abstractmethod
    def clear(self) -> None:
        """All sequences are empty."""

    @abstractmethod
    def close(self) -> None:
        """Frees the memory."""

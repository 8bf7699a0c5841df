"""Tokens to evaluate together, of one or several sequences."""

from __future__ import annotations

from collections.abc import Iterable

from ..boundary.arguments import describe, integer
from ..errors import ModelError
from ..typed import typed

POS_MAX = (1 << 31) - 1  # llama_pos is an int32_t


class Batch:
    """Tokens for `Model.decode`, each with its position, its sequences, and whether its logits are
    wanted.

    Tokens of one sequence must be in the order of their positions. Tokens of different sequences
    may be mixed. C: llama_batch
    """

    def __init__(self) -> None:
        """Makes an empty batch."""
        self.token: list[int] = []
        self.pos: list[int | None] = []
        self.seq: list[tuple[int, ...]] = []
        self.logits: list[bool] = []

    @typed
    def add(
        self,
        token: int,
        pos: int | None = None,
        seq: int | Iterable[int] = 0,
        logits: bool = False,
    ) -> None:
        """Adds a token to a sequence, or to several that share their past.

        Without `pos` the token follows the last token of its sequence (the first of several) in
        this batch. If there is none, it follows the last token that the model has evaluated when
        the batch is decoded. With `logits` the result has a row for the token. Raises TypeError and
        `ArgumentError` for anything that cannot be a token, a position or a sequence, and
        `ModelError` without a sequence. `Model.decode` checks whether the model has them.
        """
        token = integer("token", token, -POS_MAX, POS_MAX)
        if pos is not None:
            pos = integer("pos", pos, 0, POS_MAX)
        if isinstance(seq, Iterable) and not isinstance(seq, str):
            seqs = tuple(dict.fromkeys(integer("seq", s, -POS_MAX, POS_MAX) for s in seq))
        else:
            seqs = (integer("seq", seq, -POS_MAX, POS_MAX),)
        if not seqs:
            raise ModelError("seq=(): a token belongs to at least one sequence")
        if not isinstance(logits, bool):
            raise TypeError(f"logits: expected True or False, got {describe(logits)}")
        self.token.append(token)
        self.pos.append(pos)
        self.seq.append(seqs)
        self.logits.append(logits)

    def clear(self) -> None:
        """Removes all tokens."""
        for values in (self.token, self.pos, self.seq, self.logits):
            values.clear()

    def __len__(self) -> int:
        return len(self.token)

    def __repr__(self) -> str:
        seqs = sorted({s for seq in self.seq for s in seq})
        n, n_outputs = len(self), sum(self.logits)
        return (
            f"<Batch of {n} token{'s' * (n != 1)}, sequences {seqs}, "
            f"{n_outputs} output{'s' * (n_outputs != 1)}>"
        )

"""Checked batches, and the parts of them that one graph takes (llama-batch.cpp)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ids = npt.NDArray[np.int32]

Seqs = tuple[int, ...]  # the sequences of a token, which sees the past of the first
Where = slice | list[int]  # indices of some of the tokens


class Tokens(NamedTuple):
    """A batch whose tokens, positions and sequences have been checked."""

    token: Ids  # [n_tokens]
    pos: Ids
    seqs: Sequence[Seqs]
    output: npt.NDArray[np.bool_]  # whose logits are wanted

    def part(self, at: Where, n_seqs: int) -> Ubatch:
        """The tokens `at`, as `n_seqs` runs of equal length."""
        seqs = self.seqs[at] if isinstance(at, slice) else [self.seqs[i] for i in at]
        idxs = np.arange(at.start, at.stop) if isinstance(at, slice) else np.array(at)
        out_ids = np.flatnonzero(self.output[at]).astype(np.int32)
        return Ubatch(self.token[at], self.pos[at], seqs, out_ids, idxs, n_seqs)

    def range(self, start: int, n: int) -> Tokens:
        """n tokens from `start` on."""
        at = slice(start, start + n)
        return Tokens(self.token[at], self.pos[at], self.seqs[at], self.output[at])


class Ubatch:
    """The tokens of one graph.

    `out_ids` are the tokens whose logits are wanted, `batch_idxs` the places of all tokens in the
    batch. `sets` are the different sets of sequences, each with its tokens. `slots` are the cells
    that a memory has given the tokens.
    """

    def __init__(
        self,
        token: Ids,
        pos: Ids,
        seqs: Sequence[Seqs],
        out_ids: Ids,
        batch_idxs: npt.NDArray[np.integer[Any]],
        n_seqs: int,
    ) -> None:
        self.token = token
        self.pos = pos
        self.out_ids = out_ids
        self.batch_idxs = batch_idxs
        self.n_tokens = len(token)
        self.n_seqs = n_seqs  # sets of sequences
        self.n_seq_tokens = self.n_tokens // n_seqs  # per set
        self.sets = _sets(seqs)
        self.seq_ids = tuple(sorted({s for seqs, _at in self.sets for s in seqs}))
        self.slots: Any = None


def _sets(seqs: Sequence[Seqs]) -> list[tuple[Seqs, Where]]:
    """The different sets of sequences with the tokens that have them, in order of appearance."""
    if seqs.count(seqs[0]) == len(seqs):
        return [(seqs[0], slice(0, len(seqs)))]
    places: dict[Seqs, list[int]] = {}
    for i, key in enumerate(seqs):
        places.setdefault(key, []).append(i)
    return [
        (key, slice(at[0], at[-1] + 1) if at[-1] - at[0] + 1 == len(at) else at)
        for key, at in places.items()
    ]


def split_simple(tokens: Tokens, n_ubatch: int) -> list[Ubatch]:
    """Splits after every n_ubatch tokens. C: llama_batch_allocr::split_simple"""
    n = len(tokens.token)
    ranges = [slice(start, min(start + n_ubatch, n)) for start in range(0, n, n_ubatch)]
    return [tokens.part(at, 1) for at in ranges]


def split_equal(tokens: Tokens, n_ubatch: int, sequential: bool) -> list[Ubatch]:
    """Splits so that each ubatch has the same number of tokens of each of its sets of sequences,
    set by set.

    The sets of one ubatch have no sequence in common. With `sequential`, where each token must have
    a single sequence, the sequences' numbers are consecutive. C: llama_batch_allocr::split_equal
    """
    if tokens.seqs.count(tokens.seqs[0]) == len(tokens.seqs):
        return split_simple(tokens, n_ubatch)
    left: dict[Seqs, list[int]] = {}  # tokens without a ubatch so far, by their sequences
    for i, seqs in enumerate(tokens.seqs):
        left.setdefault(tuple(sorted(seqs)), []).append(i)
    ubatches = []
    while left:
        chosen = _disjoint(left, n_ubatch, sequential)
        # Upstream checks for room before it adds, so with more sets than n_ubatch it still takes
        # one token of each.
        n = max(1, min(n_ubatch // len(chosen), *(len(left[seqs]) for seqs in chosen)))
        ubatches.append(tokens.part([i for seqs in chosen for i in left[seqs][:n]], len(chosen)))
        for seqs in chosen:
            del left[seqs][:n]
            if not left[seqs]:
                del left[seqs]
    return ubatches


def _disjoint(left: dict[Seqs, list[int]], n_ubatch: int, sequential: bool) -> list[Seqs]:
    """Sets without a common sequence, ordered by their first tokens."""
    chosen: list[Seqs] = []
    taken: set[int] = set()
    i = -1  # the token that added the last set; the next set is added by a later token
    while len(chosen) <= n_ubatch:
        following = [
            (at[bisect_right(at, i)], seqs)
            for seqs, at in left.items()
            if at[-1] > i
            and taken.isdisjoint(seqs)
            and not (sequential and chosen and seqs[0] != chosen[-1][0] + 1)
        ]
        if not following:
            break
        i, seqs = min(following)
        chosen.append(seqs)
        taken.update(seqs)
    return chosen


def split_seq(tokens: Tokens, n_ubatch: int) -> list[Ubatch]:
    """Splits so that each ubatch has tokens of one set of sequences and of its subsets.
    C: llama_batch_allocr::split_seq"""
    left = list(range(len(tokens.token)))
    ubatches = []
    while left:
        at: list[int] = []
        current = set(tokens.seqs[left[0]])
        for i in left:
            if len(at) < n_ubatch and current.issuperset(tokens.seqs[i]):
                at.append(i)
                current = set(tokens.seqs[i])
        ubatches.append(tokens.part(at, 1))
        taken = set(at)
        left = [i for i in left if i not in taken]
    return ubatches


def one_token(seq: int) -> Ubatch:
    """A ubatch of one token of a sequence, to be filled in later."""
    one = np.zeros(1, np.int32)
    return Ubatch(one, one.copy(), [(seq,)], one.copy(), one.copy(), 1)


def in_order(
    rows: list[npt.NDArray[np.float32]],
    places: list[npt.NDArray[np.integer[Any]]],
    n_vocab: int,
) -> npt.NDArray[np.float32]:
    """The logits of one batch, sorted by token."""
    if not rows:
        return np.empty((0, n_vocab), np.float32)
    if len(rows) == 1:
        order, logits = places[0], rows[0]
    else:
        order, logits = np.concatenate(places), np.concatenate(rows)
    return logits if (order[1:] > order[:-1]).all() else logits[np.argsort(order)]

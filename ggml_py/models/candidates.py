"""The tokens that are left to choose from, and the steps that reduce them."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

F32 = np.float32
_GROUPS = 32  # logits per group; the groups' maxima tell where the largest logits are


@dataclass(frozen=True, eq=False)
class Candidates:
    """Tokens and their logits: the whole vocabulary (`ids` None), or the tokens that are left.

    `is_sorted` means largest logit first, and of equal ones the lower id first. Sums are computed
    in llama.cpp's order and precision, because the cuts depend on them.
    """

    logits: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64] | None = None
    is_sorted: bool = False

    def all_ids(self) -> npt.NDArray[np.int64]:
        """The tokens' ids."""
        return np.arange(len(self.logits)) if self.ids is None else self.ids

    def only(self, which: npt.NDArray[Any] | slice, is_sorted: bool) -> Candidates:
        """The tokens at these places."""
        if self.ids is None and not isinstance(which, slice):
            return Candidates(self.logits[which], which, is_sorted)
        return Candidates(self.logits[which], self.all_ids()[which], is_sorted)

    def top_k(self, k: int) -> Candidates:
        """The k likeliest, sorted."""
        if self.is_sorted:
            return self.only(slice(k), True)
        return self.only(_largest(self.logits, k), True)

    def top_p(self, p: float) -> Candidates:
        """The likeliest tokens that together have the probability p, sorted; at least one."""
        weights = _weights(self.logits)
        weights /= np.add.accumulate(weights)[-1]
        n, all_ = 256, len(weights)
        while True:
            order = slice(all_) if self.is_sorted else _largest(self.logits, n)
            enough = np.add.accumulate(weights[order]) >= F32(p)
            if enough.any():
                return self.only(order, True).top_k(int(enough.argmax()) + 1)
            if self.is_sorted or n >= all_:
                return self.only(order, True)
            n *= 8

    def min_p(self, p: float) -> Candidates:
        """The tokens that are at least p times as likely as the likeliest."""
        least = self._max() + F32(np.log(np.float64(F32(p))))
        return self.only(np.flatnonzero(self.logits >= least), self.is_sorted)

    def temper(self, temperature: float) -> Candidates:
        """All tokens, with their logits divided by `temperature`."""
        logits = self.logits / F32(temperature)
        if not isfinite(logits.max()):  # a tiny temperature
            logits = (self.logits - self._max()) / F32(temperature)
        return Candidates(logits, self.ids, self.is_sorted)

    def probabilities(self) -> npt.NDArray[np.float32]:
        """The softmax of the logits."""
        weights = _weights(self.logits).astype(np.float64)
        weights /= np.add.accumulate(weights)[-1]
        return weights.astype(F32)

    def draw(self, uniform: float) -> int:
        """The token that `uniform`, a random number in [0, 1), selects by the probabilities."""
        sums = _weights(self.logits).astype(np.float64)
        np.add.accumulate(sums, out=sums)
        # An impossible token must not be drawn, even by a 0.
        place = int(sums.searchsorted(max(sums[-1] * uniform, 5e-324)))
        return place if self.ids is None else int(self.ids[place])

    def _max(self) -> np.float32:
        largest: np.float32 = self.logits.max()
        return largest


def _weights(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """exp(logits - the largest). In double, because numpy's exp in single precision is not expf."""
    with np.errstate(over="ignore"):
        weights: npt.NDArray[np.float64] = (logits - logits.max()).astype(np.float64)
    np.exp(weights, out=weights)
    return weights.astype(F32)


def _largest(values: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.int64]:
    """The places of the k largest values, largest first, and of equal values the first one."""
    n_rows = len(values) // _GROUPS
    places = np.arange(len(values))
    if k < len(values):
        # The k-th largest of the groups' maxima is never above the k-th largest of all values, and
        # is found sooner. For k = 40 it leaves not many more than 40 tokens of a vocabulary.
        some = values[: n_rows * _GROUPS].reshape(_GROUPS, n_rows).max(axis=0)
        some = some if 2 * k <= n_rows else values
        places = np.flatnonzero(values >= np.partition(some, len(some) - k)[len(some) - k])
    return places[np.argsort(-values[places], kind="stable")[:k]]

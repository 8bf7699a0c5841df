"""The tokens that one graph takes (llama-batch.cpp)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from .cells import Idxs

    Ids = npt.NDArray[np.int32]


class Ubatch(NamedTuple):
    """Consecutive tokens of the sequence."""

    token: Ids  # [n_tokens]
    pos: Ids
    out_ids: Ids  # the tokens whose logits are wanted
    slots: list[Idxs]  # the cells for them, by cache

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.token)


def split(ids: Ids, start: int, all_logits: bool, n_batch: int, n_ubatch: int) -> list[Ubatch]:
    """Splits tokens from position `start` on into batches, and each after every n_ubatch. The
    logits are those of the last token, or of all. C: llama_batch_allocr::split_simple"""
    found = []
    for batch in range(0, len(ids), n_batch):
        end = min(batch + n_batch, len(ids))
        for first in range(batch, end, n_ubatch):
            part: Any = ids[first : min(first + n_ubatch, end)]
            n = len(part)
            last = first + n == len(ids)
            out_ids = range(n) if all_logits else (n - 1,) if last else ()
            pos = np.arange(start + first, start + first + n, dtype=np.int32)
            found.append(Ubatch(part, pos, np.array(out_ids, np.int32), []))
    return found

"""The token with the largest logit: greedy choice, without libllama."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..boundary.ffi import ffi, lib
from ..errors import ModelError

if TYPE_CHECKING:
    import numpy.typing as npt


def likeliest(logits: npt.NDArray[np.float32]) -> int:
    """The token with the largest logit, of several the one with the lowest id. `logits` must be
    contiguous.

    Raises `ModelError` for logits without a finite largest one: NaN, inf, or all -inf.
    """
    native = ffi.from_buffer("float[]", logits)
    token: int = lib.gp_likeliest(native, len(native))
    if token < 0:
        raise ModelError(_not_finite(logits))
    return token


def _not_finite(logits: npt.NDArray[np.float32]) -> str:
    """The problem of logits whose largest is not finite, for an error message."""
    bad = np.flatnonzero(np.isnan(logits) | (logits == np.inf))
    if not bad.size:
        return "all logits are -inf: no token is left to sample"
    return (
        f"the logit of token {bad[0]} is {logits[bad[0]]} ({bad.size} of {logits.size} are not "
        "finite), so nothing can be sampled: the model's weights are damaged, or they overflow"
    )

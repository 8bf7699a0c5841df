"""Hadamard matrices: vectors that are rotated by them quantise better (llama.cpp's caches)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ... import enums
from ...graphs.context import Context
from ...tensors.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt


@cache
def hadamard(n: int) -> npt.NDArray[np.float32]:
    """The orthogonal [n, n] matrix of scaled ones and minus ones; n must be a power of two."""
    matrix = np.full((1, 1), 1 / np.sqrt(n), np.float32)
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def rotate(ctx: Context, cur: Tensor, rot: Tensor | None) -> Tensor:
    """Multiplies each run of n elements of `cur` by the Hadamard matrix rot [n, n], if given."""
    if rot is None:
        return cur
    n = rot.ne[0]
    rows = (n, cur.n_elements // n)
    flat = ctx.reshape_2d(cur, *rows) if cur.is_contiguous else ctx.cont_2d(cur, *rows)
    res = ctx.mul_mat(rot, flat)
    res.set_hint(enums.OpHint.SRC0_IS_HADAMARD)  # the oldest releases lack it, and rotate nothing
    return ctx.reshape_4d(res, *cur.ne)

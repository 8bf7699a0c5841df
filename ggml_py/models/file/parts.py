"""The parts of a layer's weights: a matrix with its bias, queries with keys and values.

`Weights` finds each part in the file, architectures list them as fields (tensors.py), and blocks
compute with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...tensors.tensor import Tensor

Has = Literal["no", "maybe", "yes"]  # whether a file has the tensor; anything else is an error


@dataclass(frozen=True, slots=True)
class Linear:
    """`NAME.weight` and, if the file has them, `NAME.bias` and `NAME.scale`."""

    weight: Tensor  # [n_in, n_out], for experts [n_in, n_out, n_expert]
    bias: Tensor | None = None  # [n_out] or [n_out, n_expert]
    scale: Tensor | None = None  # [1] or [n_expert]: factor of the block scales of nvfp4


@dataclass(frozen=True, slots=True)
class Qkv:
    """Queries, keys and values, from three matrices."""

    attn_q: Linear
    attn_k: Linear
    attn_v: Linear

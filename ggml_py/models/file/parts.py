"""The parts of a layer's weights: a matrix with its bias, a norm, queries with keys and values.

`Weights` finds each part in the file, architectures list them as fields (tensors.py), and blocks
compute with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...tensors.tensor import Tensor

Has = Literal["no", "maybe", "yes"]  # whether a file has the tensor; anything else is an error


@dataclass(frozen=True, slots=True)
class Norm:
    """`NAME.weight`, and `NAME.bias` for a norm with a shift."""

    weight: Tensor
    bias: Tensor | None = None


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


@dataclass(frozen=True, slots=True)
class FusedQkv:
    """Queries, keys and values, from one matrix. Its bias may be in three parts (old files)."""

    attn_qkv: Linear
    biases: tuple[Tensor, Tensor, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class RopeFactors:
    """The divisors of RoPE's frequencies: `freqs`, or else `long` or `short` by context length."""

    freqs: Tensor | None = None
    long: Tensor | None = None
    short: Tensor | None = None

    def of(self, n_ctx: int, n_ctx_orig: int) -> Tensor | None:
        """The factors for a context of n_ctx tokens."""
        if self.freqs is not None:
            return self.freqs
        return self.long if n_ctx > n_ctx_orig else self.short

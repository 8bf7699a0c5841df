"""What a layer's weights consist of: a matrix with its bias, a norm, queries with keys and values.

`Weights` finds each in the file, architectures list them as fields (tensors.py), blocks compute
with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...tensors.tensor import Tensor

Has = Literal["no", "maybe", "yes"]  # whether a file has the tensor: "no" is an error where it does


@dataclass(frozen=True, slots=True)
class Norm:
    """`NAME.weight`, and `NAME.bias` for a norm with a shift."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """`NAME.weight` and, where the file has them, `NAME.bias` and `NAME.scale`."""

    weight: Tensor  # [n_in, n_out], of experts [n_in, n_out, n_expert]
    bias: Tensor | None = None  # [n_out] or [n_out, n_expert]
    scale: Tensor | None = None  # [1] or [n_expert]: what block scales of nvfp4 are relative to


@dataclass(frozen=True, slots=True)
class Qkv:
    """Queries, keys and values: of three matrices."""

    attn_q: Linear
    attn_k: Linear
    attn_v: Linear


@dataclass(frozen=True, slots=True)
class FusedQkv:
    """Queries, keys and values: of one matrix, whose bias may be in three parts (old files)."""

    attn_qkv: Linear
    biases: tuple[Tensor, Tensor, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class RopeFactors:
    """What RoPE's frequencies are divided by: always `freqs`, or by the context's length."""

    freqs: Tensor | None = None
    long: Tensor | None = None
    short: Tensor | None = None

    def of(self, n_ctx: int, n_ctx_orig: int) -> Tensor | None:
        """Those for a context of n_ctx tokens."""
        if self.freqs is not None:
            return self.freqs
        return self.long if n_ctx > n_ctx_orig else self.short

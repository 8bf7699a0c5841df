"""The smollm3 architecture."""

from __future__ import annotations

from dataclasses import dataclass

from ...tensors.tensor import Tensor
from ..build.decoder import PreNormBlock, PreNormDecoder
from ..file.tensors import PlainFfn

_NO_ROPE_STEP = 4  # every fourth layer has no positions


@dataclass(frozen=True)
class Block(PlainFfn, PreNormBlock):
    """The tensors blk.N.* of one layer, by their names in the file."""


class Smollm3Graph(PreNormDecoder[Block]):
    """llama.cpp's src/models/smollm3.cpp."""

    block = Block

    def build_self_attn(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """See `PreNormDecoder`. Also names the result, which most architectures do not."""
        return self.cb(super().build_self_attn(cur, blk, il), "attn_out", il)

    def build_qk(self, q: Tensor, k: Tensor, blk: Block, il: int) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys in three layers of four."""
        return (q, k) if (il + 1) % _NO_ROPE_STEP == 0 else super().build_qk(q, k, blk, il)

    def build_feed_forward(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """silu(gate) * up."""
        return self.build_ffn(cur, blk.ffn_up, blk.ffn_gate, blk.ffn_down, "silu", il)

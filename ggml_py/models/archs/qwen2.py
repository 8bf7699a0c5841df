"""The qwen2 architecture (Qwen 1.5 to 2.5)."""

from __future__ import annotations

from dataclasses import dataclass

from ...tensors.tensor import Tensor
from ..build.decoder import PreNormBlock, PreNormDecoder
from ..file.hparams import ROPE_NEOX
from ..file.tensors import PlainFfn


@dataclass(frozen=True)
class Block(PlainFfn, PreNormBlock):
    """The tensors blk.N.* of one layer, by their names in the file."""


class Qwen2Graph(PreNormDecoder[Block]):
    """llama.cpp's src/models/qwen2.cpp: queries, keys and values have biases."""

    block = Block
    rope_mode = ROPE_NEOX
    output_bias = "maybe"

    def build_feed_forward(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """silu(gate) * up."""
        return self.build_ffn(cur, blk.ffn_up, blk.ffn_gate, blk.ffn_down, il)

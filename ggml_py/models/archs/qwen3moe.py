"""The qwen3moe architecture: qwen3 with a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...tensors.tensor import Tensor
from ..build.experts import build_moe_ffn, read_experts
from ..file.hparams import HParams, Keys
from ..file.tensors import MoeFfn
from .qwen3 import QkNormBlock, QkNormDecoder


@dataclass(frozen=True)
class Block(MoeFfn, QkNormBlock):
    """The tensors blk.N.* of one layer, by their names in the file."""


class Qwen3MoeGraph(QkNormDecoder[Block]):
    """llama.cpp's src/models/qwen3moe.cpp."""

    block = Block

    @classmethod
    def read_experts(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`. All layers have experts."""
        experts = read_experts(keys, keys.size("expert_count"))
        n_ff_exp = keys.get("expert_feed_forward_length", int, 0)
        return replace(hp, experts=experts, n_ff_exp=n_ff_exp or hp.n_ff // experts.n_expert_used)

    def build_feed_forward(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """The mixture of experts."""
        return build_moe_ffn(self, cur, blk, il)

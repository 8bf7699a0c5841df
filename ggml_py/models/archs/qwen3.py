"""The qwen3 architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from ...tensors.tensor import Tensor
from ..build.decoder import DecoderWeights, PreNormBlock, PreNormDecoder
from ..file.hparams import ROPE_NEOX, HParams
from ..file.tensors import Ffn, norm
from ..file.weights import Weights


@dataclass(frozen=True)
class QkNormBlock(PreNormBlock):
    """The tensors of a layer that normalises each head's queries and keys."""

    attn_q_norm: Tensor = norm("n_embd_head")
    attn_k_norm: Tensor = norm("n_embd_head")


B = TypeVar("B", bound=QkNormBlock)


class QkNormDecoder(PreNormDecoder[B]):
    """Normalises queries and keys before rotating them."""

    rope_mode = ROPE_NEOX

    def build_qk(self, q: Tensor, k: Tensor, blk: B, il: int) -> tuple[Tensor, Tensor]:
        """Normalises and rotates queries and keys."""
        q = self.cb(self.build_norm(q, blk.attn_q_norm, il), "Qcur_normed", il)
        k = self.cb(self.build_norm(k, blk.attn_k_norm, il), "Kcur_normed", il)
        return super().build_qk(q, k, blk, il)


@dataclass(frozen=True)
class Block(Ffn, QkNormBlock):
    """The tensors blk.N.* of one layer, by their names in the file."""


class Qwen3Graph(QkNormDecoder[Block]):
    """llama.cpp's src/models/qwen3.cpp."""

    block = Block

    @classmethod
    def declare(cls, weights: Weights, hp: HParams) -> DecoderWeights[Block]:
        """See `Decoder`. A reranker's head is loaded, too, which generating does not use."""
        weights.unread(hp.n_layer, "cls.output.weight")
        return super().declare(weights, hp)

    def build_feed_forward(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """silu(gate) * up."""
        return self.build_ffn(cur, blk.ffn_up, blk.ffn_gate, blk.ffn_down, il)

"""The gpt2 architecture."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...tensors.tensor import Tensor
from ..build.decoder import DecoderWeights, PreNormBlock, PreNormDecoder
from ..file.hparams import HParams, Keys, check_dense
from ..file.parts import FusedQkv, Linear, Norm
from ..file.tensors import fused_qkv, linear, norm
from ..file.weight_ops import INPUT
from ..file.weights import Weights


@dataclass(frozen=True)
class Block(PreNormBlock):
    """The tensors blk.N.* of one layer, by their names in the file."""

    attn_norm: Norm = norm("n_embd", bias="yes")
    attn_qkv: FusedQkv = fused_qkv()
    attn_output: Linear = linear("n_embd", "n_embd", bias="yes")
    ffn_norm: Norm = norm("n_embd", bias="yes")
    ffn_up: Linear = linear("n_embd", "n_ff", bias="yes", scale=False)
    ffn_down: Linear = linear("n_ff", "n_embd", bias="yes", scale=False)


class Gpt2Graph(PreNormDecoder[Block]):
    """llama.cpp's src/models/gpt2.cpp: learned positions, biases everywhere, no gate."""

    block = Block
    norm_bias = "yes"

    @classmethod
    def read_hparams(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`."""
        check_dense(keys, hp)
        norm_eps = keys.get("attention.layer_norm_epsilon", float)
        return replace(hp, norm_eps=norm_eps, n_positions=hp.n_ctx_train)

    @classmethod
    def declare(cls, weights: Weights, hp: HParams) -> DecoderWeights[Block]:
        """See `Decoder`. Adds a vector per position."""
        ne = (hp.n_embd, hp.n_ctx_train)
        position_embd = weights.tensor(INPUT, "position_embd.weight", *ne)
        return replace(super().declare(weights, hp), position_embd=position_embd)

    def normalize(self, cur: Tensor) -> Tensor:
        """Layer norm: unlike RMS norm, it subtracts the mean."""
        return self.ctx.norm(cur, self.hparams.norm_eps)

    def build_inp(self, inp_l: Tensor, w: DecoderWeights[Block]) -> Tensor:
        """Adds the embeddings of the positions to those of the tokens."""
        assert w.position_embd is not None
        pos = self.cb(self.ctx.get_rows(w.position_embd, self.inp_pos), "pos_embd")
        return self.cb(self.ctx.add(inp_l, pos), "inpL")

    def build_qk(self, q: Tensor, k: Tensor, _blk: Block, _il: int) -> tuple[Tensor, Tensor]:
        """Leaves queries and keys unchanged: the embeddings have the positions."""
        return q, k

    def build_feed_forward(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """gelu(up)."""
        return self.build_ffn(cur, blk.ffn_up, None, blk.ffn_down, "gelu", il)

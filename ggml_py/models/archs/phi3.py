"""The phi3 architecture (Phi-3, 3.5, 4). Like upstream, it does not use their sliding windows."""

from __future__ import annotations

from dataclasses import dataclass

from ...tensors.tensor import Tensor
from ..build.decoder import PreNormBlock, PreNormDecoder
from ..file.hparams import ROPE_NEOX
from ..file.parts import Linear, RopeFactors
from ..file.tensors import linear, long_and_short


@dataclass(frozen=True)
class Block(PreNormBlock):
    """The tensors blk.N.* of one layer, by their names in the file."""

    ffn_up: Linear = linear("n_embd", "n_ff_twice", scale=False)  # includes the gate
    ffn_down: Linear = linear("n_ff", "n_embd", scale=False)
    rope_factors: RopeFactors = long_and_short()


class Phi3Graph(PreNormDecoder[Block]):
    """llama.cpp's src/models/phi3.cpp: heads may be rotated in part, and queries are scaled before
    attention."""

    block = Block
    rope_mode = ROPE_NEOX
    whole_rope = False

    def build_layer(self, inp_l: Tensor, blk: Block, il: int) -> Tensor:
        """See `Decoder`."""
        cur = self.cb(self.build_norm(inp_l, blk.attn_norm, il), "attn_norm", il)
        cur = self.build_self_attn(cur, blk, il)
        cur, residual = self.build_out_ids(il, cur, inp_l)
        residual = self.ctx.add(cur, residual)
        cur = self.cb(self.build_norm(residual, blk.ffn_norm, il), "ffn_norm", il)
        return self.ctx.add(residual, self.build_feed_forward(cur, blk, il))

    def build_self_attn(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """Attention over the tokens so far: [n_embd, n_tokens]."""
        q, k, v = self.build_qkv(cur, blk.attn_qkv, il)
        q = self.build_rope(q, il, blk.rope_factors)
        k = self.cb(self.build_rope(k, il, blk.rope_factors), "Kcur", il)
        q = self.cb(self.ctx.scale(self.cb(q, "Qcur", il), self.hparams.kq_scale), "Qcur", il)
        return self.build_attn(q, k, self.cb(v, "Vcur", il), blk.attn_output, 1.0, il)

    def build_feed_forward(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """silu(first half of up) * second half."""
        return self.build_ffn(cur, blk.ffn_up, None, blk.ffn_down, "swiglu", il)

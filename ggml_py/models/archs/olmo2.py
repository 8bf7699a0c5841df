"""The olmo2 architecture (OLMo 2, and OLMo 3 with its sliding windows)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...tensors.tensor import Tensor
from ..build.decoder import Decoder
from ..file.hparams import ROPE_NEOX, HParams, Keys, sliding_window
from ..file.parts import Norm
from ..file.tensors import Attention, PlainFfn, norm


@dataclass(frozen=True)
class Block(PlainFfn, Attention):
    """The tensors blk.N.* of one layer, by their names in the file."""

    attn_q_norm: Norm = norm("n_embd_q")
    attn_k_norm: Norm = norm("n_embd_gqa")
    post_attention_norm: Norm = norm("n_embd")
    post_ffw_norm: Norm = norm("n_embd")


class Olmo2Graph(Decoder[Block]):
    """llama.cpp's src/models/olmo2.cpp: norms come after attention and feed-forward network, not
    before."""

    block = Block
    rope_mode = ROPE_NEOX
    output_weight = "yes"

    @classmethod
    def read_hparams(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`. Adds the sliding window if the file has one. In layers with a window the
        rotation is not scaled."""
        hp = super().read_hparams(keys, hp)
        n_swa = keys.get("attention.sliding_window", int, 0)
        if n_swa <= 0:
            return hp
        rope = replace(hp.rope, freq_scale=1.0, ext_factor=0.0, attn_factor=1.0)
        return replace(hp, swa=sliding_window(keys, hp, n_swa, 4, rope))

    def build_layer(self, inp_l: Tensor, blk: Block, il: int) -> Tensor:
        """See `Decoder`."""
        q, k, v = self.build_qkv_flat(inp_l, blk.attn_qkv, il)
        q = self.cb(self.build_norm(q, blk.attn_q_norm, il), "Qcur_normed", il)
        k = self.cb(self.build_norm(k, blk.attn_k_norm, il), "Kcur_normed", il)
        q, k, v = self.build_heads([q, k, v])
        q = self.cb(self.build_rope(q, il), "Qcur", il)
        k = self.cb(self.build_rope(k, il), "Kcur", il)
        self.cb(v, "Vcur", il)
        cur = self.build_attn(q, k, v, blk.attn_output, self.hparams.kq_scale, il)
        cur, inp_sa = self.build_out_ids(il, cur, inp_l)
        cur = self.cb(self.build_norm(cur, blk.post_attention_norm, il), "attn_post_norm", il)
        ffn_inp = self.cb(self.ctx.add(cur, inp_sa), "ffn_inp", il)
        cur = self.build_ffn(ffn_inp, blk.ffn_up, blk.ffn_gate, blk.ffn_down, "silu", il)
        cur = self.cb(self.build_norm(cur, blk.post_ffw_norm), "ffn_post_norm")
        return self.ctx.add(cur, ffn_inp)

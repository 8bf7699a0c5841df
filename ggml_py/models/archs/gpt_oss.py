"""The gpt-oss architecture."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...tensors.tensor import Tensor
from ..build.decoder import Decoder
from ..build.experts import Gating, build_moe_ffn, read_experts
from ..file.hparams import ROPE_NEOX, HParams, Keys, sliding_window, train_scale
from ..file.parts import Linear
from ..file.tensors import Attention, MoeFfn, experts, linear, norm, tensor


@dataclass(frozen=True)
class Block(MoeFfn, Attention):
    """The tensors blk.N.* of one layer, by their names in the file."""

    attn_norm: Tensor = norm("n_embd")
    attn_output: Linear = linear("n_embd_q", "n_embd", bias="yes")
    attn_sinks: Tensor = tensor("n_head", suffix=".weight")
    post_attention_norm: Tensor = norm("n_embd")
    ffn_gate_inp: Linear = linear("n_embd", "n_expert", bias="yes")
    ffn_gate_exps: Linear = experts("n_embd", "n_ff_exp", bias=True, scale=False)
    ffn_up_exps: Linear = experts("n_embd", "n_ff_exp", bias=True, scale=False)
    ffn_down_exps: Linear = experts("n_ff_exp", "n_embd", bias=True, scale=False)


class GptOssGraph(Decoder[Block]):
    """llama.cpp's src/models/openai-moe.cpp: heads have sinks, which take a share of attention."""

    block = Block
    rope_mode = ROPE_NEOX
    output_weight = "yes"

    @classmethod
    def read_hparams(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`. Every second layer has a sliding window."""
        hp = super().read_hparams(keys, hp)
        base = keys.get("rope.freq_base_swa", float, hp.rope.freq_base)
        n_swa = keys.size("attention.sliding_window")
        rope = replace(hp.rope, freq_base=base, freq_scale=train_scale(keys))
        return replace(hp, swa=sliding_window(keys, hp, n_swa, 2, rope))

    @classmethod
    def read_experts(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`. All layers have experts."""
        n_ff_exp = keys.size("expert_feed_forward_length")
        return replace(hp, experts=read_experts(keys, keys.size("expert_count")), n_ff_exp=n_ff_exp)

    def build_layer(self, inp_l: Tensor, blk: Block, il: int) -> Tensor:
        """See `Decoder`."""
        cur = self.cb(self.build_norm(inp_l, blk.attn_norm, il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, blk.attn_qkv, il)
        q = self.cb(self.build_rope(q, il), "Qcur", il)
        k = self.cb(self.build_rope(k, il), "Kcur", il)
        kq_scale = self.hparams.kq_scale
        cur = self.build_attn(q, k, v, blk.attn_output, kq_scale, il, blk.attn_sinks)
        cur, inp_sa = self.build_out_ids(il, self.cb(cur, "attn_out", il), inp_l)
        ffn_inp = self.cb(self.ctx.add(cur, inp_sa), "ffn_inp", il)
        cur = self.cb(self.build_norm(ffn_inp, blk.post_attention_norm, il), "attn_post_norm", il)
        return self.ctx.add(build_moe_ffn(self, cur, blk, il, Gating.CHOSEN), ffn_inp)

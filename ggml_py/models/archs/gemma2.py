"""The gemma2 architecture, and the parts that gemma3 shares with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from ...tensors.tensor import Tensor
from ..build.decoder import Decoder
from ..file.hparams import ROPE_NEOX, HParams, Keys, inverse, root, sliding_window, train_scale
from ..file.parts import Linear, Norm
from ..file.tensors import Attention, PlainFfn, norm


@dataclass(frozen=True)
class Block(PlainFfn, Attention):
    """The tensors blk.N.* of one layer, by their names in the file."""

    attn_norm: Norm = norm("n_embd")
    post_attention_norm: Norm = norm("n_embd")
    ffn_norm: Norm = norm("n_embd")
    post_ffw_norm: Norm = norm("n_embd")


B = TypeVar("B", bound=Block)


class GemmaDecoder(Decoder[B]):
    """Has norms before and after attention and the feed-forward network, and scales the queries
    before attention."""

    rope_mode = ROPE_NEOX
    whole_rope = False
    n_layer_27b: ClassVar[int]  # the largest model has another scale

    @classmethod
    def read_hparams(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`. Adds the scale of the queries."""
        hp = super().read_hparams(keys, hp)
        n = hp.n_embd // hp.n_head if hp.n_layer == cls.n_layer_27b else hp.n_embd_head
        return replace(hp, attention_scale=inverse(root(n)))

    def build_layer(self, inp_l: Tensor, blk: B, il: int) -> Tensor:
        """See `Decoder`."""
        cur = self.cb(self.build_norm(inp_l, blk.attn_norm, il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, blk.attn_qkv, il)
        q, k = self.build_qk(q, k, blk, il)
        q, k = self.cb(q, "Qcur", il), self.cb(k, "Kcur", il)
        q = self.ctx.scale(q, self.hparams.attention_scale)
        cur = self.build_attn(q, k, self.cb(v, "Vcur", il), blk.attn_output, 1.0, il)
        cur, inp_l = self.build_out_ids(il, cur, inp_l)
        cur = self.cb(self.build_norm(cur, blk.post_attention_norm, il), "attn_post_norm", il)
        sa_out = self.cb(self.ctx.add(cur, inp_l), "sa_out", il)
        cur = self.cb(self.build_norm(sa_out, blk.ffn_norm, il), "ffn_norm", il)
        cur = self.build_ffn(cur, blk.ffn_up, blk.ffn_gate, blk.ffn_down, "gelu", il)
        cur = self.name_ffn_post_norm(self.build_norm(cur, blk.post_ffw_norm), il)
        return self.ctx.add(cur, sa_out)

    def build_qk(self, q: Tensor, k: Tensor, _blk: B, il: int) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys to their positions."""
        return self.build_rope(q, il), self.build_rope(k, il)

    def name_ffn_post_norm(self, cur: Tensor, _il: int) -> Tensor:
        """Names the last norm, without the layer's number."""
        return self.cb(cur, "ffn_post_norm")

    def build_output(self, cur: Tensor, output: Linear) -> Tensor:
        """See `Decoder`. Caps the logits softly."""
        cur = super().build_output(cur, output)
        cap = self.hparams.final_logit_softcapping
        if not cap:
            return cur
        return self.ctx.scale(self.ctx.tanh(self.ctx.scale(cur, inverse(cap))), cap)


class Gemma2Graph(GemmaDecoder[Block]):
    """llama.cpp's src/models/gemma2.cpp: half of the layers have a sliding window, and attention
    scores are capped."""

    block = Block
    output_weight = "no"
    n_layer_27b = 46

    @classmethod
    def read_hparams(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`. Adds the sliding window and the caps, which have defaults."""
        hp = super().read_hparams(keys, hp)
        base = keys.get("rope.freq_base_swa", float, hp.rope.freq_base)
        n_swa = keys.size("attention.sliding_window", 4096)
        rope = replace(hp.rope, freq_base=base, freq_scale=train_scale(keys))
        return replace(
            hp,
            swa=sliding_window(keys, hp, n_swa, 2, rope),
            attn_logit_softcapping=keys.get("attn_logit_softcapping", float, 50.0),
            final_logit_softcapping=keys.get("final_logit_softcapping", float, 30.0),
        )

    def build_inp(self, inp_l: Tensor, _w: object) -> Tensor:
        """See `Decoder`. Scales the embeddings."""
        return self.cb(self.ctx.scale(inp_l, root(self.hparams.n_embd)), "inp_scaled")

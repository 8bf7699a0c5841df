"""The gemma3 architecture."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...tensors.tensor import Tensor
from ..file.hparams import HParams, Keys, root, sliding_window
from ..file.parts import Norm
from ..file.tensors import norm
from . import gemma2
from .gemma2 import GemmaDecoder


@dataclass(frozen=True)
class Block(gemma2.Block):
    """The tensors blk.N.* of one layer, by their names in the file."""

    attn_q_norm: Norm = norm("n_embd_head")
    attn_k_norm: Norm = norm("n_embd_head")


class Gemma3Graph(GemmaDecoder[Block]):
    """llama.cpp's src/models/gemma3.cpp: five layers in six have a sliding window, and their
    positions are not scaled."""

    block = Block
    n_layer_27b = 62

    @classmethod
    def read_hparams(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`. Adds the sliding window and the cap, if the file has them."""
        hp = super().read_hparams(keys, hp)
        cap = keys.get("final_logit_softcapping", float, 0.0)
        hp = replace(hp, final_logit_softcapping=cap, tok_scale=root(hp.n_embd))
        n_swa = keys.get("attention.sliding_window", int, 0)
        if n_swa <= 0:
            return hp
        base = keys.get("rope.freq_base_swa", float, 10000.0)
        rope = replace(hp.rope, freq_base=base, freq_scale=1.0)
        return replace(hp, swa=sliding_window(keys, hp, n_swa, 6, rope))

    def build_qk(self, q: Tensor, k: Tensor, blk: Block, il: int) -> tuple[Tensor, Tensor]:
        """Normalises and rotates queries and keys."""
        q = self.cb(self.build_norm(q, blk.attn_q_norm, il), "Qcur_normed", il)
        k = self.cb(self.build_norm(k, blk.attn_k_norm, il), "Kcur_normed", il)
        return super().build_qk(q, k, blk, il)

    def build_inp(self, inp_l: Tensor, _w: object) -> Tensor:
        """See `Decoder`. The embeddings are already scaled."""
        return self.cb(inp_l, "inp_scaled")

    def name_ffn_post_norm(self, cur: Tensor, il: int) -> Tensor:
        """Names the last norm, with the layer's number."""
        return self.cb(cur, "ffn_post_norm", il)

"""The llama architecture, dense: Llama 1 to 3 and what has their shape (Mistral, TinyLlama, …)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..tensor import Tensor
from .blocks import GraphBuilder
from .hparams import HParams
from .placement import INPUT
from .weights import Linear, Weights


@dataclass(frozen=True, slots=True)
class Block:
    """The tensors blk.N.* of one layer, by their names in the file."""

    attn_norm: Tensor  # [n_embd]
    attn_q: Linear  # [n_embd, n_embd_q]
    attn_k: Linear  # [n_embd, n_embd_gqa]
    attn_v: Linear  # [n_embd, n_embd_gqa]
    attn_output: Linear  # [n_embd_q, n_embd]
    ffn_norm: Tensor  # [n_embd]
    ffn_gate: Linear  # [n_embd, n_ff]
    ffn_up: Linear  # [n_embd, n_ff]
    ffn_down: Linear  # [n_ff, n_embd]
    rope_freqs: Tensor | None  # [n_rot/2], one for all layers


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All tensors, by their names in the file."""

    token_embd: Tensor  # [n_embd, n_vocab]
    blk: tuple[Block, ...]
    output_norm: Tensor  # [n_embd]
    output: Linear  # [n_embd, n_vocab]; token_embd again when the file has none


class LlamaGraph(GraphBuilder):
    """llama.cpp's src/models/llama.cpp: the same ops in the same order."""

    @staticmethod
    def declare(weights: Weights, hp: HParams) -> LlamaWeights:
        """Finds the tensors and checks their ne; raises `ModelError`."""
        embd, last = (hp.n_embd, hp.n_vocab), hp.n_layer
        if weights.has("output.weight"):
            output = weights.linear(last, "output", *embd)
        else:
            output = Linear(weights.tensor(last, "token_embd.weight", *embd))
        return LlamaWeights(
            token_embd=weights.tensor(INPUT, "token_embd.weight", *embd),
            blk=tuple(LlamaGraph._block(weights, hp, il) for il in range(hp.n_layer)),
            output_norm=weights.tensor(last, "output_norm.weight", hp.n_embd),
            output=output,
        )

    @staticmethod
    def _block(weights: Weights, hp: HParams, il: int) -> Block:
        def linear(name: str, n_in: int, n_out: int) -> Linear:
            return weights.linear(il, f"blk.{il}.{name}", n_in, n_out)

        def norm(name: str) -> Tensor:
            return weights.tensor(il, f"blk.{il}.{name}.weight", hp.n_embd)

        return Block(
            attn_norm=norm("attn_norm"),
            attn_q=linear("attn_q", hp.n_embd, hp.n_embd_q),
            attn_k=linear("attn_k", hp.n_embd, hp.n_embd_gqa),
            attn_v=linear("attn_v", hp.n_embd, hp.n_embd_gqa),
            attn_output=linear("attn_output", hp.n_embd_q, hp.n_embd),
            ffn_norm=norm("ffn_norm"),
            ffn_gate=linear("ffn_gate", hp.n_embd, hp.n_ff),
            ffn_up=linear("ffn_up", hp.n_embd, hp.n_ff),
            ffn_down=linear("ffn_down", hp.n_ff, hp.n_embd),
            rope_freqs=weights.tensor(il, "rope_freqs.weight", hp.rope.n_rot // 2, required=False),
        )

    def build(self, w: LlamaWeights) -> None:
        """Fills the graph. Shapes at the end of lines are ggml's ne."""
        ctx, hp = self.ctx, self.hparams
        kq_scale = 1.0 / math.sqrt(hp.n_embd_head)
        inp_l = self.build_inp_embd(w.token_embd)  # [n_embd, n_tokens]
        self.build_inputs()
        for il, blk in enumerate(w.blk):
            inp_sa = inp_l
            cur = self.cb(self.build_norm(inp_l, blk.attn_norm, il), "attn_norm", il)
            q, k, v = self.build_qkv(cur, blk.attn_q, blk.attn_k, blk.attn_v, il)
            q = self.build_rope(q, blk.rope_freqs)  # [n_embd_head, n_head, n_tokens]
            k = self.build_rope(k, blk.rope_freqs)  # [n_embd_head, n_head_kv, n_tokens]
            self.cb(q, "Qcur", il)
            self.cb(k, "Kcur", il)
            self.cb(v, "Vcur", il)
            cur = self.build_attn(q, k, v, blk.attn_output, kq_scale, il)  # [n_embd, n_tokens]
            self.cb(cur, "attn_out", il)
            if il == hp.n_layer - 1:
                cur = ctx.get_rows(cur, self.out_ids)  # [n_embd, n_outputs]
                inp_sa = ctx.get_rows(inp_sa, self.out_ids)
            ffn_inp = self.cb(ctx.add(cur, inp_sa), "ffn_inp", il)
            cur = self.cb(self.build_norm(ffn_inp, blk.ffn_norm, il), "ffn_norm", il)
            cur = self.build_ffn(cur, blk.ffn_up, blk.ffn_gate, blk.ffn_down, il)
            self.cb(cur, "ffn_out", il)
            cur = self.cb(ctx.add(cur, ffn_inp), "ffn_out", il)
            inp_l = self.cb(cur, "l_out", il)
        cur = self.cb(self.build_norm(inp_l, w.output_norm), "result_norm")
        cur.set_output()
        cur = self.cb(self.build_lora_mm(w.output, cur), "result_output")
        cur.set_output()
        self.logits = cur  # [n_vocab, n_outputs]
        self.graph.build_forward_expand(cur)

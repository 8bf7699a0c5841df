"""The llama architecture: Llama 1 to 3 and models of the same shape (Mistral, Mixtral, …)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...tensors.tensor import Tensor
from ..build.decoder import PreNormBlock, PreNormDecoder
from ..build.experts import build_moe_ffn, read_experts
from ..file.hparams import HParams, Keys
from ..file.parts import Linear
from ..file.tensors import Ffn, MoeFfn, linear, rope_freqs


@dataclass(frozen=True)
class Block(PreNormBlock):
    """The tensors blk.N.* of one layer, by their names in the file."""

    attn_output: Linear = linear("n_embd_q", "n_embd", bias="maybe")
    rope_freqs: Tensor | None = rope_freqs()


@dataclass(frozen=True)
class DenseBlock(Ffn, Block):
    """The same with one feed-forward network."""

    ffn_gate: Linear = linear("n_embd", "n_ff", bias="maybe")
    ffn_up: Linear = linear("n_embd", "n_ff", bias="maybe")
    ffn_down: Linear = linear("n_ff", "n_embd", bias="maybe")


@dataclass(frozen=True)
class MoeBlock(MoeFfn, Block):
    """The same with experts."""


class LlamaGraph(PreNormDecoder[DenseBlock | MoeBlock]):
    """llama.cpp's src/models/llama.cpp: the same ops in the same order."""

    @classmethod
    def block_type(cls, hp: HParams) -> type[Any]:
        """Dense, or a mixture of experts."""
        return MoeBlock if hp.experts else DenseBlock

    @classmethod
    def read_experts(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`. Experts, if there are any, are as large as a dense model's network."""
        n_expert = keys.get("expert_count", int, 0)
        if not n_expert:
            return hp
        return replace(hp, experts=read_experts(keys, n_expert), n_ff_exp=hp.n_ff)

    def build_self_attn(self, cur: Tensor, blk: DenseBlock | MoeBlock, il: int) -> Tensor:
        """See `PreNormDecoder`. Also names the result, which most architectures do not."""
        return self.cb(super().build_self_attn(cur, blk, il), "attn_out", il)

    def build_qk(
        self, q: Tensor, k: Tensor, blk: DenseBlock | MoeBlock, il: int
    ) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys. Llama 3 divides the frequencies by factors in the file."""
        return self.build_rope(q, il, blk.rope_freqs), self.build_rope(k, il, blk.rope_freqs)

    def build_feed_forward(self, cur: Tensor, blk: DenseBlock | MoeBlock, il: int) -> Tensor:
        """silu(gate) * up, in one network or in experts."""
        if isinstance(blk, MoeBlock):
            return build_moe_ffn(self, cur, blk, il)
        return self.build_ffn(cur, blk.ffn_up, blk.ffn_gate, blk.ffn_down, il)

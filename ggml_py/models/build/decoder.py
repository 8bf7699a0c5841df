"""The parts that all architectures share: embeddings, a run of layers, a norm, the output.

An architecture is a subclass that declares the tensors of a layer (`block`) and builds the layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from ...tensors.tensor import Tensor
from ..file import tensors
from ..file.hparams import ROPE_NORM, HParams, Keys, check_dense, check_whole_rope
from ..file.parts import Has, Linear
from ..file.tensors import Attention, norm
from ..file.weight_ops import INPUT
from ..file.weights import Weights
from .blocks import GraphBuilder

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class DecoderWeights(Generic[B]):
    """All tensors, by their names in the file."""

    token_embd: Tensor  # [n_embd, n_vocab]
    blk: tuple[B, ...]
    output_norm: Tensor  # [n_embd]
    output: Linear  # [n_embd, n_vocab]; token_embd again if the file has no output


class Decoder(GraphBuilder, ABC, Generic[B]):
    """A graph from tokens to logits."""

    block: ClassVar[type[Any]]  # the tensors of a layer, see `tensors.declare`
    rope_mode: ClassVar[int] = ROPE_NORM
    output_weight: ClassVar[Has] = "maybe"  # without one the token embedding is used
    output_bias: ClassVar[Has] = "no"

    @classmethod
    def read_hparams(cls, keys: Keys, hp: HParams) -> HParams:
        """Adds this architecture's own hyperparameters to the common ones. Raises `ModelError`."""
        hp = cls.read_experts(keys, hp)
        check_whole_rope(hp)
        return replace(hp, norm_rms_eps=keys.get("attention.layer_norm_rms_epsilon", float))

    @classmethod
    def read_experts(cls, keys: Keys, hp: HParams) -> HParams:
        """Adds the hyperparameters of the experts. Raises `ModelError` if the file has experts and
        the architecture does not support them."""
        check_dense(keys, hp)
        return hp

    @classmethod
    def block_type(cls, _hp: HParams) -> type[Any]:
        """The tensors of a layer."""
        return cls.block

    @classmethod
    def declare(cls, weights: Weights, hp: HParams) -> DecoderWeights[B]:
        """Finds the tensors and checks their ne. Raises `ModelError`."""
        embd, last, block = (hp.n_embd, hp.n_vocab), hp.n_layer, cls.block_type(hp)
        has_output = weights.has("output.weight")
        if cls.output_weight == "yes" or (cls.output_weight == "maybe" and has_output):
            output = weights.linear(last, "output", *embd, bias=cls.output_bias)
        else:
            output = Linear(
                weights.tensor(last, "token_embd.weight", *embd),
                weights.bias(last, "output", hp.n_vocab, cls.output_bias),
                weights.tensor(last, "output.scale", 1, required=False),
            )
        return DecoderWeights(
            token_embd=weights.tensor(INPUT, "token_embd.weight", *embd),
            blk=tuple(tensors.declare(block, weights, hp, il) for il in range(hp.n_layer)),
            output_norm=weights.tensor(last, "output_norm.weight", hp.n_embd),
            output=output,
        )

    def build(self, w: DecoderWeights[B]) -> None:
        """Fills the graph. Shapes in comments are ggml's ne."""
        inp_l = self.build_inp_embd(w.token_embd)  # [n_embd, n_tokens]
        self.build_inputs()
        for il, blk in enumerate(w.blk):
            inp_l = self.cb(self.build_layer(inp_l, blk, il), "l_out", il)
        cur = self.cb(self.build_norm(inp_l, w.output_norm), "result_norm")  # [n_embd, n_outputs]
        cur.set_output()
        cur = self.cb(self.build_linear(w.output, cur), "result_output")
        cur.set_output()
        self.logits = cur  # [n_vocab, n_outputs]
        self.graph.build_forward_expand(cur)

    @abstractmethod
    def build_layer(self, inp_l: Tensor, blk: B, il: int) -> Tensor:
        """Layer `il`: from [n_embd, n_tokens] to the same, or to [n_embd, n_outputs] in the last
        layer."""

    def build_out_ids(self, il: int, *curs: Tensor) -> tuple[Tensor, ...]:
        """In the last layer, the rows of `curs` whose logits are wanted. Elsewhere `curs` as is."""
        if il < self.hparams.n_layer - 1:
            return curs
        return tuple(self.ctx.get_rows(cur, self.out_ids) for cur in curs)


@dataclass(frozen=True)
class PreNormBlock(Attention):
    """The tensors of a layer with norms in front of attention and the feed-forward network."""

    attn_norm: Tensor = norm("n_embd")
    ffn_norm: Tensor = norm("n_embd")


P = TypeVar("P", bound=PreNormBlock)


class PreNormDecoder(Decoder[P]):
    """x + attention(norm(x)), then x + network(norm(x)), as in most architectures."""

    def build_layer(self, inp_l: Tensor, blk: P, il: int) -> Tensor:
        """See `Decoder`."""
        cur = self.cb(self.build_norm(inp_l, blk.attn_norm, il), "attn_norm", il)
        cur = self.build_self_attn(cur, blk, il)  # [n_embd, n_tokens]
        cur, inp_sa = self.build_out_ids(il, cur, inp_l)  # [n_embd, n_outputs]
        ffn_inp = self.cb(self.ctx.add(cur, inp_sa), "ffn_inp", il)
        cur = self.cb(self.build_norm(ffn_inp, blk.ffn_norm, il), "ffn_norm", il)
        cur = self.build_feed_forward(cur, blk, il)
        return self.ctx.add(cur, ffn_inp)

    def build_self_attn(self, cur: Tensor, blk: P, il: int) -> Tensor:
        """Attention over the tokens so far: [n_embd, n_tokens]."""
        q, k, v = self.build_qkv(cur, blk.attn_qkv, il)
        q, k = self.build_qk(q, k, blk, il)
        self.cb(q, "Qcur", il)  # [n_embd_head, n_head, n_tokens]
        self.cb(k, "Kcur", il)  # [n_embd_head, n_head_kv, n_tokens]
        self.cb(v, "Vcur", il)
        return self.build_attn(q, k, v, blk.attn_output, self.hparams.kq_scale, il)

    def build_qk(self, q: Tensor, k: Tensor, _blk: P, il: int) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys to their positions."""
        return self.build_rope(q, il), self.build_rope(k, il)

    @abstractmethod
    def build_feed_forward(self, cur: Tensor, blk: P, il: int) -> Tensor:
        """The layer's feed-forward network or experts: [n_embd, n_tokens], in the last layer
        [n_embd, n_outputs]."""

"""State space models: layers that carry a state from token to token, in place of attention."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TypeVar

from ...enums import Type
from ...errors import ModelError
from ...tensors.tensor import Tensor
from ..cache.recurrent import RecurrentCache, RsInput
from ..file.hparams import HParams, Keys, Ssm
from ..file.parts import Linear, Norm
from ..file.tensors import linear, norm, tensor
from ..file.weights import Weights
from .blocks import GraphBuilder
from .decoder import Decoder, DecoderWeights


@dataclass(frozen=True)
class SsmBlock:
    """The tensors blk.N.* that all state space layers have, by their names in the file."""

    attn_norm: Norm = norm("n_embd")
    ssm_in: Linear = linear("n_embd", "ssm.d_in_proj")
    ssm_conv1d: Linear = linear("ssm.d_conv", "ssm.conv_dim", bias="yes", scale=False)
    ssm_a: Tensor = tensor(1, "ssm.dt_rank")  # [d_state, d_inner] in mamba
    ssm_out: Linear = linear("ssm.d_inner", "n_embd")


B = TypeVar("B", bound=SsmBlock)


class SsmDecoder(Decoder[B]):
    """x + ssm(norm(x)), without a feed-forward network."""

    rope_mode = None

    @classmethod
    def read_hparams(cls, keys: Keys, hp: HParams) -> HParams:
        """See `Decoder`. Adds the sizes of the states. Raises `ModelError` if keys are missing or
        contradict each other."""
        d_conv = keys.size("ssm.conv_kernel")
        keys.check(d_conv >= 2, "ssm.conv_kernel", "expected at least 2")
        ssm = Ssm(
            d_conv=d_conv,
            d_inner=keys.size("ssm.inner_size"),
            d_state=keys.size("ssm.state_size"),
            dt_rank=keys.size("ssm.time_step_rank"),
        )
        eps = keys.get("attention.layer_norm_rms_epsilon", float)
        return replace(hp, norm_rms_eps=eps, ssm=cls.read_ssm(keys, hp, ssm))

    @classmethod
    @abstractmethod
    def read_ssm(cls, keys: Keys, hp: HParams, ssm: Ssm) -> Ssm:
        """Adds this architecture's own sizes to the common ones. Raises `ModelError`."""

    @classmethod
    def declare(cls, weights: Weights, hp: HParams) -> DecoderWeights[B]:
        """See `Decoder`. Also raises `ModelError` if a weight of the convolution or the scan is not
        f32, the only type that these ops take."""
        w = super().declare(weights, hp)
        for blk in w.blk:
            for weight in (blk.ssm_conv1d.weight, blk.ssm_a):
                if weight.type != Type.F32:
                    raise ModelError(
                        f"tensor '{weight.name}' is {weight.type.name.lower()}: expected f32, the "
                        "only type that the op which reads it takes"
                    )
        return w

    def build_inputs(self) -> None:
        """Creates the inputs: the cells of the states, and the tokens whose logits are wanted."""
        assert isinstance(self.memory, RecurrentCache)
        self.inp_rs = RsInput(self.ctx, self.graph, self.memory, self.shape)
        self.inputs.append(self.inp_rs)
        self.build_inp_out_ids()

    @property
    def ssm(self) -> Ssm:
        """The sizes of the states."""
        assert self.hparams.ssm
        return self.hparams.ssm

    def build_layer(self, inp_l: Tensor, blk: B, il: int) -> Tensor:
        """See `Decoder`."""
        cur = self.cb(self.build_norm(inp_l, blk.attn_norm, il), "attn_norm", il)
        cur = self.build_ssm(cur, blk, il)
        cur, inp_l = self.build_out_ids(il, cur, inp_l)
        return self.ctx.add(cur, inp_l)

    @abstractmethod
    def build_ssm(self, cur: Tensor, blk: B, il: int) -> Tensor:
        """Feeds cur [n_embd, n_tokens] through the sequences' states and updates these; returns
        [n_embd, n_tokens]."""


def build_conv(
    g: GraphBuilder, inp: RsInput, cur: Tensor, conv1d: Linear, il: int, flat: bool = False
) -> Tensor:
    """Convolves each token with those before it and updates the convolution states. Takes and
    returns [conv_dim, n_seq_tokens, n_seqs].

    `flat` is passed to `RsInput.store`.
    """
    ctx, r = g.ctx, inp.rs.r[il]
    n_tokens, (d_conv, conv_dim, *_) = cur.ne[1], conv1d.weight.ne
    state = (d_conv - 1, conv_dim, inp.n_seqs)
    before = ctx.reshape_3d(inp.build_rs(r), *state)
    cur = ctx.concat(before, ctx.transpose(cur), 0)  # [d_conv - 1 + n_tokens, conv_dim, n_seqs]
    last = ctx.view_3d(cur, *state, cur.nb[1], cur.nb[2], n_tokens * cur.nb[0])
    inp.store(last, r, flat)
    assert conv1d.bias is not None
    return ctx.silu(ctx.add(ctx.ssm_conv(cur, conv1d.weight), conv1d.bias))

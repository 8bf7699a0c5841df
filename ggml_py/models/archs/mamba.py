"""The mamba architecture."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...tensors.tensor import Tensor
from ..build.ssm import SsmBlock, SsmDecoder, build_conv
from ..file.hparams import HParams, Keys, Ssm
from ..file.parts import Linear
from ..file.tensors import linear, tensor
from ..file.weight_ops import SCAN_K


@dataclass(frozen=True)
class Block(SsmBlock):
    """The tensors blk.N.* of one layer, by their names in the file."""

    ssm_x: Linear = linear("ssm.d_inner", "ssm.d_x_proj", scale=False)
    ssm_dt: Linear = linear("ssm.dt_rank", "ssm.d_inner", bias="yes", scale=False)
    ssm_a: Tensor = tensor("ssm.d_state", "ssm.d_inner")
    ssm_d: Tensor = tensor("ssm.d_inner")


class MambaGraph(SsmDecoder[Block]):
    """llama.cpp's src/models/mamba.cpp: each element has a state and decay factors of its own."""

    block = Block

    @classmethod
    def read_ssm(cls, keys: Keys, hp: HParams, ssm: Ssm) -> Ssm:
        """See `SsmDecoder`."""
        expected = f"expected twice the embedding_length, {hp.n_embd}"
        keys.check(ssm.d_inner == 2 * hp.n_embd, "ssm.inner_size", expected)
        dt_b_c_rms = keys.get("ssm.dt_b_c_rms", bool, False)
        return replace(ssm, conv_dim=ssm.d_inner, d_in_proj=2 * ssm.d_inner, dt_b_c_rms=dt_b_c_rms)

    def build_ssm(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """See `SsmDecoder`."""
        ctx, n_tokens = self.ctx, self.shape.n_tokens
        ssm, inp = self.ssm, self.inp_rs
        tokens = (n_tokens // inp.n_seqs, inp.n_seqs)
        cur = self.build_mm(blk.ssm_in, ctx.reshape_3d(cur, cur.ne[0], *tokens))
        size, nb1, nb2, _nb3 = cur.nb
        x = ctx.view_3d(cur, ssm.d_inner, *tokens, nb1, nb2, 0)
        z = ctx.view_3d(cur, ssm.d_inner, *tokens, nb1, nb2, ssm.d_inner * size)
        x = build_conv(self, inp, x, blk.ssm_conv1d, il, flat=True)
        y = ctx.swiglu_split(ctx.cont(z), self._scan(x, blk, il))
        cur = self.build_mm(blk.ssm_out, y)
        return ctx.reshape_2d(cur, cur.ne[0], n_tokens)

    def _scan(self, x: Tensor, blk: Block, il: int) -> Tensor:
        """The scan of x, plus x times ssm_d: [d_inner, n_seq_tokens, n_seqs]."""
        ctx, ssm, inp = self.ctx, self.ssm, self.inp_rs
        d_state, s, tokens = ssm.d_state, inp.rs.s[il], x.ne[1:3]
        dt, b, c = self._dt_b_c(x, blk)
        dt = self.build_linear(blk.ssm_dt, dt)
        heads = ctx.reshape_4d(x, 1, ssm.d_inner, *tokens)

        def scan(states: Tensor, ids: Tensor) -> Tensor:
            states = ctx.reshape_4d(states, d_state, 1, ssm.d_inner, states.ne[1])
            return ctx.ssm_scan(states, heads, dt, blk.ssm_a, b, c, ids, *SCAN_K)

        out = inp.build_rs(s, scan)  # results of all tokens, then the new states
        inp.store(ctx.view_1d(out, s.ne[0] * inp.n_seqs, x.nbytes), s, flat=True)
        y = ctx.view_3d(out, ssm.d_inner, *tokens, x.nb[1], x.nb[2], 0)
        return ctx.add(y, ctx.mul(x, blk.ssm_d))

    def _dt_b_c(self, x: Tensor, blk: Block) -> tuple[Tensor, Tensor, Tensor]:
        """Each token's step [dt_rank], input to the state and output from it (both [d_state])."""
        ctx, ssm, tokens = self.ctx, self.ssm, x.ne[1:3]
        x = self.build_mm(blk.ssm_x, x)
        size, nb1, nb2, _nb3 = x.nb
        dt = ctx.view_3d(x, ssm.dt_rank, *tokens, nb1, nb2, 0)
        b, c = (
            ctx.view_4d(x, ssm.d_state, 1, *tokens, ssm.d_state * size, nb1, nb2, offset * size)
            for offset in (ssm.dt_rank, ssm.dt_rank + ssm.d_state)
        )
        if ssm.dt_b_c_rms:
            return self.normalize(dt), self.normalize(b), self.normalize(c)
        return ctx.cont(dt), b, c

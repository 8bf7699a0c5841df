"""The mamba2 architecture."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...tensors.tensor import Tensor
from ..build.ssm import SsmBlock, SsmDecoder, build_conv
from ..file.hparams import HParams, Keys, Ssm
from ..file.parts import Norm
from ..file.tensors import tensor
from ..file.weight_ops import SCAN_K


@dataclass(frozen=True)
class Block(SsmBlock):
    """The tensors blk.N.* of one layer, by their names in the file."""

    ssm_dt: Tensor = tensor("ssm.dt_rank", suffix=".bias")
    ssm_d: Tensor = tensor(1, "ssm.dt_rank")
    ssm_norm: Tensor = tensor("ssm.d_group", "ssm.n_group", suffix=".weight")


class Mamba2Graph(SsmDecoder[Block]):
    """llama.cpp's src/models/mamba2.cpp: heads whose state decays by one factor per token."""

    block = Block

    @classmethod
    def read_ssm(cls, keys: Keys, _hp: HParams, ssm: Ssm) -> Ssm:
        """See `SsmDecoder`."""
        n_head = ssm.dt_rank
        expected = f"expected a divisor of ssm.inner_size, {ssm.d_inner}"
        keys.check(ssm.d_inner % n_head == 0, "ssm.time_step_rank", expected)
        n_group = keys.size("ssm.group_count")
        expected = f"expected a divisor of ssm.time_step_rank, {n_head}"
        keys.check(n_head % n_group == 0, "ssm.group_count", expected)
        conv_dim = ssm.d_inner + 2 * n_group * ssm.d_state
        return replace(
            ssm, n_group=n_group, conv_dim=conv_dim, d_in_proj=ssm.d_inner + conv_dim + n_head
        )

    def build_ssm(self, cur: Tensor, blk: Block, il: int) -> Tensor:
        """See `SsmDecoder`."""
        ctx, n_tokens = self.ctx, self.shape.n_tokens
        ssm, inp = self.ssm, self.inp_rs
        tokens = (n_tokens // inp.n_seqs, inp.n_seqs)
        cur = ctx.reshape_3d(self.build_mm(blk.ssm_in, cur), ssm.d_in_proj, *tokens)
        size, nb1, nb2, _nb3 = cur.nb
        heads = (ssm.head_dim, ssm.dt_rank, *tokens)
        z = ctx.view_4d(cur, *heads, ssm.head_dim * size, nb1, nb2, 0)
        xbc = ctx.view_3d(cur, ssm.conv_dim, *tokens, nb1, nb2, ssm.d_inner * size)
        dt_offset = (ssm.d_inner + ssm.conv_dim) * size
        dt = ctx.view_3d(cur, ssm.dt_rank, *tokens, nb1, nb2, dt_offset)
        xbc = build_conv(self, inp, xbc, blk.ssm_conv1d, il)
        y = self.cb(self._scan(xbc, dt, blk, il), "mamba2_y_add_d", il)
        y = ctx.swiglu_split(ctx.cont(z), y)
        y = ctx.reshape_4d(y, ssm.d_group, ssm.n_group, *tokens)
        y = self.build_norm(y, Norm(blk.ssm_norm), il)
        y = ctx.reshape_2d(y, ssm.d_inner, n_tokens)
        return self.cb(self.build_mm(blk.ssm_out, y), "mamba_out", il)

    def _scan(self, xbc: Tensor, dt: Tensor, blk: Block, il: int) -> Tensor:
        """The scan of x, plus x times ssm_d: [head_dim, n_head, n_seq_tokens, n_seqs]."""
        ctx, ssm, inp = self.ctx, self.ssm, self.inp_rs
        n_head, d_state, s = ssm.dt_rank, ssm.d_state, inp.rs.s[il]
        tokens, (size, nb1, nb2, _nb3) = xbc.ne[1:3], xbc.nb
        heads, groups = (ssm.head_dim, n_head, *tokens), (d_state, ssm.n_group, *tokens)
        b_offset = ssm.d_inner * size
        c_offset = b_offset + ssm.n_group * d_state * size
        x = ctx.view_4d(xbc, *heads, ssm.head_dim * size, nb1, nb2, 0)
        b = ctx.view_4d(xbc, *groups, d_state * size, nb1, nb2, b_offset)
        c = ctx.view_4d(xbc, *groups, d_state * size, nb1, nb2, c_offset)
        dt = ctx.add(ctx.cont(dt), blk.ssm_dt)

        def scan(states: Tensor, ids: Tensor) -> Tensor:
            states = ctx.reshape_4d(states, d_state, ssm.head_dim, n_head, states.ne[1])
            return ctx.ssm_scan(states, x, dt, blk.ssm_a, b, c, ids, *SCAN_K)

        out = inp.build_rs(s, scan)  # results of all tokens, then the new states
        inp.store(ctx.view_2d(out, s.ne[0], inp.n_seqs, s.nb[1], math.prod(heads) * size), s)
        nb1, nb2, nb3 = (math.prod(heads[:n]) * size for n in (1, 2, 3))
        return ctx.add(ctx.view_4d(out, *heads, nb1, nb2, nb3, 0), ctx.mul(x, blk.ssm_d))

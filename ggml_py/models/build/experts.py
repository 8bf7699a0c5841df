"""A mixture of experts: each token goes through the networks that its gate scores highest."""

from __future__ import annotations

import math
from enum import Enum

from ...boundary.ffi import lib
from ...tensors.tensor import Tensor
from ..file.hparams import Experts as Counts
from ..file.hparams import Keys, UnsupportedError
from ..file.parts import Linear
from ..file.tensors import MoeFfn
from .blocks import GraphBuilder

_SMALLEST_SUM = 6.103515625e-5  # the smallest normal f16; the weights are divided by their sum


class Gating(Enum):
    """Which scores the softmax of the gate covers, and the experts' activation."""

    ALL = "softmax over all experts, the chosen weights then normalised; silu(gate) * up"
    CHOSEN = "softmax over the chosen experts; the activation of gpt-oss"


_OAI_ALPHA, _OAI_LIMIT = 1.702, 7.0  # of gpt-oss's activation


def read_experts(keys: Keys, n_expert: int) -> Counts:
    """The number of experts, and how many of them a token uses. Raises `ModelError`."""
    n_used = keys.size("expert_used_count")
    keys.check(n_used <= n_expert, "expert_used_count", f"expected at most {n_expert} experts")
    n_groups = keys.get("expert_group_count", int, 0)
    if n_groups > 1:
        raise UnsupportedError(f"{n_groups} groups of experts: our own graphs have one")
    return Counts(n_expert, n_used)


def build_moe_ffn(
    g: GraphBuilder, cur: Tensor, w: MoeFfn, il: int, gating: Gating = Gating.ALL
) -> Tensor:
    """The weighted sum of the chosen experts' outputs: [n_embd, n_tokens]."""
    ctx, (n_embd, n_tokens, *_) = g.ctx, cur.ne
    assert g.hparams.experts
    n_expert, n_used = g.hparams.experts.n_expert, g.hparams.experts.n_expert_used
    logits = g.cb(g.build_mm(w.ffn_gate_inp, cur), "ffn_moe_logits", il)  # [n_expert, n_tokens]
    if w.ffn_gate_inp.bias is not None:
        logits = ctx.add(logits, w.ffn_gate_inp.bias)
    probs = g.cb(ctx.soft_max(logits) if gating == Gating.ALL else logits, "ffn_moe_probs", il)
    top_k = ctx.argsort_top_k if hasattr(lib, "ggml_argsort_top_k") else ctx.top_k  # 0.9.4
    chosen = top_k(probs, n_used)  # [n_used, n_tokens]
    g.cb(chosen.src[0], "ffn_moe_argsort", il)
    g.cb(chosen, "ffn_moe_topk", il)
    weights = ctx.get_rows(ctx.reshape_3d(probs, 1, n_expert, n_tokens), chosen)
    weights = g.cb(weights, "ffn_moe_weights", il)  # [1, n_used, n_tokens]
    weights = ctx.reshape_2d(weights, n_used, n_tokens)
    weights = _normed(g, weights, il) if gating == Gating.ALL else ctx.soft_max(weights)
    weights = ctx.reshape_3d(weights, 1, n_used, n_tokens)
    if gating == Gating.CHOSEN:
        g.cb(weights, "ffn_moe_weights_softmax", il)
    g.graph.build_forward_expand(weights)  # early: backends can fuse all of this
    cur = ctx.reshape_3d(cur, n_embd, 1, n_tokens)
    up = _linear(g, w.ffn_up_exps, cur, chosen, "ffn_moe_up", il)  # [n_ff_exp, n_used, n_tokens]
    gate = _linear(g, w.ffn_gate_exps, cur, chosen, "ffn_moe_gate", il)
    if gating == Gating.ALL:
        cur = g.cb(ctx.swiglu_split(gate, up), "ffn_moe_swiglu", il)
    else:
        cur = ctx.swiglu_oai(gate, up, _OAI_ALPHA, _OAI_LIMIT)
        g.cb(cur, "ffn_moe_swiglu_oai", il)
    cur = _linear(g, w.ffn_down_exps, cur, chosen, "ffn_moe_down", il)  # [n_embd, n_used, n_tokens]
    return _sum(g, g.cb(ctx.mul(cur, weights), "ffn_moe_weighted", il), il)


def _normed(g: GraphBuilder, weights: Tensor, il: int) -> Tensor:
    """The weights [n_used, n_tokens], scaled so that each token's sum to one."""
    total = g.cb(g.ctx.sum_rows(weights), "ffn_moe_weights_sum", il)
    total = g.ctx.clamp(total, _SMALLEST_SUM, math.inf)
    total = g.cb(total, "ffn_moe_weights_sum_clamped", il)
    return g.cb(g.ctx.div(weights, total), "ffn_moe_weights_norm", il)


def _linear(g: GraphBuilder, w: Linear, cur: Tensor, chosen: Tensor, name: str, il: int) -> Tensor:
    """Each token times the matrices of its experts, with the experts' scales and biases."""
    ctx = g.ctx
    out = ctx.mul_mat_id(w.weight, cur, chosen)
    if w.scale is None:
        g.cb(out, name, il)
    else:
        n_expert = w.scale.ne[0]
        scales = ctx.reshape_3d(w.scale, 1, n_expert, 1)
        scales = ctx.repeat_4d(scales, 1, n_expert, cur.ne[2], 1)
        out = g.cb(ctx.mul(out, ctx.get_rows(scales, chosen)), f"{name}_scaled", il)
    return out if w.bias is None else g.cb(ctx.add_id(out, w.bias, chosen), f"{name}_biased", il)


def _sum(g: GraphBuilder, outs: Tensor, il: int) -> Tensor:
    """The sum over experts of outs [n_embd, n_used, n_tokens]: [n_embd, n_tokens]."""
    ctx, graph = g.ctx, g.graph
    n_embd, n_used, n_tokens, _one = outs.ne
    graph.build_forward_expand(outs)
    parts = []
    for i in range(n_used):
        parts.append(ctx.view_2d(outs, n_embd, n_tokens, outs.nb[2], i * outs.nb[1]))
        graph.build_forward_expand(parts[-1])
    total, *others = parts
    for part in others:
        total = ctx.add(total, part)
        graph.build_forward_expand(total)
    return g.cb(total if others else ctx.cont(total), "ffn_moe_out", il)

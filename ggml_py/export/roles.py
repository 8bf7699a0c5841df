"""The part of a model that each node belongs to: attention, feed-forward, experts, ..."""

from __future__ import annotations

import re

from ..trace.planned import Planned, PlanTensor

ROLES = ("attention", "feed-forward", "experts", "recurrent", "norms", "cache", "other")
ATTENTION, FEED_FORWARD, EXPERTS, RECURRENT, NORMS, CACHE, OTHER = range(len(ROLES))

_NORM = ("RMS_NORM", "NORM", "GROUP_NORM", "L2_NORM")
_WRITES = ("SET_ROWS", "CPY", "SET")
_OPS = {
    "MUL_MAT_ID": EXPERTS, "ADD_ID": EXPERTS, "FLASH_ATTN_EXT": ATTENTION, "SOFT_MAX": ATTENTION,
    "ROPE": ATTENTION, "SSM_CONV": RECURRENT, "SSM_SCAN": RECURRENT, "RWKV_WKV6": RECURRENT,
    "RWKV_WKV7": RECURRENT, "GATED_LINEAR_ATTN": RECURRENT, "GATED_DELTA_NET": RECURRENT,
}  # fmt: skip
# Of nodes and weights, in llama.cpp's words ("ffn_moe_up-3", "blk.3.attn_q.weight").
_NAMES = (
    (EXPERTS, re.compile(r"ffn_moe|_exps\b|ffn_gate_inp|exp_probs")),
    (NORMS, re.compile(r"norm")),
    (RECURRENT, re.compile(r"\bssm_|\btime_mix|\bchannel_mix|\bconv_|\bshortconv|\bz-")),
    (FEED_FORWARD, re.compile(r"\bffn_|\bl_out")),
    (ATTENTION, re.compile(r"\battn_|\bkqv?|\b[QKV]cur|\bfattn|\b[qkv]_|\bwo\b|\bself_")),
)  # fmt: skip


def roles(plan: Planned) -> list[int]:
    """For each node an index of `ROLES`, from its op and the names of the node and its weights."""
    return [_role(node) for node in plan.nodes]


def _role(node: PlanTensor) -> int:
    op = node.record.op
    if op in _WRITES and any(src.name.startswith("cache_") for src in (node, *node.srcs)):
        return CACHE
    if op in _NORM:
        return NORMS
    if op in _OPS:
        return _OPS[op]
    weights = [src.name for src in node.srcs if src.is_weight]
    for name in (*weights, node.name):
        for role, words in _NAMES:
            if words.search(name):
                return role
    return OTHER

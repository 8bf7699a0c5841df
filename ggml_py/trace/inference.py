"""Causes that follow from a stock debug print, whose column of causes is blank.

Only causes that leave no other choice are given. They rest on llama.cpp's rules for the tensors of
a model's file: each is in a buffer of weights that can run its op, and nothing pins the ops that
read them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import causes
from .names import NODE_LAYER_NUMBER
from .record import COPY, LEAF, NODE, UNPRINTED_OP

if TYPE_CHECKING:
    from .plan_tensor import PlanTensor
    from .planned import Planned

_WEIGHT = re.compile(r"(?:blk\.\d+\.[\w.]+|token_embd|output|output_norm)\.(?:weight|bias)")
# Nodes by which a graph of llama.cpp is recognised.
_LLAMA = frozenset({
    "attn_norm-", "norm-", "ffn_norm-", "ffn_inp-", "ffn_out-", "l_out-", "result_norm",
    "result_output",
})  # fmt: skip
# Ops that follow the first of their sources that is a weight, in all releases.
_FOLLOWING = ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS", "MUL", "ADD")
_PINNED = "norm-"  # llama.cpp pins these nodes


def infer(plan: Planned, t: PlanTensor) -> tuple[str, PlanTensor | None] | None:
    """The code of a tensor's cause and its witness, if they follow from a print without causes."""
    if plan.capture.source != "debug log" or plan.has_causes:
        return None
    if t.record.kind == COPY:
        return causes.SPLIT_COPY.code, plan.tensor(t.placement.copy_of)
    if not plan.derived(_is_llama):
        return None
    if _is_weight(t) and t.backend is not None:
        return causes.ALLOCATED.code, None
    if t.record.kind != NODE or t.op not in _FOLLOWING or t.name.startswith(_PINNED):
        return None
    return _follows(plan, t)


def _follows(plan: Planned, t: PlanTensor) -> tuple[str, PlanTensor] | None:
    """The weight that a node follows, and how."""
    for i, (id, read) in enumerate(zip(t.record.src, t.placement.planned_src, strict=False)):
        weight = plan.tensor(id)
        if not _is_weight(weight):
            if weight.record.kind == NODE:
                continue
            return None  # it may be a weight, too
        if read == id:
            return (f"{causes.WEIGHT.code}{i}", weight) if weight.backend == t.backend else None
        last = len(plan.backends) - 1
        is_host = weight.placement.backend in (-1, last)
        if t.op != "GET_ROWS" and is_host and t.placement.backend != last:
            return causes.OFFLOADED.code, weight
        return None
    return None


def _is_weight(t: PlanTensor) -> bool:
    """Whether its whole name is printed, and is that of a weight in a model's file."""
    is_unprinted = t.record.kind == LEAF or t.op == UNPRINTED_OP
    return is_unprinted and _WEIGHT.fullmatch(t.name) is not None


def _is_llama(plan: Planned) -> bool:
    names = (NODE_LAYER_NUMBER.sub("", node.name) for node in plan.nodes)
    return not _LLAMA.isdisjoint(names)

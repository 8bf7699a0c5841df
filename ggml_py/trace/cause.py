"""Upstream's cause codes, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .names import place, quoted
from .record import COPY, NODE

if TYPE_CHECKING:
    from .planned import Planned, PlanTensor

CODE = re.compile(r"usr|1\.wgt\d+|(?!1\.wgt)\d\.\w+")
# Stages of split_graph by their code (native/sched_trace.cpp): pass, its name, the row of
# `PlanTensor.passes` that shows the assignment after it.
STAGES: dict[int, tuple[int, str, int]] = {
    10: (1, "1", 0),
    21: (2, "2 gpu down", 1),
    22: (2, "2 gpu up", 2),
    23: (2, "2 rest down", 3),
    24: (2, "2 rest up", 4),
    30: (3, "3", 5),
    40: (4, "4", 6),
}
_GPU_DOWN, _GPU_UP, _REST_DOWN, _REST_UP, _PASS_4 = 21, 22, 23, 24, 40


@dataclass(frozen=True)
class Cause:
    """Why a tensor is on its backend.

    `code` is upstream's ("1.wgt0"; "" where upstream sets none, or where a log or a snapshot does
    not tell: then `is_known` is false), `pass_` the pass that decided (0: before the first),
    `stage` names the sweep too, `text` says it in one sentence, `witness` is the tensor that it
    follows from.
    """

    code: str
    pass_: int
    stage: str
    text: str
    witness: PlanTensor | None = None
    is_known: bool = True

    def __str__(self) -> str:
        return f"{self.code or ('-' if self.is_known else '?')}: {self.text}"


def cause_of(plan: Planned, t: PlanTensor) -> Cause:
    """The cause of `t`'s assignment, with the tensor that it follows from."""
    code, stage = t.placement.cause, t.placement.stage
    stage_name = STAGES.get(stage, (0, "", -1))[1]
    pass_ = pass_of(code, stage)
    witness = _witness(plan, t, code, stage)
    text = sentence(t, t.backend, code, stage, witness)
    return Cause(code, pass_, stage_name, text, witness, not unknown_cause(t))


def unknown_cause(t: PlanTensor) -> str:
    """Why its cause is not known, where a log or a snapshot does not tell it; else ""."""
    source, told = t.plan.capture.source, t.placement
    if told.cause or source == "scheduler":
        return ""
    if source == "snapshot":
        is_there = t.record.kind == NODE and t.plan.has_causes
        return "" if is_there else "the snapshot does not tell its cause"
    if not t.plan.has_causes:
        return "the log does not print causes: ggml as it is released leaves them out"
    # A copy always has one; what no line prints has no place either.
    is_printed = t.record.kind != COPY and told.backend >= 0
    return "" if is_printed else "the log does not print its cause"


def pass_of(code: str, stage: int) -> int:
    """The pass that set a code; most codes begin with it."""
    if code == "2.sup" and stage == _PASS_4:
        return 4
    if code in ("4.cpy", "6.cpy"):
        return 5 + (code == "6.cpy")
    return int(code[0]) if code[:1].isdigit() else STAGES.get(stage, (0, "", -1))[0]


def _witness(plan: Planned, t: PlanTensor, code: str, stage: int) -> PlanTensor | None:
    if code.startswith("1.wgt"):
        src = dict(enumerate(t.record.src)).get(int(code[5:]), -1)
        return plan.tensor(src) if src >= 0 else None
    if code == "1.off":
        return next((s for s in t.srcs if s.is_weight), None)
    if code in ("1.vsrc", "4.vsrc"):
        return t.view_src
    if code in ("4.cpy", "6.cpy"):
        return plan.tensor(t.placement.copy_of) if t.placement.copy_of >= 0 else None
    if code == "4.cur":
        return next((n for n in plan.nodes if t.id in n.record.src), None)
    swept = stage in STAGES and stage != _PASS_4 and t.placement.passes
    if code == "2.sup" and swept and t.index is not None:
        return _neighbour(plan, t.index, stage)
    return None


def _neighbour(plan: Planned, index: int, stage: int) -> PlanTensor | None:
    """The node a sweep of pass 2 came from: the nearest one that had a backend by then."""
    row = STAGES[stage][2]
    down = stage in (_GPU_DOWN, _REST_DOWN)
    for i in range(index - 1, -1, -1) if down else range(index + 1, len(plan.nodes)):
        node = plan.nodes[i]
        if not node.is_view_op and node.placement.passes[row] != -1:
            return node
    return None


def is_for_pipeline(t: PlanTensor, code: str) -> bool:
    """Whether it is one of the copies of a graph input, itself the current one, of which there is
    one for each graph in flight.

    Upstream's pass 6 makes them since 0.25. Before that pass 5 does, and gives them the code of
    copies for a split; those are never on the backend of what they copy.
    """
    if code != "4.cpy" or t.record.kind != COPY:
        return code in ("4.cpy", "6.cpy")
    of = t.placement.copy_of
    return of >= 0 and t.plan.outcome.placements[of].backend == t.placement.backend


def sentence(
    t: PlanTensor, backend: str | None, code: str, stage: int, witness: PlanTensor | None
) -> str:
    """Why `t` is, or was at that stage, on `backend`."""
    backend = backend or place(t)
    who = quoted(witness) if witness else "another tensor"
    if code.startswith("1.wgt") or code == "1.off":
        weight = "(not recorded)"
        if witness and witness.id in t.record.src:
            weight = f"src[{t.record.src.index(witness.id)}] {who}"
        where = f" in {witness.buft.name}" if witness and witness.buft else ""
        if code == "1.off":
            return (
                f"{backend} offloads it: its weight {weight} is in host memory{where}, and "
                f"{backend}, of higher priority, supports the op and wants it at this batch size"
            )
        where = f"is{where} and which " if where else ""
        return f"it follows its weight {weight}, which {where}{backend} reads"
    if is_for_pipeline(t, code):
        if t.record.kind != COPY:
            return "a graph input that is the current one of its copies for pipeline parallelism"
        return f"a copy of the graph input {who} for pipeline parallelism"
    if code == "2.sup" and stage == _PASS_4:
        return f"nothing else placed it: {backend} is the first backend that supports the op"
    if code == "2.sup" and stage not in STAGES:
        return f"{backend} supports it and spread to it from a neighbour, or nothing else placed it"
    if code == "2.sup":
        direction = "down" if stage in (_GPU_DOWN, _REST_DOWN) else "up"
        kind = "higher-priority backends" if stage in (_GPU_DOWN, _GPU_UP) else "any backend"
        return (
            f"{backend} supports it and spread {direction} to it from its neighbour {who} "
            f"(sweep of {kind})"
        )
    if code not in _TEXTS:
        return unknown_cause(t) or "upstream set no cause"
    return _TEXTS[code].format(
        backend=backend,
        who=who,
        buft=t.buft.name if t.buft else "its buffer",
        last=t.plan.backends[-1].name,
    )


_TEXTS = {
    "usr": "the caller pinned it to {backend} (set_tensor_backend)",
    "1.dst": "it is allocated already, in {buft}, which {backend} reads",
    "1.vsrc": "it is a view of {who}, which is allocated where {backend} reads it",
    "1.inp": "it is a graph input; inputs go to the last backend, {last}",
    "3.best": "no neighbour's backend supports it: {backend} does, and reads most of its sources",
    "3.upg": (
        "moved up to {backend}, of higher priority: it shares the buffer type of the backend "
        "chosen before, supports the op and reads all of its sources"
    ),
    "4.vsrc": "a view is where the tensor is that it views, {who}",
    "4.cur": "nothing placed it before its first consumer, {who}: it is where that runs",
    "4.cpy": "a copy of {who} made for a split on {backend}, which cannot read the original",
}

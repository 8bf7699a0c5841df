"""Upstream's cause codes, in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import causes
from .causes import GPU_DOWN, GPU_UP, REST_DOWN, STAGES
from .inference import infer
from .names import place, quoted
from .record import COPY, NODE

if TYPE_CHECKING:
    from .plan_tensor import PlanTensor
    from .planned import Planned


@dataclass(frozen=True)
class Cause:
    """Why a tensor is on its backend.

    `code` is upstream's, such as "1.wgt0". It is "" if upstream sets none, and also if a log or a
    snapshot does not contain it; `is_known` is false only in the second case. A cause that such a
    log does not contain but that follows from it has a code, and `is_inferred`. `pass_` is the pass
    that decided (0: before the first), `stage` also names the sweep, `text` is the cause in one
    sentence, and `witness` is the tensor that the cause follows from. `later` is the code of a
    later pass that says what became of it: upstream prints plans before pass 6.
    """

    code: str
    pass_: int
    stage: str
    text: str
    witness: PlanTensor | None = None
    is_known: bool = True
    later: str = ""
    is_inferred: bool = False

    def __str__(self) -> str:
        return f"{self.code or ('-' if self.is_known else '?')}: {self.text}"


def cause_of(plan: Planned, t: PlanTensor) -> Cause:
    """The cause of `t`'s assignment, with its witness."""
    code, stage = t.placement.cause, t.placement.stage
    if unknown_cause(t) and (found := infer(plan, t)) is not None:
        return _inferred(t, *found)
    row = causes.find(code, stage)
    witness = WITNESSES[row.witness](plan, t) if row and row.witness else None
    text = sentence(t, t.backend, code, stage, witness)
    title = STAGES[stage].title if stage in STAGES else ""
    known, later = not unknown_cause(t), ""
    if code != causes.INPUT_COPY.code and t.id in t.plan.derived(_kept_inputs):
        later = causes.INPUT_COPY.code
        text += f"; {later} later: {causes.INPUT_COPY.unsure}"
    return Cause(code, pass_of(code, stage), title, text, witness, known, later)


def _inferred(t: PlanTensor, code: str, witness: PlanTensor | None) -> Cause:
    """The cause of `t`, inferred: the log does not contain it, but its lines imply it."""
    stage = causes.stage_of_print(code)
    text = f"inferred from the print: {sentence(t, t.backend, code, stage, witness)}"
    title = STAGES[stage].title if stage in STAGES else ""
    return Cause(code, pass_of(code, stage), title, text, witness, False, is_inferred=True)


def _kept_inputs(plan: Planned) -> frozenset[int]:
    """Ids of graph inputs that pass 6 made the current one of their copies."""
    placed = plan.outcome.placements
    return frozenset(
        p.copy_of
        for p in placed[len(plan.capture.tensors) :]
        if p.cause == causes.INPUT_COPY.code and placed[p.copy_of].backend == p.backend
    )


def unknown_cause(t: PlanTensor) -> str:
    """Why the cause of `t` is not known: a log or a snapshot leaves it out. "" if it is known."""
    source, told = t.plan.capture.source, t.placement
    if told.cause or source == "scheduler":
        return ""
    if source == "snapshot":
        is_there = t.record.kind == NODE and t.plan.has_causes
        return "" if is_there else "the snapshot does not contain its cause"
    if not t.plan.has_causes:
        return "the log does not contain causes: released builds of ggml do not print them"
    # A copy always has a cause. A tensor that no line prints has no backend either.
    is_printed = t.record.kind != COPY and told.backend >= 0
    return "" if is_printed else "the log does not contain its cause"


def pass_of(code: str, stage: int) -> int:
    """The pass that set a code."""
    row = causes.find(code, stage)
    if row is not None:
        return row.pass_
    if code[:1].isdigit():  # of a release with more codes
        return int(code[0])
    return STAGES[stage].pass_ if stage in STAGES else 0


def _source(plan: Planned, t: PlanTensor) -> PlanTensor | None:
    number = causes.source_of(causes.WEIGHT, t.placement.cause)
    src = dict(enumerate(t.record.src)).get(number, -1)
    return plan.tensor(src) if src >= 0 else None


def _weight(_plan: Planned, t: PlanTensor) -> PlanTensor | None:
    return next((s for s in t.srcs if s.is_weight), None)


def _view(_plan: Planned, t: PlanTensor) -> PlanTensor | None:
    return t.view_src


def _copied(plan: Planned, t: PlanTensor) -> PlanTensor | None:
    return plan.tensor(t.placement.copy_of) if t.placement.copy_of >= 0 else None


def _reader(plan: Planned, t: PlanTensor) -> PlanTensor | None:
    return next((n for n in plan.nodes if t.id in n.record.src), None)


def _swept_from(plan: Planned, t: PlanTensor) -> PlanTensor | None:
    if t.placement.stage not in STAGES or not t.placement.passes or t.index is None:
        return None
    return _neighbour(plan, t.index, t.placement.stage)


# How to find the witness of a tensor's cause, by `causes.Code.witness`.
WITNESSES: dict[str, Callable[[Planned, PlanTensor], PlanTensor | None]] = {
    "source": _source, "weight": _weight, "view": _view, "copied": _copied, "reader": _reader,
    "neighbour": _swept_from,
}  # fmt: skip


def _neighbour(plan: Planned, index: int, stage: int) -> PlanTensor | None:
    """The node that a sweep of pass 2 came from: the nearest one that already had a backend."""
    row = STAGES[stage].row
    down = stage in (GPU_DOWN.number, REST_DOWN.number)
    for i in range(index - 1, -1, -1) if down else range(index + 1, len(plan.nodes)):
        node = plan.nodes[i]
        if not node.is_view_op and node.placement.passes[row] != -1:
            return node
    return None


def is_for_pipeline(t: PlanTensor, code: str) -> bool:
    """Whether `t` is a graph input with a copy for each graph in flight, or one of those copies
    (the input itself is the current one).

    Since 0.25 upstream makes these copies in pass 6. Before that, pass 5 makes them and gives them
    the code of copies for a split. Copies for a split are never on the backend of their original.
    """
    row = causes.find(code)
    if row is not causes.SPLIT_COPY or t.record.kind != COPY:
        return row in (causes.SPLIT_COPY, causes.INPUT_COPY)
    of = t.placement.copy_of
    return of >= 0 and t.plan.outcome.placements[of].backend == t.placement.backend


def pinned_by(t: PlanTensor) -> tuple[str, str]:
    """Who pinned it, and ": why" if they gave a reason."""
    found = next((pin for pin in t.plan.capture.pins if pin.tensor == t.id), None)
    return ("the caller", "") if found is None else (found.by, f": {found.why}")


def sentence(
    t: PlanTensor, backend: str | None, code: str, stage: int, witness: PlanTensor | None
) -> str:
    """Why `t` is on `backend`, or was after that stage."""
    row = causes.find(code, stage)
    if row is None:
        return unknown_cause(t) or "upstream set no cause"
    text = row.text
    if is_for_pipeline(t, code):
        text = causes.INPUT_COPY.text if t.record.kind == COPY else causes.INPUT_COPY.unsure
    elif row is causes.SPREAD and stage not in STAGES:
        text = row.unsure
    who, weight = quoted(witness) if witness else "another tensor", "(not recorded)"
    if witness and causes.follows_weight(code) and witness.id in t.record.src:
        weight = f"src[{t.record.src.index(witness.id)}] {who}"
    buft = witness.buft.name if witness and witness.buft else ""
    by, why = pinned_by(t) if row is causes.PINNED else ("", "")
    return text.format(
        by=by,
        why=why,
        backend=backend or place(t),
        who=who,
        weight=weight,
        within=f" in {buft} memory" if buft else "",
        memory=f" ({buft})" if buft else "",
        direction="down" if stage in (GPU_DOWN.number, REST_DOWN.number) else "up",
        kind="higher-priority backends"
        if stage in (GPU_DOWN.number, GPU_UP.number)
        else "any backend",
        buft=f"{t.buft.name} memory" if t.buft else "its buffer",
        last=t.plan.backends[-1].name,
    )

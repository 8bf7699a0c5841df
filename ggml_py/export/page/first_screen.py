"""The page's first screen: verdict, provenance, time, memory of each device, and the remedy."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...advice.checkup import Phase, device_memory, verdict_of
from ...advice.finding import Finding
from ...memory.shortfalls import Shortfall
from ...trace.answers.remedy import Remedy
from ...trace.planned import Planned
from ...trace.units import format_factor


class ModelAnswers(NamedTuple):
    """The answers that need the model: findings with judged options, the change to recommend, the
    memory that devices lack, and changes that save memory (llama.cpp's options, and the gain). The
    page opens with the `view`."""

    findings: Sequence[Finding] | None = None  # None: as of the plan alone
    best: Remedy | None = None
    lacks: Sequence[Shortfall] = ()
    savings: Sequence[tuple[str, str]] = ()
    view: str = "lanes"


def first_screen(phase: Phase, tried: ModelAnswers | None) -> dict[str, Any]:
    """The data of the cards at the top."""
    plan, cost, best = phase.plan, phase.cost, tried.best if tried else None
    return {
        "verdict": verdict_of(
            plan, phase.findings, cost, phase.measured, best,
            tried is not None and tried.findings is not None, tried.lacks if tried else (),
        ),
        "what": phase.what + phase.depth,
        "rate": phase.rate,
        "knownBy": phase.known_by,
        "bound": "" if cost is None else cost.bound,
        "chips": [*_chips(plan), *_times_from(phase)],
        "memory": [device._asdict() for device in device_memory(plan)],
        "savings": list(tried.savings) if tried else [],
        "remedy": None if best is None else {**_copied(best), "text": str(best)},
    }  # fmt: skip


def _copied(remedy: Remedy) -> dict[str, str]:
    """The flags, and what to copy: all flags of the plan, if some of the given ones go."""
    flags = remedy.plan.provenance.flags
    all_of_them = shlex.join(flags) if flags and "without " in remedy.flags else remedy.flags
    return {"flags": remedy.flags, "copy": all_of_them}


def _times_from(phase: Phase) -> list[tuple[str, str]]:
    if phase.cost is None:
        return []
    of = phase.cost.machine.described
    return [("times from", f"calibration of {of.date}" if of.date else phase.known_by)]


def _chips(plan: Planned) -> list[tuple[str, str]]:
    s = plan.settings
    if plan.capture.source != "scheduler":
        return [("read from", plan.capture.source), *plan.provenance.rows()]
    told = plan.provenance.rows()
    told += [("ggml", s.upstream), ("build", s.build), ("planned by", plan.planner)]
    told.append(("op offload", "on" if s.op_offload else "off"))
    if s.n_copies > 1:
        told.append(("copies for pipeline parallelism", str(s.n_copies)))
    return told


def findings_data(phase: Phase) -> list[dict[str, Any]]:
    """The findings, the costliest first, with the tensors' numbers and the options to copy."""
    whole = phase.seconds

    def data(found: Finding) -> dict[str, Any]:
        flags, remedy = "", found.remedy
        if not remedy and not found.tried and found.options:
            flags = found.options[0].flags
        share = found.seconds / whole if found.seconds and whole else None
        return {
            **found.to_dict(), "tensors": [t.id for t in found.tensors], "share": share,
            "headline": found.headline or found.title,
            **(_copied(remedy) if remedy else {"flags": flags, "copy": flags}),
            "instead": remedy.instead if remedy else "",
            "fits": remedy is not None and remedy.checked,
            "gain": f"{format_factor(remedy.gain)} times as quick"
            if remedy and remedy.seconds else "",
        }  # fmt: skip

    order = sorted(phase.findings, key=lambda f: -(f.seconds or 0.0))
    return [data(found) for found in order]

"""The page's data for several plans: the list of a record's page, with times and memory."""

from __future__ import annotations

from collections.abc import Sequence

from ...advice.checkup import Phase, device_memory
from ...advice.two_plans import phase_with, verdict_of_two
from ...cost.machine import Machine
from ...cost.time_difference import known_cost
from ...trace.answers.diff import diff
from ...trace.names import counted
from ...trace.planned import Planned
from .of_record import Beside, PagePlan, PageProcess, PageRecord


def of_plans(plans: Sequence[tuple[str, Planned]], machine: Machine | None = None) -> PageRecord:
    """Named plans, each beside the first. Raises ValueError with `machine` for plans without
    shapes."""
    phases = [phase_with(plan, known_cost(plan, machine)) for _name, plan in plans]
    listed = (_listed(i, name, phases[0], phases[i]) for i, (name, _plan) in enumerate(plans))
    return PageRecord(counted(len(plans), "plan"), (PageProcess("", (), tuple(listed)),))


def _listed(i: int, name: str, first: Phase, phase: Phase) -> PagePlan:
    plan, seconds = phase.plan, phase.seconds
    verdict = verdict_of_two(first, phase, diff(first.plan, plan), "it") if i else ""
    ns = -1 if seconds is None else round(1e9 * seconds)
    memory = tuple((one.device, one.needed, one.free) for one in device_memory(plan))
    return PagePlan(
        i, name, plan.provenance.n_tokens, len(plan.nodes), plan.n_splits, plan.n_inputs,
        sum(one.nbytes for one in plan.copied), 0, False, -1, verdict, lambda: plan,
        Beside(ns, phase.known_by, memory),
    )  # fmt: skip

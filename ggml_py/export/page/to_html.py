"""A plan, or two side by side, as a page: one file that opens in a browser and loads nothing else.

The page consists of page.html, page.css and *.js in this folder, with the plan's data (data.py)
inserted. The same plan gives the same bytes.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from ...cost.cost import Cost, cost_of
from ...cost.machine import Machine
from ...cost.time_difference import n_unknown
from ...trace.answers.excerpt import mark
from ...trace.answers.shares import headline
from ...trace.names import counted
from ...trace.planned import Planned
from ...trace.record import collection_paused
from ...trace.recorded import Recorded
from ..run_times import times
from . import columns as page_data
from . import side_by_side as page_diff
from .first_screen import Tried
from .whole import whole

SCRIPTS = (
    "plan", "axis", "lanes", "minimap", "glance", "details", "table", "main", "views", "layers",
    "memory", "address", "events",
)  # fmt: skip


_MOST_BESIDE = 5000  # nodes of a second plan that the page has for its verdict


def render(
    source: Planned | Recorded,
    other: Planned | None = None,
    machine: Machine | None = None,
    tried: Tried | None = None,
) -> str:
    """The page of a plan, or of a run's plan with its times (`run_times`). With `other` it compares
    the two plans. Plans have their predicted times on `machine`; without one those by data sheets,
    if they are known for the whole plan. `tried` are answers that need the plan's model. Raises
    ValueError for a run without a known plan, and with `machine` for a plan without shapes."""
    measured = times(source) if isinstance(source, Recorded) else None
    plan = source if isinstance(source, Planned) else measured.plan if measured else None
    assert plan is not None
    with collection_paused():
        cost = None if measured else _cost(plan, machine)
        data: dict[str, Any] = {
            "plans": [page_data.data(plan, measured, cost, tried)],
            "diff": None,
            "view": tried.view if tried else "lanes",
        }
        if tried is not None and tried.best is not None and _can_be_beside(plan, tried.best.plan):
            after = tried.best.plan
            beside = page_data.data(after, None, _cost(after, machine))
            data["beside"] = {"plan": beside, "diff": page_diff.data(plan, after)}
        line = headline(plan)
        if other is not None:
            data["plans"].append(page_data.data(other, None, _cost(other, machine)))
            data["diff"] = page_diff.data(plan, other)
            line = data["diff"]["headline"]
    title = _title(plan) if other is None else _title_of_two(plan, other)
    if parts := [part for p in (plan, other) if p is not None and (part := mark(p.capture))]:
        title += f": {'; '.join(parts)}"
    verdict = data["plans"][0]["verdict"] if other is None else ""
    return _page(title, line, data, verdict)


def _can_be_beside(plan: Planned, after: Planned) -> bool:
    """Whether it is a plan of the same tokens, and not so large that the page would be slow."""
    same = plan.provenance.n_tokens == after.provenance.n_tokens
    return same and max(len(plan.nodes), len(after.nodes)) <= _MOST_BESIDE


def _cost(plan: Planned, machine: Machine | None) -> Cost | None:
    if machine is not None:
        return cost_of(plan, machine)
    if plan.capture.source != "scheduler":
        return None
    cost = cost_of(plan, Machine.of_sheets({}))
    return None if n_unknown(cost) else cost


def _title(plan: Planned) -> str:
    names = " + ".join(b.name for b in plan.backends)
    of = plan.provenance.model_text or counted(len(plan.nodes), "node")
    return f"Plan of {of} on {names}"


def _title_of_two(before: Planned, after: Planned) -> str:
    models = [plan.provenance.model_text for plan in (before, after)]
    if not all(models):
        return "Two plans"
    return (
        f"Two plans of {models[0]}"
        if models[0] == models[1]
        else f"Plans of {' and '.join(models)}"
    )


def _page(title: str, headline: str, data: dict[str, Any], verdict: str) -> str:
    parts = [_part(f"{name}.js") for name in SCRIPTS]
    return whole(title, headline, _part("page.html"), _part("page.css"), parts, data, verdict)


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")

"""A plan, or two side by side, as a page: one file that opens in a browser and loads nothing else.

The page consists of page.html, page.css and *.js in this folder, with the plan's data (data.py)
inserted. The same plan gives the same bytes.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from ...cost.cost import cost_of
from ...cost.machine import Machine
from ...trace.answers.excerpt import mark
from ...trace.answers.shares import headline
from ...trace.names import counted
from ...trace.planned import Planned
from ...trace.record import collection_paused
from ...trace.recorded import Recorded
from ..predicted_times import predicted_times
from ..run_times import Times, times
from . import columns as page_data
from . import side_by_side as page_diff
from .whole import whole

SCRIPTS = (
    "plan", "axis", "lanes", "minimap", "glance", "details", "table", "main", "views", "address",
    "events",
)  # fmt: skip


def render(
    source: Planned | Recorded, other: Planned | None = None, machine: Machine | None = None
) -> str:
    """The page of a plan, or of a run's plan with its times (`run_times`). With `other` it compares
    the two plans, and with `machine` plans have their predicted times. Raises ValueError for a run
    without a known plan, and with `machine` for a plan without shapes."""

    def one(plan: Planned, measured: Times | None = None) -> dict[str, Any]:
        if machine is None or measured is not None:
            return page_data.data(plan, measured)
        cost = cost_of(plan, machine)
        return page_data.data(plan, predicted_times(cost), cost)

    measured = times(source) if isinstance(source, Recorded) else None
    plan = source if isinstance(source, Planned) else measured.plan if measured else None
    assert plan is not None
    with collection_paused():
        data: dict[str, Any] = {"plans": [one(plan, measured)], "diff": None}
        line = headline(plan)
        if other is not None:
            data["plans"].append(one(other))
            data["diff"] = page_diff.data(plan, other)
            line = data["diff"]["headline"]
    title = _title(plan) if other is None else _title_of_two(plan, other)
    if parts := [part for p in (plan, other) if p is not None and (part := mark(p.capture))]:
        title += f": {'; '.join(parts)}"
    verdict = data["plans"][0]["verdict"] if other is None else ""
    return _page(title, line, data, verdict)


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

"""A plan, or two side by side, as a page: one file that opens in a browser and loads nothing else.

The page consists of page.html, page.css and *.js in this folder, with the plan's data (data.py)
inserted. The same plan gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...cost.machine import Machine
from ...cost.time_difference import known_cost
from ...trace.answers.excerpt import mark
from ...trace.answers.shares import headline
from ...trace.planned import Planned
from ...trace.record import collection_paused
from ...trace.recorded import Recorded
from . import columns as page_data
from . import of_record
from . import side_by_side as page_diff
from .first_screen import ModelAnswers
from .of_plans import of_plans
from .whole import part, whole

SCRIPTS = (
    "elements", "plan", "search", "axis", "lanes", "arrows", "minimap", "glance", "details",
    "table", "main", "views", "layers", "memory", "address", "timeline", "rail", "save", "events",
)  # fmt: skip


_MOST_BESIDE = 5000  # nodes of a second plan that the page has for its verdict


def render(
    source: Planned | Recorded,
    other: Planned | None = None,
    machine: Machine | None = None,
    tried: ModelAnswers | None = None,
) -> str:
    """The page of a plan or a run. With `other` it compares the two plans. Plans have their
    predicted times on `machine`; without one those by data sheets, if they are known for the whole
    plan. `tried` are answers that need the plan's model. Raises ValueError for a run without a
    known plan, and with `machine` for a plan without shapes."""
    if isinstance(source, Recorded):
        return render_recording(of_record.of_run(source), machine)
    with collection_paused():
        cost = known_cost(source, machine)
        data: dict[str, Any] = {
            "plans": [page_data.data(source, None, cost, tried)],
            "diff": None,
            "view": tried.view if tried else "lanes",
        }
        if tried is not None and tried.best is not None and _can_be_beside(source, tried.best.plan):
            after = tried.best.plan
            costs = cost, known_cost(after, machine)
            beside = page_data.data(after, None, costs[1])
            data["beside"] = {"plan": beside, "diff": page_diff.data(source, after, costs)}
        line = headline(source)
        if other is not None:
            costs = cost, known_cost(other, machine)
            data["plans"].append(page_data.data(other, None, costs[1]))
            data["diff"] = page_diff.data(source, other, costs)
            line = ""
    title = _title(source) if other is None else _title_of_two(source, other)
    if parts := [part for p in (source, other) if p is not None and (part := mark(p.capture))]:
        title += f": {'; '.join(parts)}"
    verdict = (data["diff"] or data["plans"][0])["verdict"]
    return _page(title, line, data, verdict)


def _can_be_beside(plan: Planned, after: Planned) -> bool:
    """Whether it is a plan of the same tokens, and not so large that the page would be slow."""
    same = plan.provenance.n_tokens == after.provenance.n_tokens
    return same and max(len(plan.nodes), len(after.nodes)) <= _MOST_BESIDE


def render_recording(given: of_record.PageRecord, machine: Machine | None = None) -> str:
    """The page of a record or a run. Raises ValueError if it has no plan that can be read."""
    with collection_paused():
        told = of_record.data(given, machine)
    shown = told["drawn"][told["shown"]]
    data: dict[str, Any] = {"plans": [], "diff": None, "view": "timeline", "recording": told}
    return _page(told["title"], told["headline"], data, shown["verdict"])


def render_plans(plans: Sequence[tuple[str, Planned]], machine: Machine | None = None) -> str:
    """The page of several plans with their names: one is shown, and what each takes and needs is
    listed, beside the first. Raises ValueError with `machine` for plans without shapes."""
    return render_recording(of_plans(plans, machine), machine)


def _title(plan: Planned) -> str:
    return f"Plan of {of_record.what(plan)}"


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
    parts = [part(f"{name}.js") for name in SCRIPTS]
    return whole(title, headline, part("page.html"), part("page.css"), parts, data, verdict)

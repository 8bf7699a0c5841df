"""A plan, or two side by side, as a page: one file that opens in a browser and loads nothing else.

The page consists of page.html, page.css and *.js in this folder, with the plan's data (data.py)
inserted. The same plan gives the same bytes.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from ...trace.answers.shares import headline
from ...trace.names import counted
from ...trace.planned import Planned
from ...trace.record import collection_paused
from ...trace.run import Recorded
from ..run_times import times
from . import data as page_data
from . import diff as page_diff
from .whole import whole

SCRIPTS = (
    "plan", "axis", "lanes", "minimap", "glance", "details", "table", "main", "events"
)  # fmt: skip


def render(source: Planned | Recorded, other: Planned | None = None) -> str:
    """The page of a plan, or of a run's plan with its times (`run_times`). With `other` it compares
    the two plans. Raises ValueError for a run without a known plan."""
    measured = times(source) if isinstance(source, Recorded) else None
    plan = source if isinstance(source, Planned) else measured.plan if measured else None
    assert plan is not None
    with collection_paused():
        data: dict[str, Any] = {"plans": [page_data.data(plan, measured)], "diff": None}
        line = headline(plan)
        if other is not None:
            data["plans"].append(page_data.data(other))
            data["diff"] = page_diff.data(plan, other)
            line = data["diff"]["headline"]
    names = " + ".join(b.name for b in plan.backends)
    title = (
        f"Plan of {counted(len(plan.nodes), 'node')} on {names}" if other is None else "Two plans"
    )
    return _page(title, line, data)


def _page(title: str, headline: str, data: dict[str, Any]) -> str:
    parts = [_part(f"{name}.js") for name in SCRIPTS]
    return whole(title, headline, _part("page.html"), _part("page.css"), parts, data)


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")

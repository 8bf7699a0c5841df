"""A plan, or two side by side, as a page: one file that opens in a browser and loads nothing else.

The page consists of page.html, page.css and *.js in this folder, with the plan's data (data.py)
inserted. The same plan gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from ...trace.answers.shares import headline
from ...trace.names import counted
from ...trace.planned import Planned
from ...trace.record import collection_paused
from ...trace.run import Recorded
from .. import palette
from ..run_times import times
from . import data as page_data
from . import diff as page_diff

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
    css = palette.css() + _part("page.css")
    parts = (_part(f"{name}.js") for name in SCRIPTS)
    script = '"use strict";(() => {\n' + "\n".join(parts) + "})();"
    put = {
        "TITLE": html.escape(title), "HEADLINE": html.escape(headline),
        "SCRIPT": script, "DATA": _json(data),
    }  # fmt: skip
    body = re.sub("@([A-Z]+)@", lambda mark: put[mark[1]], _part("page.html"))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"script-src '{_digest(script)}'; style-src '{_digest(css)}'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="generator" content="ggml_py">\n'
        f"<title>{html.escape(title)}</title>\n<style>{css}</style>\n</head>\n"
        f"{body}</html>\n"
    )


def _json(data: dict[str, Any]) -> str:
    """JSON that no browser takes for anything else: ASCII, without <, > and &."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    """The hash by which the page's policy allows a script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")

"""Small tables for notebooks: HTML without scripts, which works in any page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ..trace.answers.diff import Diff
from ..trace.answers.run_summary import summarize
from ..trace.answers.shares import format_count, headline, shares
from ..trace.names import counted
from ..trace.planned import Planned, format_bytes
from ..trace.run import Recorded

_MOST = 12  # rows of a table
_CELL = "padding:1px 10px 1px 0;text-align:left;vertical-align:top"


def plan(plan: Planned) -> str:
    """The headline, each backend's share, and the first splits."""
    parts = shares(plan)
    if parts is None:
        devices = [[name, n, "?", "?", "?"] for name, n in plan.nodes_per_backend().items()]
    else:
        devices = [
            [
                s.backend,
                f"{s.nodes} ({s.node_share:.0%})",
                f"{format_count(s.flops)} ({s.flops_share:.0%})",
                f"{format_bytes(s.bytes)} ({s.bytes_share:.0%})",
                format_bytes(s.weight_bytes),
            ]
            for s in parts
        ]
    splits = [
        [
            split.number,
            split.backend,
            f"{split.start}–{split.end - 1}" if split.nodes else "?",
            split.nodes[0].name if split.nodes else "?",
            format_bytes(split.copy_bytes) if split.inputs else "–",
        ]
        for split in plan.splits[:_MOST]
    ]
    columns = ["backend", "nodes", "FLOPs", "read and written", "weights held"]
    shown = [f"<b>{escape(headline(plan))}</b>", _table(columns, devices)]
    title = counted(plan.n_splits, "split") + (
        f", the first {_MOST}" if plan.n_splits > _MOST else ""
    )
    names = ["#", "backend", "nodes", "first node", "copied in"]
    shown.append(_folded(title, _table(names, splits)))
    return f"<div>{''.join(shown)}</div>"


def diff(diff: Diff) -> str:
    """The headline, and each kind of difference."""
    parts = [f"<b>{escape(diff.headline())}</b>"]
    for title, rows in diff.sections():
        more = [f"… {len(rows) - _MOST} more"] if len(rows) > _MOST else []
        items = "".join(f"<li>{escape(row)}</li>" for row in [*rows[:_MOST], *more])
        parts.append(_folded(f"{title} ({len(rows)})", f"<ul>{items}</ul>"))
    return f"<div>{''.join(parts)}</div>"


def run(run: Recorded) -> str:
    """The headline, and where the time went."""
    summary = summarize(run)
    told = f"<pre>{escape(str(summary))}</pre>"
    return f"<div><b>{escape(summary.headline())}</b>{_folded('where the time went', told)}</div>"


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def _table(columns: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    head = "".join(f'<th style="{_CELL}">{escape(str(c))}</th>' for c in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(str(v))}</td>' for v in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

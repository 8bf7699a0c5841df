"""Small tables for notebooks: HTML without scripts, which works in any page."""

from __future__ import annotations

from ..advice.checkup import verdict_by_bytes
from ..files.foreign import html
from ..trace.answers.run_summary import summarize
from ..trace.answers.shares import format_count, headline, shares
from ..trace.html import MOST, folded, table
from ..trace.names import counted
from ..trace.planned import Planned, format_bytes
from ..trace.recorded import Recorded


def plan(plan: Planned) -> str:
    """The verdict, the headline, each backend's share, and the first splits."""
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
        for split in plan.splits[:MOST]
    ]
    columns = ["backend", "nodes", "FLOPs", "read and written", "weights held"]
    lines = [line for line in (verdict_by_bytes(plan), headline(plan)) if line]
    shown = [*(f"<div><b>{html(line)}</b></div>" for line in lines), table(columns, devices)]
    title = counted(plan.n_splits, "split") + (
        f", the first {MOST}" if plan.n_splits > MOST else ""
    )
    names = ["#", "backend", "nodes", "first node", "copied in"]
    shown.append(folded(title, table(names, splits)))
    return f"<div>{''.join(shown)}</div>"


def run(run: Recorded) -> str:
    """The headline, and where the time went."""
    summary = summarize(run)
    told = f"<pre>{html(str(summary))}</pre>"
    return f"<div><b>{html(summary.headline())}</b>{folded('where the time went', told)}</div>"

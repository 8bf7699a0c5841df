"""A plan in Markdown for pasting into an issue: short, the rest folded, enough to analyse it.

The last folded part is upstream's debug layout, which `Plan.from_debug_log` turns back into a plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..advice.all_findings import advice
from ..advice.checkup import verdict_by_bytes
from ..advice.two_plans import verdict_of_change
from ..files.foreign import fenced, markdown
from ..trace.answers.diff import diff
from ..trace.answers.excerpt import limits
from ..trace.answers.shares import headline
from ..trace.names import counted
from ..trace.planned import Planned, format_bytes
from ..trace.units import AtLeast
from . import to_text
from .rows import copy_rows, node_rows, off_reasons, off_rows, split_rows

_MOST = 60_000  # characters: GitHub refuses an issue of more than 65,536
_ROWS = 30


def render(plan: Planned, other: Planned | None = None) -> str:
    """The text. A layout that would not fit into an issue is cut, and says so. With `other` it has
    the differences of the two plans only."""
    if other is not None:
        return _differences(plan, other)
    verdict = verdict_by_bytes(plan)
    lines = [
        *([f"**{markdown(verdict)}**", ""] if verdict else []),
        f"**{markdown(_whose(plan))}:** {markdown(headline(plan))}", "",
        f"{_made_with(plan)}{counted(len(plan.nodes), 'node')}", *_limits(plan), "",
        "| backend | device | kind | allocates from | nodes |", "|---|---|---|---|---|",
    ]  # fmt: skip
    n_nodes = plan.nodes_per_backend()
    for b in plan.backends:
        buft = plan.capture.bufts[b.buft].name if b.buft >= 0 and plan.capture.bufts else ""
        row = (b.name, b.device, b.device_type, buft, n_nodes.get(b.name, 0))
        lines.append(_row(row))
    lines += _findings(plan)
    lines += _off(plan)
    splits = [
        (
            s.split,
            s.backend,
            f"{s.start} to {s.end - 1}" if plan.nodes else "?",
            s.n_copies,
            format_bytes(s.copy_bytes),
        )
        for s in split_rows(plan)
    ]
    lines += _folded(
        counted(len(splits), "split"), ("#", "backend", "nodes", "copies", "copied in"), splits
    )
    copies = sorted(copy_rows(plan), key=lambda c: -c.nbytes)
    rows = [
        (
            c.split,
            c.tensor,
            c.what,
            f"{c.src_backend or 'unknown'} → {c.dst_backend}",
            format_bytes(c.nbytes),
        )
        for c in copies
    ]
    title = f"{counted(len(rows), 'copy', 'copies')}, the largest first"
    lines += _folded(title, ("split", "tensor", "what", "", "bytes"), rows)
    return "\n".join(lines) + "\n" + _layout(plan, _MOST - sum(len(line) + 1 for line in lines))


def _differences(plan: Planned, other: Planned) -> str:
    found = diff(plan, other)
    lines = [f"**{markdown(verdict_of_change(plan, other, found))}**"]
    for title, rows in found.sections():
        pairs = [row.partition(": ")[::2] for row in rows]
        lines += _folded(f"{title} ({len(rows)})", ("what", "change"), pairs)
    return "\n".join(lines) + "\n"


def _whose(plan: Planned) -> str:
    """Where the plan comes from. A log or a snapshot does not tell the release."""
    if plan.capture.source == "scheduler":
        return f"Plan of ggml {plan.settings.upstream}"
    return f"Plan read from a {plan.capture.source}"


def _made_with(plan: Planned) -> str:
    if plan.capture.source != "scheduler":
        return ""
    op_offload, n = plan.settings.op_offload, plan.settings.n_copies
    copies = f"{counted(n, 'copy', 'copies')} of inputs"
    return f"op_offload {'on' if op_offload else 'off'}, {copies}, "


def _limits(plan: Planned) -> list[str]:
    """The missing part of an excerpt of a log."""
    found = limits(plan.capture)
    return ["", *(f"- {markdown(text)}" for text in found)] if found else []


def _row(values: tuple[object, ...]) -> str:
    return "| " + " | ".join(markdown(str(v)) for v in values) + " |"


def _findings(plan: Planned) -> list[str]:
    try:
        findings = advice(plan)
    except ValueError:  # the reference scheduler cannot plan it
        return []
    lines = []
    for f in findings:
        known = f.bytes or isinstance(f.bytes, AtLeast)
        cost = f", {format_bytes(f.bytes)} per evaluation" if known else ""
        lines.append(f"- **{f.id} {f.title}** ({f.severity}{cost}): {markdown(f.text)}")
        lines.append(f"  {markdown(f.suggestion)}")
    return ["", *lines] if lines else []


def _off(plan: Planned) -> list[str]:
    """Nodes on the host although there is a device, and the rules that keep them there."""
    nodes = node_rows(plan)
    rows = [
        (len(r.nodes), r.op, r.backend, r.reason, format_bytes(r.bytes), r.text)
        for r in off_rows(plan, nodes, off_reasons(plan, nodes))
    ]
    head = ("nodes", "op", "on", "rule", "bytes moved", "why the first is there")
    one, many = "kind of node that is", "kinds of nodes that are"
    return _folded(f"{counted(len(rows), one, many)} not on the device", head, rows)


def _folded(what: str, head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [_row(row) for row in rows[:_ROWS]]
    if len(rows) > _ROWS:
        lines.append(_row((f"… {len(rows) - _ROWS} more", *[""] * (len(head) - 1))))
    summary = f"<details><summary>{what}</summary>"
    return ["", summary, "", _row(head), "|" + "---|" * len(head), *lines, "", "</details>"]


def _layout(plan: Planned, room: int) -> str:
    text = to_text.render(plan)
    room -= 300
    cut = ""
    if len(text) > room:
        text = text[: text.rfind("\n", 0, max(room, 1)) + 1]
        cut = "(cut: attach the file that `ggml-py plan ... -o plan.json.gz` writes)\n"
    head = "<details><summary>every node, as GGML_SCHED_DEBUG=2 prints it</summary>"
    shown = "\n".join(fenced(text.removesuffix("\n")))
    return f"\n{head}\n\n{shown}\n{cut}\n</details>\n"

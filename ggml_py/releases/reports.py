"""A comparison as other programs and people read it: JUnit XML, Markdown, a page."""

from __future__ import annotations

from collections.abc import Callable, Collection
from xml.etree import ElementTree

from ..export.palette import fills
from ..files.foreign import fenced, html, markdown, visible
from ..plan import Plan
from ..trace.names import counted
from ..trace.planned import format_bytes
from .compare import Compared, Comparison

_SHOWN = 50  # cases in Markdown: a comment on a pull request holds 64 KiB


def to_junit(found: Comparison, unexpected: Collection[str]) -> str:
    """JUnit XML: a test for each case, which fails if it is in `unexpected`, and is skipped if
    neither side has a plan."""
    suite = ElementTree.Element(
        "testsuite", name=f"ggml-py: {found.before} → {found.after}", tests=str(len(found.rows)),
        failures=str(sum(row.case in unexpected for row in found.rows)), errors="0",
        skipped=str(sum(all(row.errors) for row in found.rows)),
    )  # fmt: skip
    for row in found.rows:
        case = ElementTree.SubElement(suite, "testcase", classname="ggml_py.plan", name=row.case)
        if row.case in unexpected:
            failure = ElementTree.SubElement(case, "failure", message=row.headline())
            failure.text = "\n".join(details(row))
        elif all(row.errors):
            ElementTree.SubElement(case, "skipped", message=row.headline())
        elif row.differs:
            ElementTree.SubElement(case, "system-out").text = f"allowed: {row.headline()}"
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    for element in suites.iter():
        element.text = visible(element.text or "") or None
        for key, value in element.items():
            element.set(key, visible(value))
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def to_markdown(found: Comparison, unexpected: Collection[str]) -> str:
    """Markdown for a comment on a pull request: the cases that differ, with the reasons folded."""
    lines = [f"### Plans: {markdown(found.headline())}", ""]
    rows = [row for row in found.rows if row.differs]
    if rows:
        lines += ["| case | what is different | |", "|---|---|---|"]
    for row in rows[:_SHOWN]:
        allowed = "" if row.case in unexpected else "allowed"
        lines.append(f"| {markdown(row.case)} | {markdown(row.headline())} | {allowed} |")
    if len(rows) > _SHOWN:
        lines.append(f"| and {counted(len(rows) - _SHOWN, 'more case')} | | |")
    if rows:
        why = [
            text for row in rows[:_SHOWN]
            for text in (f"{row.case}:", *(f"  {text}" for text in details(row)))
        ]  # fmt: skip
        shown = fenced("\n".join(why), "text")
        lines += ["", "<details><summary>Why</summary>", "", *shown, "", "</details>"]
    without = [row for row in found.rows if all(row.errors)]
    if without:
        names = ", ".join(markdown(row.case) for row in without)
        lines += ["", f"Without a plan on either side: {names}"]
    return "\n".join(lines) + "\n"


def details(row: Compared) -> list[str]:
    """The differences of a case, and their causes, a line each."""
    lines = [f"{change.kind}: {change.text}" for change in (*row.changes, *row.run)]
    if row.diff is None:
        return [row.headline()]
    return lines + str(row.diff).splitlines()[1:]  # without the headline


def to_html(found: Comparison, unexpected: Collection[str]) -> str:
    """A page for a browser: all cases, with the splits of both sides as a picture. It needs nothing
    beside it."""
    rows = "".join(_html_case(found, row, unexpected) for row in found.rows)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{html(found.headline())}</title><style>{_STYLE}</style>"
        f"<h1>{html(found.headline())}</h1>{rows}</html>\n"
    )


def _html_case(found: Comparison, row: Compared, unexpected: Collection[str]) -> str:
    state = "differs" if row.case in unexpected else "allowed" if row.differs else "same"
    if all(row.errors):
        state = "no plan"
    both = ((found.before, row.before), (found.after, row.after))
    strips = "".join(
        f"<tr><th>{html(name)}<td>{_strip(made.plan) if made.plan else html(made.error)}"
        for name, made in both
    )
    text = html("\n".join(details(row)))
    return (
        f'<details class="{state.replace(" ", "-")}"{" open" * (state == "differs")}>'
        f"<summary><b>{state}</b> {html(row.case)}: {html(row.headline())}</summary>"
        f"<table>{strips}</table><pre>{text}</pre></details>"
    )


def _strip(plan: Plan) -> str:
    """The splits in a row, as wide as they have nodes, in their backend's colour."""
    colors = fills(plan)
    total = max(1, plan.capture.n_nodes)

    def split(backend: str, n: int, title: str) -> str:
        return (
            f'<i style="width:{100 * n / total:.3f}%;background:{colors[backend]}" '
            f'title="{html(title)}"></i>'
        )

    parts = "".join(
        split(
            s.backend, s.end - s.start,
            f"split {s.index} on {s.backend}: {counted(s.end - s.start, 'node')}, "
            f"{format_bytes(s.copy_bytes)} copied",
        )
        for s in plan.splits
    )  # fmt: skip
    names = dict.fromkeys(s.backend for s in plan.splits)
    legend = " ".join(f'<em style="background:{colors[n]}"></em>{html(n)}' for n in names)
    return f'<div class="strip">{parts}</div>{legend}'


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}
h1{font-size:1.3em}details{border-left:4px solid #c9ced6;padding:.3em .8em;margin:.4em 0}
.differs{border-color:#c02a9b}.allowed{border-color:#e17006}summary{cursor:pointer}
table{width:100%;border-spacing:.4em}th{text-align:left;white-space:nowrap;width:1%}
.strip{display:flex;height:1.2em;gap:1px}.strip i{min-width:2px}
em{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 .6em}
pre{overflow-x:auto;font-size:.9em}
@media(prefers-color-scheme:dark){body{background:#10131a;color:#e6e8ee}}
"""

REPORTS: dict[str, Callable[[Comparison, Collection[str]], str]] = {
    "junit": to_junit, "markdown": to_markdown, "html": to_html,
}  # fmt: skip

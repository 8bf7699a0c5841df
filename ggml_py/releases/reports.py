"""A comparison as other programs and people read it: JUnit XML, Markdown, a page."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from xml.etree import ElementTree

from ..export.page.whole import part, whole
from ..export.palette import lanes
from ..files.foreign import fenced, markdown, visible
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
    colors: dict[str, str] = {}
    for plan in (made.plan for row in found.rows for made in (row.before, row.after)):
        if plan is not None:
            names = (backend.name for backend in plan.backends)
            colors.update(zip(names, lanes(plan), strict=True))
    data = {
        "names": [found.before, found.after], "colors": colors,
        "cases": [_case(row, row.case in unexpected) for row in found.rows],
    }  # fmt: skip
    css = part("page.css") + part("comparison.css")
    scripts = [part("elements.js"), part("comparison.js")]
    title = f"Plans of {found.before} and {found.after}"
    return whole(title, found.headline(), part("comparison.html"), css, scripts, data)


def _case(row: Compared, is_unexpected: bool) -> dict[str, Any]:
    state = _change(row) if is_unexpected else "allowed" if row.differs else "same"
    return {
        "name": visible(row.case), "headline": visible(row.headline()),
        "state": "no plan" if all(row.errors) else state,
        "details": visible("\n".join(details(row))) if row.differs else "",
        "sides": [
            {"error": visible(made.error), "splits": made.plan and _strip(made.plan)}
            for made in (row.before, row.after)
        ],
    }  # fmt: skip


def _change(row: Compared) -> str:
    """Whether splits and copied bytes are fewer ("better"), more ("worse"), or one of each
    ("mixed"); "differs" if neither says so."""
    before, after = row.before.plan, row.after.plan
    if before is None or after is None:
        return "differs"
    pairs = (before.n_splits, after.n_splits), (before.copy_bytes, after.copy_bytes)
    more, less = any(a < b for a, b in pairs), any(a > b for a, b in pairs)
    return "mixed" if more and less else "worse" if more else "better" if less else "differs"


def _strip(plan: Plan) -> list[tuple[str, int, str]]:
    """The splits: backend, nodes, bytes copied in."""
    return [(s.backend, s.end - s.start, format_bytes(s.copy_bytes)) for s in plan.splits]


REPORTS: dict[str, Callable[[Comparison, Collection[str]], str]] = {
    "junit": to_junit, "markdown": to_markdown, "html": to_html,
}  # fmt: skip

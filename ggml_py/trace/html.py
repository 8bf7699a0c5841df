"""HTML that notebooks show: parts to unfold, and tables."""

from __future__ import annotations

from collections.abc import Iterable

from ..files.foreign import html

MOST = 12  # rows of a table
_CELL = "padding:1px 10px 1px 0;text-align:left;vertical-align:top"


def folded(title: str, inner: str) -> str:
    """A part that opens at a click. `inner` is HTML."""
    return f"<details><summary>{html(title)}</summary>{inner}</details>"


def text_html(text: str) -> str:
    """A text of lines: the first one bold, the others as they are aligned."""
    first, _, rest = text.partition("\n")
    return f"<div><b>{html(first)}</b>{rest and f'<pre>{html(rest)}</pre>'}</div>"


def table(columns: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table with a head."""
    head = "".join(f'<th style="{_CELL}">{html(str(c))}</th>' for c in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{html(str(v))}</td>' for v in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

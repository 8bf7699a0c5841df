"""Sentences in lines that are as long as the terminal is wide, broken at words."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap

MANY = 100_000  # columns: nothing is wrapped


def width_of_terminal() -> int:
    """Columns. In a pipe or a file nothing is wrapped or cut, so grep finds whole names, unless
    COLUMNS sets a width."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return MANY if wide else shutil.get_terminal_size().columns


def wrapped(text: str, first: str = "", width: int = 80, others: str | None = None) -> list[str]:
    """The text in lines, `first` in front of it, and `others` or as many blanks before others."""
    return textwrap.wrap(
        text, width, initial_indent=first,
        subsequent_indent=" " * len(first) if others is None else others,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def told(text: str) -> str:
    """Each line of the text, wrapped to the terminal and indented as it begins."""
    width, lines = width_of_terminal(), []
    for line in text.splitlines():
        body = line.lstrip()
        blanks = line[: len(line) - len(body)]
        more = "  " if body[:2] in ("- ", "> ") else ""
        lines += wrapped(body, blanks, width, blanks + more) or [""]
    return "\n".join(lines)

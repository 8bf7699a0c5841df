"""Rich's console and tables, in one style."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..files.foreign import visible
from .wrapping import width_of_terminal, wrapped

_FOLDED = 8  # columns that a text gets at least


class _Console(Console):
    """Shows text as it is: brackets are no markup, colons no emoji, escapes do nothing."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Like rich's, which renders all texts."""
        return super().render_str(visible(text), **settings)

    def print(self, *objects: Any, **settings: Any) -> None:
        """Like rich's. A table that has no room for its numbers is as wide as it must be."""
        before = self.width
        least = [_least_width(one) for one in objects if isinstance(one, Table)]
        self.width = max(before, *least) if least else before
        try:
            super().print(*objects, **settings)
        finally:
            self.width = before

    def on_broken_pipe(self) -> None:
        """Raises the exception again: rich would end the process with status 1."""
        raise


def new_console() -> Console:
    """A console as wide as the terminal; in a pipe or a file nothing is wrapped or cut."""
    console = _Console()
    if not console.is_terminal and not console.is_jupyter:
        console.width = width_of_terminal()
    return console


def new_table(*columns: str, title: str | None = None) -> Table:
    """A table. A column of numbers, whose name begins with ">", is aligned right and never cut; the
    others wrap where there is no room."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for column in columns:
        number = column.startswith(">")
        table.add_column(
            column.removeprefix(">"), justify="right" if number else "left", no_wrap=number,
            overflow="fold",
        )  # fmt: skip
    return table


def _least_width(table: Table) -> int:
    """Columns of the terminal in which no number of a table is cut; texts are folded."""
    widths = []
    for column in table.columns:
        cells = (str(cell) for cell in (column.header, *column.cells))
        most = max((cell_len(line) for cell in cells for line in cell.split("\n")), default=0)
        widths.append(most if column.no_wrap and column.overflow == "fold" else min(most, _FOLDED))
    return sum(widths) + 2 * len(widths)


def say(text: str, first: str = "", console: Console | None = None, style: str = "") -> None:
    """Prints a sentence, `first` in front of it and as many blanks before its other lines."""
    console = console or new_console()
    for line in wrapped(text, first, console.width):
        console.print(line, style=style, soft_wrap=True)

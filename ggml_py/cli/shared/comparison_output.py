"""Output of the verbs that compare releases: a table, JSON, files of reports."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...files.bounds import LIST
from ...files.reading import decoded, read_file
from ...files.writing import write_whole
from .model_options import echo_json
from .output import check_target

if TYPE_CHECKING:
    from ...releases import Compared, Comparison

F = TypeVar("F", bound=Callable[..., Any])
FILES = {
    "html": "a page for a browser", "junit": "JUnit XML", "markdown": "Markdown, for a comment",
}  # fmt: skip


def report_options(function: F) -> F:
    """--allow, --jobs, --verbose and a file for each kind of report."""
    for kind, what in reversed(FILES.items()):
        function = click.option(
            f"--{kind}", type=click.Path(dir_okay=False), metavar="FILE",
            help=f"Write {what}, too.",
        )(function)  # fmt: skip
    for option in (
        click.option("--verbose", is_flag=True, help="Print each difference in full."),
        click.option("--no-build", is_flag=True, help="Refuse releases that are not built yet."),
        click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True,
                     metavar="N", help="Processes that plan at once."),
        click.option("--allow", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
                     help="Cases that may differ: a name or pattern on each line, # begins a "
                     "comment."),
    ):  # fmt: skip
        function = option(function)
    return function


def check_reports(allow: str | None, files: Iterable[str | None]) -> None:
    """Raises usage errors and OSError for what could not be read or written after the work."""
    _patterns(allow)
    for path in files:
        if path is not None:
            check_target(path, force=True)


def report(
    found: Comparison,
    *,
    allow: str | None,
    verbose: bool,
    as_json: bool,
    must_plan: bool = False,
    **files: Any,
) -> int:
    """Prints the comparison and writes the files. Returns the exit status: 1 if a case differs that
    is not allowed to; with `must_plan` also if the side after has no plan of it. Without, it raises
    ValueError if no case has a plan."""
    from ...releases.reports import REPORTS

    if not must_plan and all(all(row.errors) for row in found.rows):
        first = found.rows[0]
        raise ValueError(f"neither release has a plan; {first.case}: {first.errors[1]}")

    patterns = _patterns(allow)
    unexpected = [
        row for row in found.rows
        if (row.differs or (must_plan and row.after.plan is None)) and not _allowed(row, patterns)
    ]  # fmt: skip
    names = [row.case for row in unexpected]
    for kind, path in files.items():
        if path is not None:
            write_whole(path, REPORTS[kind](found, names).encode())
    if as_json:
        echo_json({**found.to_dict(), "unexpected": names})
        return int(bool(unexpected))
    click.echo(found.text(verbose))
    if patterns:
        n = sum(_allowed(row, patterns) for row in found.different)
        click.echo(f"{n} of these are in {allow}")
    return int(bool(unexpected))


def _allowed(row: Compared, patterns: Sequence[str]) -> bool:
    return any(row.case == p or fnmatch.fnmatchcase(row.case, p) for p in patterns)


def _patterns(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        text = decoded(read_file(file, LIST), file)
    except ValueError as error:
        raise click.UsageError(f"--allow {error}") from None
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]

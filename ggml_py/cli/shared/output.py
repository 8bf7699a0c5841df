"""What verbs print, and the files that they write plans to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...export.wrapping import told
from ...files.writing import whole_file
from .bar import line

if TYPE_CHECKING:
    from ...cost import Machine
    from ...export.page.first_screen import ModelAnswers
    from ...plan import Plan
    from ...run import Run


def say(text: str) -> None:
    """Prints sentences, wrapped to the terminal. A command line is printed by click.echo: a line
    that was broken cannot be copied."""
    click.echo(told(text))


_MANY = 2000  # nodes that a page takes longer for than people wait without a word


class _NotWrittenError(Exception):
    """It could be written; nothing was."""


def check_output(
    path: str, format: str | None = None, force: bool = False, runs: bool = False
) -> None:
    """Raises for whatever `save` would refuse, before any long work starts."""
    from ...export.formats import exporter_for

    try:
        exporter_for(path, format, runs)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    check_target(path, force)


def check_target(path: str, force: bool) -> None:
    """Raises for a file that cannot be written, or that exists, unless `force`."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: cannot be written: there is no folder {folder}")
    try:
        there = Path(path).exists()
        if not there:
            with whole_file(Path(path), replace=False):
                raise _NotWrittenError
    except _NotWrittenError:
        return
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror}") from None
    if there and not force:
        raise FileExistsError(f"{path} already exists: --force replaces it")


def save(
    source: Plan | Run,
    path: str,
    format: str | None = None,
    other: Plan | None = None,
    force: bool = False,
    machine: Machine | None = None,
    tried: ModelAnswers | None = None,
) -> None:
    """`Plan.export` or `Run.export`; errors name the command's option, not the argument."""
    from ...export import formats

    plans: Sequence[Any] = getattr(source, "plans", (source,))
    n_nodes = sum(len(plan.nodes) for plan in plans)
    try:
        with line(f"writing {path}, {n_nodes:,} nodes", n_nodes > _MANY):
            formats.export(source, path, format, other, force, machine, tried)
    except FileExistsError:
        raise FileExistsError(f"{path} already exists: --force replaces it") from None
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror}") from None

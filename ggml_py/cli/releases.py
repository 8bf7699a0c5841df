"""``ggml-py releases``"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .shared.model_options import as_json, echo_json
from .shared.verb import Verb

if TYPE_CHECKING:
    from ..releases.listing import BuildHere, ReleaseRow


@click.command("releases", cls=Verb, short_help="List the releases of ggml that can be built.")
@as_json
def command(as_json: bool) -> None:
    """List the releases of ggml that can be built: package, which rules of the scheduler it
    changed, and what its build takes here. * is the default.

    \b
    ggml-py releases
    """
    from ..releases.listing import listing

    rows = listing()
    if as_json:
        echo_json({"releases": [row.to_dict() for row in rows]})
    else:
        _show(rows)


def _show(rows: Sequence[ReleaseRow]) -> None:
    from ..export.console import new_console, new_table

    table = new_table("release", "build", "package", "built here", "rules that it changed")
    for row in rows:
        built = "\n".join(_built(one) for one in row.here) or "no"
        number = f"b{row.build}" if row.build else "?"
        mark = "* " if row.default else "  "
        package = f"{row.package} {row.version}"
        table.add_row(mark + row.label, number, package, built, "\n".join(row.rules.values()))
    new_console().print(table)
    n = sum(bool(row.here) for row in rows)
    click.echo(f"* = default; {n} of {len(rows)} releases are built here")


def _built(one: BuildHere) -> str:
    from ..trace.planned import format_bytes

    took = "time unknown" if one.seconds is None else f"{one.seconds:.0f} s"
    how = "" if one.instrumented else ", no causes"
    missing = f" ({one.edits_missing} edits without a place)" if one.edits_missing else ""
    return f"{format_bytes(one.disk)}, {took}{how}{missing}"

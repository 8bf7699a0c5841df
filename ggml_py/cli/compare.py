"""``ggml-py compare``"""

from __future__ import annotations

import fnmatch
from pathlib import Path

import click

from ..trace.names import counted
from .shared.bar import bar
from .shared.cases import PLAN_OPTIONS, cases_of
from .shared.options import as_json, echo_json


@click.command(
    "compare",
    context_settings=PLAN_OPTIONS,
    short_help="Show what one release of ggml plans differently from another.",
)
@click.argument("sources", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--upstream", "releases", multiple=True, metavar="RELEASE",
    help="A release that `ggml-py build --list` prints. Give two: before and after.",
)  # fmt: skip
@click.option(
    "--source", type=click.Path(exists=True, file_okay=False), metavar="DIR",
    help="A checkout of ggml or llama.cpp, with what is not committed, as the one after.",
)  # fmt: skip
@click.option(
    "--allow", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="Cases that may differ: a name or pattern on each line, # begins a comment.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Plans that are made at once.")  # fmt: skip
@click.option("--no-build", is_flag=True, help="Refuse releases that are not built yet.")
@click.option("--verbose", is_flag=True, help="Print each difference in full.")
@as_json
def command(
    sources: tuple[str, ...],
    releases: tuple[str, ...],
    source: str | None,
    allow: str | None,
    jobs: int,
    no_build: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Plan the same work natively under two releases of ggml. Show what moved, and why: a rule of
    the scheduler, an answer of a backend, or another graph.

    SOURCES are models, saved plans, and records, each of whose plans is a case. Options of
    `ggml-py plan` follow them. Graphs of saved plans and records are planned with the answers that
    were recorded, so that only the scheduler can decide otherwise; with -d on these devices, which
    each release answers for. Without SOURCES there is a small graph for each rule of the scheduler
    that releases do not share. A release that is missing is built first: one to two minutes.

    Exit status: 0 if nothing differs that --allow does not name, 1 otherwise.

    \b
    ggml-py compare --upstream 0.17.0 --upstream 0.18.0 llama-server.ggrec
    ggml-py compare --upstream 0.25.3 --upstream 0.26.0 m.gguf -d sim:gpu0,profile=rtx4090 -ngl 9
    ggml-py compare --upstream 0.26.0 --source ~/llama.cpp
    """
    from ..releases import compare

    releases += (source,) if source is not None else ()
    if len(releases) != 2:
        raise click.UsageError(
            f"{counted(len(releases), 'release')} given: name two with --upstream, or one and "
            "--source DIR"
        )
    cases = cases_of(sources)
    with bar(f"planning {len(cases)} cases twice", at_once=True) as show:
        found = compare(*releases, cases, build=not no_build, jobs=jobs, progress=show)
    if all(row.errors[0] and row.errors[1] for row in found.rows):
        first = found.rows[0]
        raise ValueError(f"neither release has a plan; {first.case}: {first.errors[1]}")
    patterns = _patterns(allow)
    unexpected = [
        row for row in found.different
        if not any(row.case == p or fnmatch.fnmatchcase(row.case, p) for p in patterns)
    ]  # fmt: skip
    if as_json:
        echo_json({**found.to_dict(), "unexpected": [row.case for row in unexpected]})
    else:
        click.echo(str(found))
        if verbose:
            for row in found.different:
                click.echo(f"\n{row.case}:\n{row.diff or row.headline()}")
        if patterns:
            click.echo(f"{len(found.different) - len(unexpected)} of these are in {allow}")
    click.get_current_context().exit(int(bool(unexpected)))


def _patterns(file: str | None) -> list[str]:
    if file is None:
        return []
    lines = [line.partition("#")[0].strip() for line in Path(file).read_text("utf-8").splitlines()]
    return [line for line in lines if line]

"""``ggml-py compare``"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import NotBuiltError
from ..trace.names import counted
from .shared.bar import bar
from .shared.cases import PLAN_OPTIONS, cases_of
from .shared.comparison_output import FILES, check_reports, report, report_options
from .shared.model_options import as_json
from .shared.verb import Verb

_UNTESTED = 125  # what `git bisect run` takes as "skip this one"


@click.command(
    "compare",
    cls=Verb,
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
    help="A checkout of ggml or llama.cpp, including uncommitted changes, as the release after.",
)  # fmt: skip
@click.option("--times", "rounds", type=click.IntRange(min=8), metavar="N",
              help="Also time computes, N rounds by turns, at least 8.")  # fmt: skip
@click.option("--plans-only", is_flag=True, help="Allocate and compute nothing: it is quicker.")
@click.option(
    "--machine", "machine_path", type=click.Path(dir_okay=False), metavar="FILE",
    help="What `ggml-py calibrate` wrote: plans that differ have a predicted time.",
)  # fmt: skip
@report_options
@as_json
def command(
    sources: tuple[str, ...],
    releases: tuple[str, ...],
    source: str | None,
    jobs: int,
    no_build: bool,
    rounds: int | None,
    plans_only: bool,
    machine_path: str | None,
    **reported: Any,
) -> None:
    """Plan the same work natively under two releases of ggml. Show what moved, and why: a rule of
    the scheduler, an answer of a backend, or another graph.

    SOURCES are models, saved plans and records. Each plan of a record is a case. Options of
    `ggml-py plan` follow them. Graphs of saved plans and records are planned with the recorded
    answers, so that only the scheduler can decide otherwise. With -d, they are planned on these
    devices, and each release gives its own answers. Without SOURCES there is a small graph for each
    scheduler rule that differs between releases. A missing release is built first: one to two
    minutes.

    Each release also allocates and computes each graph that is not too large. Devices that are not
    here are simulated. Memory, waits, copies and outputs are compared; with --times also the time,
    where no device is simulated. With --machine, plans that differ have a predicted time, from the
    measurements of that machine's devices. The release's own kernels are not in it.

    Exit status: 0 if nothing differs that --allow does not name, 1 if something does, 125 if one of
    the two cannot be built: `git bisect run` skips such a checkout.

    \b
    ggml-py compare --upstream 0.17.0 --upstream 0.18.0 llama-server.ggrec
    ggml-py compare --upstream 0.25.3 --upstream 0.26.0 m.gguf -d sim:gpu0,profile=rtx4090 -ngl 9
    ggml-py compare --upstream 0.26.0 --source ~/llama.cpp
    """
    from ..cost import Machine
    from ..releases import compare
    from ..releases.planned_cases import check_release

    machine = None if machine_path is None else Machine.load(machine_path)
    releases += (str(Path(source).resolve()),) if source is not None else ()
    for release in releases:
        check_release(release)
    if len(releases) != 2:
        raise click.UsageError(
            f"{counted(len(releases), 'release')} given: name two with --upstream, or one and "
            "--source DIR"
        )
    if rounds and plans_only:
        raise click.UsageError("--times computes, --plans-only does not: give one of them")
    check_reports(reported["allow"], (reported[kind] for kind in FILES))
    cases = cases_of(sources)
    try:
        with bar(f"planning {len(cases)} cases twice", at_once=True) as show:
            found = compare(
                *releases,
                cases,
                build=not no_build,
                jobs=jobs,
                progress=show,
                rounds=rounds or 0,
                observe=not plans_only,
                machine=machine,
            )
    except NotBuiltError as error:
        click.echo(f"error: {error}", err=True)
        click.get_current_context().exit(_UNTESTED)
    click.get_current_context().exit(report(found, **reported))

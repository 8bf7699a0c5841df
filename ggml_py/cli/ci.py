"""``ggml-py ci``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ..errors import ArgumentError
from .shared.bar import bar
from .shared.comparison_output import FILES, check_reports, report, report_options
from .shared.model_options import as_json
from .shared.verb import Verb


@click.command(
    "ci", cls=Verb, short_help="Compare kept plans, or a fork's plans, with what ggml plans now."
)
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
@click.option(
    "--upstream", metavar="RELEASE",
    help="The release to plan with, in place of the build that other verbs use. Without FOLDER "
    "the release to compare --source with.",
)  # fmt: skip
@click.option(
    "--source", type=click.Path(exists=True, file_okay=False), metavar="DIR",
    help="A checkout of ggml or llama.cpp to plan with, including uncommitted changes.",
)  # fmt: skip
@click.option("--update", is_flag=True, help="Keep what is planned now, to be committed.")
@report_options
@as_json
def command(
    folder: str | None,
    upstream: str | None,
    source: str | None,
    update: bool,
    jobs: int,
    no_build: bool,
    **reported: Any,
) -> None:
    """Plan natively what FOLDER keeps, and compare with the kept plans: for the CI of a project
    that changes ggml or depends on where it computes.

    FOLDER has saved plans (NAME.json.gz), records (NAME.ggrec) and cases.txt. Graphs of saved plans
    are planned again with the recorded answers. A line of cases.txt is a plan of a model:

    \b
    NAME: MODEL OPTIONS of ggml-py plan

    MODEL is a path inside of FOLDER: a header is enough. `ggml-py ci FOLDER --update` keeps its
    plan, which is committed with it.

    Without FOLDER, --source is compared with the release that it is based on. There is a small
    graph for each rule of the scheduler, as in `compare`.

    Exit status: 0 if everything is planned and all differences are named by --allow, 1 otherwise.
    After --update it is 0 if everything could be planned.

    \b
    ggml-py ci plans --update                     # once, then commit plans/
    ggml-py ci plans --source . --markdown plans.md
    ggml-py ci --source .                         # a fork that keeps no plans
    """
    from ..builds import current
    from ..releases.compare import compared
    from ..releases.kept import kept_in
    from ..releases.kept import update as write
    from ..releases.planned_cases import plans_under, prepared

    if folder is None:
        click.get_current_context().exit(_fork(upstream, source, update, jobs, no_build, reported))
    if upstream is not None and source is not None:
        raise click.UsageError("--upstream and --source exclude each other: give one of them")
    if update and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise click.UsageError(
            "--update in CI would accept whatever the plans are now: run it on your own machine, "
            "look at the changes, and commit them"
        )
    check_reports(reported["allow"], (reported[kind] for kind in FILES))
    kept = kept_in(Path(folder))
    release = upstream or (source and str(Path(source).resolve()))
    key = str(current()["key"]) if release is None else prepared(release, not no_build)
    name = release or str(current()["label"])
    works = [one.work for one in kept]
    with bar(f"planning {len(works)} cases", at_once=True) as show:
        (made,) = plans_under([key], works, jobs, show, not no_build)
    if update:
        _no_plan(works, made)
        for path in write(kept, made):
            click.echo(f"kept {path}")
        return
    found = compared("kept", name, works, [one.made for one in kept], made)
    click.get_current_context().exit(report(found, must_plan=True, **reported))


def _fork(
    upstream: str | None,
    source: str | None,
    update: bool,
    jobs: int,
    no_build: bool,
    reported: dict[str, Any],
) -> int:
    """Compares a checkout with its release. Returns the exit status."""
    from ..builds import select
    from ..releases import compare, rule_cases
    from ..releases.planned_cases import check_release, prepared
    from ..trace.rules import release_behind

    if source is None or update:
        raise click.UsageError("expected FOLDER, which has the kept plans, or --source DIR: a fork")
    check_reports(reported["allow"], (reported[kind] for kind in FILES))
    fork = str(Path(source).resolve())
    if upstream is None:
        version = str(select(prepared(fork, not no_build))["ggml_version"])
        try:
            upstream = release_behind(version).label
        except ValueError as error:
            raise ValueError(f"{source}: {error}. Name its release with --upstream") from None
    check_release(upstream)
    cases = rule_cases()
    with bar(f"planning {len(cases)} cases twice", at_once=True) as show:
        found = compare(upstream, fork, cases, build=not no_build, jobs=jobs, progress=show)
    return report(found, **reported)


def _no_plan(works: Any, made: Any) -> None:
    for work, one in zip(works, made, strict=True):
        if one.plan is None:
            raise ArgumentError(f"{work.name}: {one.error}: nothing was written")

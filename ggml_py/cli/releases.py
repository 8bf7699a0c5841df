"""``ggml-py releases``"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ..files.writing import write_whole
from ..trace.names import counted
from .shared.bar import bar
from .shared.cases import cases_of
from .shared.options import as_json, echo_json
from .shared.output import check_target

if TYPE_CHECKING:
    from ..releases.listing import BuildHere, ReleaseRow


@click.command("releases", short_help="List the releases of ggml, look for newer ones, try one.")
@click.argument("sources", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("--check", is_flag=True, help="Ask the package index for newer ones.")
@click.option(
    "--add",
    "version",
    metavar="VERSION",
    help="Try a version of --package that is not listed: download, build, compare.",
)
@click.option(
    "--package", metavar="NAME", help="xllamacpp (the default of --add) or llama-cpp-python."
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="With --add: write the report there, too.",
)
@click.option("--force", is_flag=True, help="Replace the report's FILE if it exists.")
@click.option(
    "--write",
    is_flag=True,
    help="With --add: enter it into vendor/upstream.toml and trace/rules.py at the end.",
)
@click.option("--no-suite", is_flag=True, help="With --add: do not run the tests under it.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="With --add: plans that are made at once.",
)
@as_json
def command(
    sources: tuple[str, ...],
    check: bool,
    version: str | None,
    package: str | None,
    report: str | None,
    force: bool,
    write: bool,
    no_suite: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """List the releases of ggml that can be built: package, which rules of the scheduler it
    changed, and what its build takes here. * is the default.

    --check asks the index that pip is configured for, and changes nothing. Exit status: 0 if there
    is nothing newer than what is listed, 1 if there is (or if the index cannot be asked: then
    standard error says so).

    --add downloads a version and checks its hash, looks for the place of each edit, builds it, and
    compares its headers with the default release's and its plans with the newest listed release's,
    and with the reference scheduler's. SOURCES are records and saved plans to compare besides a
    graph for each rule. Of a source tree the tests that hold under every release run under it. The
    report is Markdown, for the commit that lists the release. Only --write
    changes files of the source tree, at the very end. Exit status: 0 if every edit has its place,
    it builds, the reference makes the same plans, and no test fails; 1 otherwise.

    \b
    ggml-py releases
    ggml-py releases --check
    ggml-py releases --add 2026.4.8929 --report report.md
    """
    others = {"--report": report, "--force": force, "--write": write,
              "--no-suite": no_suite, "SOURCES": sources}  # fmt: skip
    if version is None and (given := [name for name, value in others.items() if value]):
        raise click.UsageError(f"{given[0]} goes with --add VERSION")
    if version is not None and check:
        raise click.UsageError("--check and --add exclude each other: give one of them")
    if package is not None and version is None and not check:
        raise click.UsageError("--package goes with --check or --add VERSION")
    if check:
        _check(package, as_json)
    elif version is not None:
        if report is not None:
            check_target(report, force)
        _add(package or "xllamacpp", version, sources, report, write, not no_suite, jobs, as_json)
    else:
        from ..releases.listing import listing

        rows = listing()
        if as_json:
            echo_json({"releases": [row.to_dict() for row in rows]})
        else:
            _show(rows)


def _check(package: str | None, as_json: bool) -> None:
    from ..releases.candidate import newer
    from ..trace.planned import format_bytes

    found = newer([package] if package else [])
    if as_json:
        echo_json({"packages": found})
    for one in [] if as_json else found:
        listed = one["listed"] or "none"
        n = (
            counted(len(one["newer"]), "newer source distribution")
            if one["newer"]
            else "none newer"
        )
        click.echo(f"{one['package']}: {n} (listed: {listed})")
        for offer in one["newer"]:
            size = "size unknown" if offer["size"] is None else format_bytes(offer["size"])
            day = (offer["uploaded"] or "date unknown").partition("T")[0]
            click.echo(f"  {offer['version']}  {day}  {size}  which ggml: known once downloaded")
            click.echo(f"    ggml-py releases --add {offer['version']} --package {one['package']}")
    click.get_current_context().exit(int(any(one["newer"] for one in found)))


def _add(
    package: str,
    version: str,
    sources: Sequence[str],
    report: str | None,
    write: bool,
    suite: bool,
    jobs: int,
    as_json: bool,
) -> None:
    from ..releases import rule_cases
    from ..releases.candidate import candidate, enter, must_be_a_source_tree
    from ..releases.suite import run_suite

    if write:
        must_be_a_source_tree()
    cases = rule_cases() + (cases_of(sources) if sources else [])

    with bar(f"planning {len(cases)} cases twice", at_once=False) as show:
        found = candidate(package, version, cases, jobs=jobs, progress=show)
    if suite and found.key:
        with bar(f"running the tests under {found.key}", at_once=True) as show:
            found = replace(found, suite=run_suite(found.key, show))
    text = found.report()
    if report is not None:
        write_whole(report, text.encode())
    changed = enter(found) if write else []
    if as_json:
        echo_json({**found.to_dict(), "report": text, "changed": changed})
    else:
        click.echo(text, nl=False)
        for file in changed:
            click.echo(f"entered {found.label} into {file}", err=True)
    click.get_current_context().exit(int(not found.complete))


def _show(rows: Sequence[ReleaseRow]) -> None:
    from rich.table import Table

    from ..export.to_terminal import new_console

    table = Table("release", "build", "package", "built here", "rules that it changed")
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

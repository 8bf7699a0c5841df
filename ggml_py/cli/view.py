"""``ggml-py view``"""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..files.kinds import RECORD, RUN
from ..trace.names import counted
from .shared.model_options import SAVED, SourceOption, as_json, echo_json
from .shared.output import check_output, check_target, save, say
from .shared.predicted import load_machine, machine_option, said_of
from .shared.records import choice_options, table, to_dict
from .shared.source import Source, SourceType, check_options, plans_of, with_sources
from .shared.verb import Verb

if TYPE_CHECKING:
    from ..cost import Machine
    from ..plan import Plan
    from ..record.session import Record
    from ..run import Run


@click.command("view", cls=Verb)
@click.argument("file", type=SourceType("view"))
@click.argument("others", metavar="[OTHER]...", type=SourceType("view OTHER"), nargs=-1)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    metavar="OUT",
    help="Write to OUT, in the format of its suffix.",
)
@click.option(
    "--html", type=click.Path(dir_okay=False), metavar="OUT", help="Same as -o OUT --format html."
)
@click.option("--open", "open_", is_flag=True, help="Open the page in a browser.")
@click.option("--format", "format_", metavar="NAME", help="Format, if OUT's suffix does not tell.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@choice_options
@click.option(
    "--run", "as_run", is_flag=True, cls=SourceOption, kinds=(RECORD,),
    help="Of a record: the times of its computes.",
)  # fmt: skip
@click.option(
    "--op-tests",
    "op_tests",
    type=click.Path(dir_okay=False),
    cls=SourceOption,
    kinds=(*SAVED, RECORD),
    metavar="OUT",
    help="Write the ops of the plan, or of all plans of a record, for `test-backend-ops "
    "--test-file OUT`.",
)
@machine_option
@as_json
@with_sources("file", "others")
def command(
    file: Source,
    others: tuple[Source, ...],
    output: str | None,
    html: str | None,
    open_: bool,
    format_: str | None,
    force: bool,
    as_run: bool,
    op_tests: str | None,
    machine_path: str | None,
    as_json: bool,
) -> None:
    """Show a plan as a page for a browser, or in another format.

    FILE is a plan that `ggml-py plan MODEL -o FILE` saved, or a run that `ggml-py trace MODEL -o
    FILE` saved. It may also be the log of a program that ran with GGML_SCHED_DEBUG=2 ('-' is
    standard input; llama-bench prints plans with -v only), or a record of `ggml-py record`. For a
    record without --plan or --when, this lists its plans. With OTHER, a second plan or log, the
    page shows the differences. With more of them, it lists all plans with times and memory, and
    draws the chosen one. Without an option, this prints the plan's tables, or where the run's time
    went. It needs no native library, no model and no network.

    \b
    ggml-py view plan.json.gz --open
    ggml-py view before.json.gz after.json.gz -o diff.html
    ggml-py view ngl20.json.gz ngl28.json.gz ngl36.json.gz --open
    ggml-py view log.txt -o plan.json.gz
    ggml-py view llama-bench.ggrec
    ggml-py view llama-bench.ggrec --plan 3 -o plan.html
    ggml-py view llama-bench.ggrec --run
    ggml-py view llama-bench.ggrec --op-tests ops.txt
    """
    files = [file, *others]
    if html is not None:
        if output is not None or format_ is not None:
            raise click.UsageError("--html OUT already means -o OUT --format html: give only one")
        output, format_ = html, "html"
    if output is None and format_ is not None:
        raise click.UsageError("--format needs -o OUT")
    if output is not None:
        check_output(output, format_, force)
    if as_json and (output is not None or open_):
        raise click.UsageError("--json prints: give it without -o and --open")
    if op_tests is not None:
        if as_json:
            raise click.UsageError("--op-tests writes a file: give it without --json")
        check_target(op_tests, force)
        _write_op_tests(file, op_tests)
        return
    if file.kind is RECORD and not (file.chooses or others) and _makes_page(output, format_, open_):
        check_options(file)
        if as_run:
            file.run()  # which says what is missing
        _record_page(file.record, output, open_, force, machine_path)
        return
    chosen = as_run or file.chooses or others or output or open_
    if not chosen and file.kind is RECORD:
        echo_json(to_dict(file.record)) if as_json else click.echo(table(file.record))
        return
    check_options(*files)
    run = file.run() if as_run or file.kind is RUN else None
    if run is not None and others:
        raise click.UsageError(f"{file} is a run, which cannot be compared: give it alone")
    if len(others) > 1:
        if not _makes_page(output, format_, open_):
            raise click.UsageError(f"{len(files)} plans are a page: give -o OUT.html or --open")
        _page_of_plans(files, output, open_, force, machine_path)
        return
    plans = plans_of(*files) if run is None else []
    source: Plan | Run = plans[0] if run is None else run
    machine = None if machine_path is None else load_machine(machine_path)
    if machine is not None and not (output or open_):
        raise click.UsageError("--machine adds predicted times to a page or a profile (-o, --open)")
    compared = plans[1] if others else None
    if output is not None:
        save(source, output, format_, compared, force, machine)
        click.echo(f"{output}: {_headline(source)}", err=True)
        _say_predicted(source, machine)
    if open_:
        page = output if format_ == "html" or _is_page(output) else None
        _open(source, compared, page, machine)
    if as_json:
        echo_json(source.to_json() if compared is None else plans[0].diff(compared).to_dict())
        return
    if output is None and not open_:
        from ..advice.two_plans import verdict_of_change
        from ..export.to_terminal import show, show_diff
        from ..run import Run

        if isinstance(source, Run):
            say(str(source.summary()))
        elif compared is None:
            show(source)
            if source.provenance.known:
                say(f"made with {source.provenance.text}")
        else:
            found = source.diff(compared)
            show_diff(found, verdict=verdict_of_change(source, compared, found))


def _say_predicted(source: Plan | Run, machine: Machine | None) -> None:
    """Says what the page's predicted times rest on, as `plan` does."""
    from ..plan import Plan

    if machine is not None and isinstance(source, Plan):
        for sentence in said_of(source.cost(machine)):
            click.echo(sentence, err=True)


def _makes_page(output: str | None, format_: str | None, open_: bool) -> bool:
    """Whether a page is asked for, and nothing else."""
    from ..export.formats import exporter_for

    return open_ if output is None else exporter_for(output, format_).name == "html"


def _record_page(
    record: Record, output: str | None, open_: bool, force: bool, machine_path: str | None
) -> None:
    """The page of a whole record."""
    from ..record.to_page import page

    content = page(record, None if machine_path is None else load_machine(machine_path))
    _write_page(content, counted(len(record.plans), "plan"), output, open_, force)


def _page_of_plans(
    files: Sequence[Source],
    output: str | None,
    open_: bool,
    force: bool,
    machine_path: str | None,
) -> None:
    """The page of three plans or more."""
    from ..export.page.to_html import render_plans

    names = [Path(str(file)).name for file in files]
    if len({*names}) < len(names):
        names = [str(file) for file in files]
    plans = plans_of(*files)
    for i, file in enumerate(files):
        if file.kind is RECORD:
            names[i] += f", plan {file.recorded.index}"
    machine = None if machine_path is None else load_machine(machine_path)
    content = render_plans([*zip(names, plans, strict=True)], machine)
    _write_page(content, counted(len(plans), "plan"), output, open_, force)


def _write_page(content: str, what: str, output: str | None, open_: bool, force: bool) -> None:
    """Writes the page, opens it, or both."""
    from ..files.writing import write_whole

    if output is not None:
        write_whole(output, content.encode(), force)
        click.echo(f"{output}: {what}", err=True)
    if open_:
        target = output if output is not None and _is_page(output) else _temporary()
        if target != output:
            write_whole(target, content.encode())
        _browse(target)


def _write_op_tests(file: Source, target: str) -> None:
    """Writes the ops, with the numbers of the release that a record is of."""
    from ..record.op_tests import left_out, write_op_tests

    names: dict[str, Any] = {}
    if file.kind is RECORD and not file.chooses:
        plans = [plan for _label, plan in file.plans()]
        names = {name: file.record.processes[0].head[name] for name in ("ops", "types")}
    else:
        plans = plans_of(file)
    n = write_op_tests(plans, target, **names)
    skipped = left_out(plans)
    why = f"; left out {len(skipped)}: {skipped[0].why}" if skipped else ""
    click.echo(f"{target}: {counted(n, 'op')} of {counted(len(plans), 'plan')}{why}", err=True)


def _headline(source: Plan | Run) -> str:
    from ..plan import Plan

    return source.headline() if isinstance(source, Plan) else source.summary().headline()


def _is_page(path: str | None) -> bool:
    return path is not None and path.lower().endswith((".html", ".htm"))


def _open(
    source: Plan | Run, other: Plan | None, page: str | None, machine: Machine | None
) -> None:
    """Opens the page in a browser; writes it to a temporary folder if `page` is None."""
    if page is None:
        page = _temporary()
        save(source, page, None, other, machine=machine)
    _browse(page)


def _temporary() -> str:
    return str(Path(tempfile.mkdtemp(prefix="ggml-py-")) / "plan.html")


def _browse(page: str) -> None:
    where = Path(page).resolve().as_uri()
    if not webbrowser.open(where):
        click.echo(f"no browser could be started; the page is {where}", err=True)

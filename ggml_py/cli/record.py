"""``ggml-py record``"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..files.kinds import in_command
from ..files.sizes import parse_size
from ..trace.names import counted
from .shared.model_options import as_json, echo_json
from .shared.program_options import models_in
from .shared.verb import Verb

if TYPE_CHECKING:
    from ..record.programs.identify import Recorder
    from ..trace.provenance import DeviceMade

_SUFFIX = ".ggrec"


class _Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: 500M, 2G."""

    name = "size"

    def convert(self, value: Any, parameter: Any, context: Any) -> int:
        """The number; a usage error for anything else."""
        if isinstance(value, int):
            return value
        found = parse_size(value)
        if not found:
            self.fail(f"{value!r} is no size: expected a number with K, M or G, like 500M")
        return found


@click.command(
    "record",
    cls=Verb,
    short_help="Record what the scheduler of any program does.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Where to write. Default: the program's name with .ggrec, here.",
)
@click.option("--run", is_flag=True, help="Record computes too, with times.")
@click.option(
    "-d",
    "--device",
    "devices",
    multiple=True,
    metavar="sim:NAME,...",
    help="Give the program a simulated device too, as in sim:gpu0,profile=cuda. May be repeated.",
)
@click.option(
    "--max-size",
    type=_Size(),
    default="1G",
    show_default=True,
    help="Most bytes of a process's record; what does not fit is counted.",
)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Look at every Nth plan of a scheduler only, and with --run time every Nth compute.",
)
@click.option(
    "--first",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write the first N different plans only.",
)
@click.option("-q", "--quiet", is_flag=True, help="No line for each new plan on standard error.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--upstream",
    metavar="RELEASE",
    help="The program's release of ggml, if it is not the one that it says.",
)
@click.option(
    "--library",
    type=click.Path(exists=True, dir_okay=False),
    metavar="LIB",
    help="The library with the program's ggml, if it is not found.",
)
@click.option(
    "-D",
    "defines",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting that the program's ggml was built with, as in GGML_SCHED_MAX_COPIES=8.",
)
@click.option("--no-build", is_flag=True, help="Build nothing for that release.")
@click.option(
    "--env",
    "as_environment",
    is_flag=True,
    help="Run nothing: print the variables that make PROGRAM, a service or a container "
    "record itself into the folder of -o.",
)
@click.option(
    "--of",
    "of",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="List the plans of the records in a folder.",
)
@as_json
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def command(
    output: str | None,
    quiet: bool,
    force: bool,
    upstream: str | None,
    library: str | None,
    no_build: bool,
    as_environment: bool,
    of: str | None,
    as_json: bool,
    devices: tuple[str, ...],
    defines: tuple[str, ...],
    program: tuple[str, ...],
    **what: Any,
) -> None:
    """Record what the scheduler of any program does: each plan that it makes, and why.

    PROGRAM is one that has ggml in shared libraries: llama.cpp's, whisper.cpp's and others, or a
    Python or node script that uses a package with ggml. It runs unchanged, with an instrumented
    copy of its own release's ggml-base before its own. Each plan is written once, with how often it
    was made and computed; a line on standard error says what is new. The verbs view, plan, explain,
    why-not, diff and sweep take the record, on any machine.

    \b
    ggml-py record -- llama-bench -m model.gguf
    ggml-py record -o whisper.ggrec -- python transcribe.py
    ggml-py view llama-bench.ggrec
    ggml-py explain llama-bench.ggrec ffn_out-3 --when decode
    eval "$(ggml-py record --env -o /var/tmp/plans -- llama-server)"
    ggml-py record --of /var/tmp/plans
    """
    if of is not None:
        if program or output:
            raise click.UsageError("--of lists what was recorded: it takes no PROGRAM and no -o")
        _list(of, as_json)
        return
    if not program:
        raise click.UsageError("give the program to record: ggml-py record -- PROGRAM ARGS...")
    if as_json:
        raise click.UsageError("--json goes with --of: a record is read with `ggml-py view --json`")
    from ..record.programs import launch

    options = launch.RecordOptions(
        run=what["run"], quiet=quiet, max_size=what["max_size"], every=what["every"],
        first=what["first"] or 0,
    )  # fmt: skip
    sims: str | None = None
    made_of: Sequence[DeviceMade] = ()
    if devices:
        from ..record.programs.sim_devices import sims_made, sims_text

        sims = sims_text(devices)  # before anything is built: it may be refused
        made_of = sims_made(devices)
    recorder = _recorder(program, upstream, library, not no_build, defines, as_environment)
    given = None
    if sims:
        from ..record.programs.identify import simulator_for

        given = simulator_for(recorder, not no_build), sims
    from ..record.program_facts import made_at_start

    made = made_at_start(program, os.environ, made_of)
    if as_environment:
        _print_environment(recorder, output, options, given, made)
        return
    _say_without_weights(program)
    path = Path(output) if output else _free_name(program[0])
    launch.new_file(path, force)
    target = str(path.absolute())
    variables = launch.environment(recorder, target, options, os.environ, given, made)
    try:
        status = launch.run(program, variables)
    except BaseException:
        _remove_empty(path)
        raise
    # The program's status counts, whatever became of the record or of who reads our lines.
    with contextlib.suppress(OSError):
        said = _ended(path)
        _remove_empty(path)
        if not quiet or not path.exists():
            _tell(said)
    launch.end_as(status)


def _say_without_weights(program: Sequence[str]) -> None:
    """Says that the model of a program of llama.cpp has no weights, before the program fails."""
    from ..errors import GgufError
    from ..gguf.header_file import check_has_weights
    from ..gguf.reader import Gguf

    for model in models_in(program):
        if not Path(model).is_file():
            continue
        try:
            with Gguf.open(model) as gguf:
                check_has_weights(gguf)
        except GgufError as error:
            click.echo(f"note: {error}", err=True)


def _recorder(
    program: Sequence[str],
    upstream: str | None,
    library: str | None,
    build: bool,
    defines: Sequence[str],
    any_program: bool,
) -> Recorder:
    """The recorder that is put in front of the program. Prints doubts about its release."""
    from ..record.programs.find import find, opens_libraries
    from ..record.programs.identify import NotAskedError, recorder_for

    if library is not None:
        libraries = [Path(library).absolute()]
    else:
        libraries = list(dict.fromkeys(found.library for found in find(program, os.environ)))
    known: dict[Path, Recorder] = {}
    refused: list[NotAskedError] = []
    for lib in libraries:
        try:
            known[lib] = recorder_for(lib, upstream, build, defines)
        except NotAskedError as error:  # one for devices or a C library that are not here
            refused.append(error)
    if not known:
        raise refused[0]
    if len({r.plain for r in known.values()}) > 1:
        listed = "".join(f"\n  {lib} (ggml {r.release})" for lib, r in known.items())
        raise click.UsageError(
            f"{program[0]} may use any of these, which are of several releases: name the one that "
            f"it uses with --library{listed}"
        )
    recorder = next(iter(known.values()))
    # Who asks a library for functions itself (ctypes, dlsym) has to find ours under its name. Then
    # a program of another release cannot be told: so only for interpreters, and one name.
    one_name = len({r.library for r in known.values()}) == 1
    if any_program or not one_name or not opens_libraries(program, os.environ):
        recorder = recorder._replace(library=recorder.plain)
    if recorder.doubt:
        _tell(recorder.doubt)
    return recorder


def _print_environment(
    recorder: Recorder,
    output: str | None,
    options: Any,
    sims: tuple[Path, str] | None,
    made: dict[str, Any],
) -> None:
    from ..record.programs import launch

    if output is None:
        raise click.UsageError("--env needs -o DIR, the folder for a file of each process")
    folder = Path(output).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    found = launch.environment(recorder, f"{folder}/", options, os.environ, sims, made)
    for name, value in found.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _free_name(program: str) -> Path:
    """A name in this folder that no file has."""
    stem = Path(program).name
    names = (f"{stem}{'' if i == 1 else f'-{i}'}{_SUFFIX}" for i in range(1, 10_000))
    return next(Path(name) for name in names if not Path(name).exists())


def _ended(path: Path) -> str:
    """The result of recording, in a line."""
    from ..record.session import Record

    if not path.exists():
        return f"{path} was moved or removed while the program ran"
    size = path.stat().st_size
    if not size:
        return (
            "no scheduler planned a graph: nothing was recorded. If the program has ggml linked in "
            "statically or starts it on another machine, it cannot be recorded so"
        )
    try:
        record = Record.read(path)
    except ValueError as error:
        return str(error)
    return (
        f"{path}: {counted(len(record), 'plan')} of {counted(len(record.processes), 'process')}, "
        + in_command(f"{size:,} bytes; `ggml-py view {{path}}` lists them", path)
    )


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        if not path.stat().st_size:
            path.unlink()


def _list(folder: str, as_json: bool) -> None:
    from .shared.records import read_record, table, to_dict

    paths = sorted(Path(folder).glob(f"*{_SUFFIX}"))
    if not paths:
        raise click.UsageError(f"{folder} has no records (files with {_SUFFIX})")
    data: dict[str, Any] = {}
    for path in paths:
        try:
            record = read_record(str(path))
        except (ValueError, OSError) as error:  # the others are listed all the same
            click.echo(str(error), err=True)
            continue
        data[str(path)] = to_dict(record)
        if not as_json:
            click.echo(f"{path}\n{table(record)}")
    if as_json:
        echo_json(data)


def _tell(text: str) -> None:
    """A line on standard error, whose reader may be gone: the program starts all the same."""
    with contextlib.suppress(OSError):
        click.echo(f"ggml-py record: {text}", err=True)

"""``ggml-py place``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..trace.units import format_rate
from .shared.bar import bar
from .shared.model_options import ModelCommand, as_json, echo_json
from .shared.output import say
from .shared.predicted import load_machine
from .shared.source import Source, as_given, check_options, planning_options

if TYPE_CHECKING:
    from ..place import Placed, Way, Workload
    from ..place.measure import Measured

_MEASURED = 3  # of the quickest ways, beside the given one
_OF_ONE = ("n_prompt", "n_gen", "n_depth", "n_parallel")  # workload


@click.command(
    "place", cls=ModelCommand, short_help="Find the flags with which MODEL is quickest here."
)
@planning_options("place")
@click.option("--machine", "machine_paths", multiple=True, type=click.Path(dir_okay=False),
              metavar="FILE", help="What `ggml-py calibrate` wrote. May be repeated: files with "
              "other numbers of threads let it choose among them.")  # fmt: skip
@click.option("--prompt", "n_prompt", type=click.IntRange(min=0), default=512, show_default=True,
              metavar="N", help="Tokens of a request's prompt.")  # fmt: skip
@click.option("--gen", "n_gen", type=click.IntRange(min=0), default=128, show_default=True,
              metavar="N", help="Tokens that are generated after it.")  # fmt: skip
@click.option("--depth", "n_depth", type=click.IntRange(min=0), default=0, show_default=True,
              metavar="N", help="Tokens in the cache before the prompt.")  # fmt: skip
@click.option("--parallel", "n_parallel", type=click.IntRange(min=1), default=1,
              show_default=True, metavar="N", help="Sequences that generate together.")  # fmt: skip
@click.option("--workload", "workloads", multiple=True, metavar="TEXT",
              help="A mix instead, one option for each: prompt=2000,gen=300,depth=0,parallel=4,"
              "weight=2.")  # fmt: skip
@click.option("--cache-types", default="", metavar="TYPE,...",
              help="Types of the KV cache that it may choose, besides -ctk and -ctv.")  # fmt: skip
@click.option("--reserve", type=click.IntRange(0, 1 << 24), default=1024, show_default=True,
              metavar="MiB", help="Memory that stays free on each device.")  # fmt: skip
@click.option("--plans", type=click.IntRange(min=1), default=400, show_default=True, metavar="N",
              help="Graphs that are planned at most.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0.0, min_open=True), metavar="S",
              help="Try nothing more after this time.")  # fmt: skip
@click.option("--measure", "measuring", is_flag=True,
              help="Run llama-bench with the quickest few and with the flags given, and decide by "
              "the measurements.")  # fmt: skip
@click.option("--llama-bench", "program", metavar="FILE",
              help="The llama-bench to measure with. Default: upstream's of this release, which "
              "`ggml-py build --reference` builds.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=2), default=5, show_default=True, metavar="N",
              help="With --measure: how often each is run, in turns.")  # fmt: skip
@as_json
def command(
    model: Source,
    machine_paths: tuple[str, ...],
    n_prompt: int,
    n_gen: int,
    n_depth: int,
    n_parallel: int,
    workloads: tuple[str, ...],
    cache_types: str,
    reserve: int,
    plans: int,
    seconds: float | None,
    measuring: bool,
    program: str | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Find the quickest flags for llama-server with MODEL on a calibrated machine, or confirm the
    given flags.

    It plans the model as libllama does, with other layers, experts and groups of tensors on the
    devices, and with other threads, batches and caches. It leaves out plans that do not fit, and
    predicts the time of the others. A gain within the error of the prediction is none. Only the
    header of the model is read.

    \b
    ggml-py calibrate -t 4 -o t4.json; ggml-py calibrate -t 8 -o t8.json
    ggml-py place model.gguf --machine t4.json --machine t8.json --prompt 2000 --gen 300
    ggml-py place model.gguf -ngl 20 --machine t8.json --parallel 4 --cache-types q8_0
    ggml-py place model.gguf --machine t8.json --measure
    """
    from ..place import Flags, place
    from ..place.measure import find_program, refusal

    check_options(model)
    if not machine_paths:
        raise click.UsageError(
            "place needs --machine FILE, which `ggml-py calibrate -o FILE` writes once for a "
            "machine and a number of threads"
        )
    options = model.options
    if options["graphs"] == "ours":
        raise click.UsageError("place plans with libllama: not with --graphs ours")
    given = model.flags(only_given=True)
    devices = model.devices()
    if workloads and (both := [f"--{n[2:]}" for n in _OF_ONE if _is_given(n)]):
        raise click.UsageError(f"{', '.join(both)}: part of --workload, if that is given")
    work = _workloads(workloads, n_prompt, n_gen, n_depth, n_parallel)
    bench = None
    if measuring:
        if why := refusal(work, devices, model.path, Flags.of(given)):
            raise click.UsageError(f"--measure: {why}")
        bench = find_program(program)
    machines = [load_machine(path) for path in machine_paths]
    with bar("planning", not as_json) as show:
        found = place(
            model.path, machines, devices, work, given=given, n_ctx=options["n_ctx"],
            cache_types=[t for t in cache_types.split(",") if t], reserve=reserve << 20,
            plans=plans, seconds=seconds, build=not options["no_build"], progress=show,
        )  # fmt: skip
    failure = ""
    if bench is not None:
        try:
            found = _measured(found, str(bench), work, devices, rounds, as_json)
        except ChildProcessError as error:
            failure = str(error)
    echo_json(_data(found)) if as_json else _show(found)
    if failure:
        raise ChildProcessError(f"nothing was measured: {failure}")


def _is_given(name: str) -> bool:
    """Whether the command line has it."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def _workloads(
    texts: tuple[str, ...], n_prompt: int, n_gen: int, n_depth: int, n_parallel: int
) -> list[Workload]:
    from ..place import Workload

    try:
        if texts:
            return [Workload.parse(text) for text in texts]
        return [Workload(n_prompt, n_gen, n_depth, n_parallel)]
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _measured(
    found: Placed, program: str, work: list[Workload], devices: Any, rounds: int, quiet: bool
) -> Placed:
    from pathlib import Path

    from ..place.measure import measure, refusal

    ways = [
        way for way in found.candidates(_MEASURED)
        if not refusal(work, devices, found.model, way.flags)
    ]  # fmt: skip
    if len(ways) <= 1 or ways[0] is not found.given:
        why = (
            found.given.why_not if ways and ways[0] is not found.given else "no other way is known"
        )
        click.echo(f"nothing was measured: {why}", err=True)
        return found
    failed: list[str] = []
    with bar("measuring with llama-bench", not quiet, at_once=True) as show:
        measured = measure(
            Path(program), found.model, ways, work, devices, found.n_layer, rounds, show,
            lambda way, why: failed.append(f"not measured: {way.flags}: {why}"),
        )  # fmt: skip
    for text in failed:
        click.echo(text, err=True)
    return found.decided(measured)


def _show(found: Placed) -> None:
    say(found.verdict.text)
    if found.verdict.reason:
        say(f"why: {found.verdict.reason}")
    click.echo()
    rows = [("given", found.given)]
    if found.fit is not None:
        rows.append(("--fit", found.fit))
    if not found.verdict.keep:
        rows.append(("found", found.chosen))
    if found.runner_up is not None:
        quicker = found.runner_up.seconds < found.chosen.seconds
        rows.append(("quickest" if quicker else "runner-up", found.runner_up))
    click.echo(f"{'':10} {'prompt t/s':>24} {'gen t/s':>24}  flags")
    for name, way in rows:
        click.echo(f"{name:10} {_rates(way, 'prompt'):>24} {_rates(way, 'gen'):>24}  {way.flags}")
    for one in found.measured:
        rates = ", ".join(f"{name} {rate:.1f} t/s" for name, rate in one.rows.items())
        click.echo(f"measured   {rates}: {one.way.flags}")
    click.echo()
    if line := found.server_line():
        click.echo(f"to run: {as_given(line)}")
    for line in found.bench_lines():
        click.echo(f"to verify: {as_given(line)}")
    click.echo()
    for device, size in found.chosen.used.items():
        click.echo(f"memory on {device}: {size / 2**20:.0f} MiB")
    click.echo(f"kept free on each device: {found.reserve / 2**20:.0f} MiB")
    ended = f"; ended early: {found.ended}" if found.ended else ""
    say(f"tried {found.n_tried} ways with {found.n_plans} plans{ended}")
    for sentence in (*_assumed(found), *(f"doubt: {doubt}" for doubt in found.doubts)):
        say(sentence)


def _rates(way: Way, phase: str) -> str:
    """Tokens per second with the interval, of the first workload."""
    if not way.usable or not way.parts:
        return "not known"
    rates = way.parts[0].tokens_per_second()
    if phase not in rates:
        return "-"
    rate, low, high = rates[phase]
    return format_rate(rate, (low, high))


def _assumed(found: Placed) -> list[str]:
    """Assumptions behind the times of the chosen way and of the ways compared with it."""
    ways = (found.chosen, found.given, found.fit, found.runner_up)
    parts = (part for way in ways if way is not None for part in way.parts)
    rows = (row for part in parts for row in (part.prompt, part.gen) if row)
    return list(dict.fromkeys(said for row in rows for said in row.assumed))


def _data(found: Placed) -> dict[str, Any]:
    return {
        "keep": found.verdict.keep,
        "text": found.verdict.text,
        "reason": found.verdict.reason,
        "certain_from": found.verdict.certain_from,
        "command": as_given(found.server_line()) or None,
        "verify": [as_given(line) for line in found.bench_lines()],
        "reserve": found.reserve,
        "chosen": _way(found, found.chosen),
        "given": _way(found, found.given),
        "fit": _way(found, found.fit) if found.fit else None,
        "runner_up": _way(found, found.runner_up) if found.runner_up else None,
        "measured": [_one(one) for one in found.measured],
        "n_tried": found.n_tried,
        "n_plans": found.n_plans,
        "ended": found.ended,
        "assumed": _assumed(found),
        "doubts": list(found.doubts),
    }


def _way(found: Placed, way: Way) -> dict[str, Any]:
    return {
        "flags": str(way.flags),
        "command": as_given(found.server_line(way)) or None,
        "options": {k: v for k, v in way.flags.options.items() if v is not None},
        "usable": way.usable,
        "why_not": way.why_not,
        "seconds": way.seconds if way.usable else None,
        "workloads": [
            {"workload": str(part.workload), "seconds": part.seconds,
             "tokens_per_second": {name: _rate(*rates)
                                   for name, rates in part.tokens_per_second().items()}}
            for part in (way.parts if way.usable else ())
        ],
        "memory": way.used,
        "lacks": dict(way.lacks),
    }  # fmt: skip


def _rate(rate: float, low: float, high: float) -> dict[str, Any]:
    return {"predicted": rate, "interval": [low, None if high == float("inf") else high]}


def _one(one: Measured) -> dict[str, Any]:
    return {"flags": str(one.way.flags), "seconds": list(one.seconds), "rows": one.rows}

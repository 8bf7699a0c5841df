"""``ggml-py check``"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from ..files.kinds import LOG, RECORD, RUN, in_command
from .shared.model_options import (
    SHAPE_OPTIONS,
    ModelCommand,
    add_options,
    as_json,
    echo_json,
    load_options,
    same_of,
)
from .shared.predicted import Predictions, machine_option
from .shared.program_options import bench_tests
from .shared.records import choice_options
from .shared.remedies import Remedies
from .shared.source import Source, SourceType, check_options, with_sources
from .shared.this_machine import ThisMachine, this_machine

if TYPE_CHECKING:
    from ..advice.checkup import Checkup, Phase
    from ..plan import Plan
    from ..run import Run
    from ..trace.answers.remedy import Remedy

_LOOKING_S = 2.5  # for options that make a model quicker
_KINDS = ("decode", "prompt", "other", "reserved")  # of a record's plans, as they are looked at


def _arguments(function: Any) -> Any:
    function = choice_options(with_sources("what", "other")(function))
    function = load_options(add_options(function, SHAPE_OPTIONS))
    for name in ("other", "what"):
        function = click.argument(name, required=False, type=SourceType("check"))(function)
    return click.option("-m", "--model", "_model", expose_value=False, metavar="MODEL",
                        help="Another way to give WHAT, as in llama.cpp.")(function)  # fmt: skip


@click.command(
    "check", cls=ModelCommand, short_help="Say in twenty lines why WHAT is slow and what helps."
)
@_arguments
@machine_option
@click.option("--markdown", is_flag=True, help="Print Markdown, for an issue.")
@as_json
def command(
    what: Source | None,
    other: Source | None,
    machine_path: str | None,
    markdown: bool,
    as_json: bool,
) -> None:
    """Say in twenty lines why WHAT is slow, with the cost of each reason, and how to mend it.

    WHAT is a model, the command line of a program of llama.cpp behind --, a plan, a record, a run,
    or a log with GGML_SCHED_DEBUG=2 prints. With OTHER it says why OTHER is slower. Without both
    it looks at this machine.

    Figures are measured, predicted from a calibration (--machine), by data sheets, or bytes only.
    Options of a model are tried for three seconds; `plan --advice` looks at all of them.

    Exit status: 0 if nothing needs a change, 1 if something does. An error is 1, too, but prints
    nothing on standard output.

    \b
    ggml-py check
    ggml-py check model.gguf -d sim:gpu0,profile=rtx4090 -ngl 20 -c 8192
    ggml-py check -d sim:gpu0,profile=rtx4090 -- llama-server -m model.gguf -ncmoe 20
    ggml-py check llama-server.ggrec
    ggml-py check before.json.gz after.json.gz
    """
    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other: give one of them")
    found: Checkup | ThisMachine
    if what is None:
        found = this_machine()
    else:
        # A command line behind -- was typed last.
        sources = [what] if other is None else [other, what] if what.words else [what, other]
        check_options(*sources)
        predictions = Predictions(machine_path)
        found = _answer(sources, predictions)
    if as_json:
        echo_json(found.to_dict())
    elif isinstance(found, ThisMachine):
        click.echo(found.markdown() if markdown else "\n".join(found.lines()))
    else:
        from ..export.checkup_text import lines, markdown_of

        click.echo(markdown_of(found) if markdown else "\n".join(lines(found)))
    click.get_current_context().exit(int(found.is_wrong))


def _answer(sources: Sequence[Source], predictions: Predictions) -> Checkup:
    from ..advice.two_plans import versus

    first, *others = (_checked(source, predictions) for source in sources)
    return versus(first, others[0]) if others else first


def _checked(source: Source, predictions: Predictions) -> Checkup:
    from ..advice.checkup import checkup
    from ..trace.answers.remedy import remedy_of
    from ..trace.answers.why_splits import why_splits

    if source.is_model:
        return _of_model(source, predictions)
    if source.kind is RUN:
        phases = [_of_run(source.run(), predictions)]
    elif source.kind is RECORD and not source.chooses:
        phases = list(_of_record(source, predictions))
    else:
        phases = [_phase(source.plan(), predictions)]
    plan = phases[0].plan
    remedy = None if source.kind is LOG else remedy_of(plan, why_splits(plan))
    more = (
        in_command("ggml-py plan {path} --advice", source),
        in_command("ggml-py view {path} --open", source),
    )
    return checkup(phases, best=remedy, more=more, is_tried=False)


def _of_model(source: Source, predictions: Predictions) -> Checkup:
    from ..advice.checkup import Phase, checkup
    from ..errors import ModelError
    from ..place.candidates import simplest
    from ..plan import Plan

    remedies = Remedies(source, predictions, _LOOKING_S)
    judge = remedies.judge
    if judge.given.refused:
        raise ModelError(judge.given.refused)
    measures = judge.given.measures
    phases = []
    for i, (shape, measure) in reversed([*enumerate(zip(judge.shapes, measures, strict=True))]):
        plan = Plan.of(measure.plan)
        findings = predictions.advice(plan)
        findings = findings if judge.lacks else remedies.judged(findings, i)
        n = shape.n_tokens * shape.n_seqs
        phases.append(Phase(str(shape), n, plan, findings, measure.cost))
    if judge.lacks:
        best, is_late = min(remedies.fitting(), key=_after, default=None), False
    else:
        mended = (one.remedy for phase in phases for one in phase.findings if one.remedy)
        best, is_late = simplest([*remedies.found(), *mended]), judge.is_late
    alone = click.get_current_context().params.get("other") is None
    more = tuple(
        (same_of(verb) if alone else "") or in_command(f"ggml-py {verb} {{path}}", source)
        for verb in (*(() if judge.lacks else ("plan",)), "memory")
    )
    markdown = click.get_current_context().params["markdown"]  # is pasted into issues: no folders
    path = "" if markdown else str(source.path)
    return checkup(phases, judge.lacks, best, is_late, more, model=path, tests=bench_tests())


def _after(remedy: Remedy) -> float:
    """Seconds with the change."""
    return remedy.seconds[1] if remedy.seconds else float("inf")


def _phase(
    plan: Plan,
    predictions: Predictions,
    what: str = "",
    n_tokens: int | None = None,
    measured: float | None = None,
) -> Phase:
    from ..advice.checkup import phase_of

    findings = predictions.advice(plan)
    return phase_of(plan, findings, predictions.cost(plan), measured, what, n_tokens)


def _of_record(source: Source, predictions: Predictions) -> Iterator[Phase]:
    """The plans that were computed most, of two kinds at most."""
    record = source.record
    found = [plans[0] for kind in _KINDS if (plans := record.find(kind))]
    if not found:
        raise ValueError(f"{source}: the record has no plan that can be read")
    for one in found[:2]:
        run = one.process.run if one.process.runs else None
        measured = None if run is None else _measured(run, one.plan)
        yield _phase(one.plan, predictions, one.label, one.n_tokens, measured)


def _of_run(run: Run, predictions: Predictions) -> Phase:
    index, _computes = run.most_computed()
    return _phase(run.plans[index], predictions, measured=_measured(run, run.plans[index]))


def _measured(run: Run, plan: Any) -> float | None:
    """Seconds from one compute of a plan to the next, the median; of a single one its own. None if
    nodes were computed one by one, or never."""
    if run.per_op:
        return None
    pairs = [(a, b) for a, b in pairwise(run.computes) if a.plan is plan and b.plan is plan]
    lasted = [b.event.start - a.event.start for a, b in pairs]
    lasted = lasted or [c.end - c.event.start for c in run.computes if c.plan is plan]
    return statistics.median(lasted) * 1e-9 if lasted else None

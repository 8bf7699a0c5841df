"""``ggml-py plan``"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..trace.passes import PASS_NAMES, has_leaf_passes
from .options import ModelCommand, as_json, echo_json
from .output import check_output, save
from .source import get_plan, source_options
from .what_if import FORMS, Change, ChangeType, changed

if TYPE_CHECKING:
    from ..trace.plan import Plan, PlanTensor


@click.command("plan", cls=ModelCommand, epilog=FORMS)
@source_options("model")
@click.option("-v", "--verbose", is_flag=True, help="Print every node and why it is where it is.")
@click.option("--text", is_flag=True, help="Print upstream's GGML_SCHED_DEBUG=2 layout.")
@click.option("--passes", is_flag=True, help="Print the assignment after each pass and sweep.")
@click.option("--steps", is_flag=True, help="Print every question and decision, in order.")
@click.option("--advice", is_flag=True, help="Print what you may want to change.")
@click.option(
    "--what-if",
    "changes",
    type=ChangeType(),
    multiple=True,
    metavar="CHANGE",
    help="Plan under other circumstances, and print what becomes different. Repeat.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the plan to FILE: .json (read again by all verbs), .html, ...; .gz after it.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@as_json
def command(
    model: str,
    verbose: bool,
    changes: tuple[Change, ...],
    output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show how MODEL's graph is split over the devices, without computing it.

    MODEL may also be a plan that -o saved, or a log of a program that ran with GGML_SCHED_DEBUG=2
    ('-': standard input). With --what-if everything that is printed or saved is the plan as it
    would be. --json prints the plan, or of --what-if, --text, --passes, --steps and --advice what
    is asked for, each under its name.

    \b
    ggml-py plan model.gguf -d sim:gpu0,min_batch=32 -d CPU -ngl 20
    ggml-py plan model.gguf -ngl 20 -o plan.json.gz
    ggml-py plan plan.json.gz -o plan.html
    ggml-py plan plan.json.gz --what-if move:'blk.3.*'=CUDA0 --what-if op_offload=off
    ggml-py plan plan.json.gz --passes --advice
    """
    parts = [name for name in PARTS if options.pop(name)]
    if output is not None:
        check_output(output, force=force)
    before = get_plan(model, **options)
    plan = changed(before, changes) if changes else before
    if output is not None:
        save(plan, output, force=force)
        click.echo(f"{output}: {plan.headline()}", err=True)
    if as_json:
        data = {name: PARTS[name].data(plan) for name in parts}
        if changes:
            diff = before.diff(plan).to_dict()
            data = {"what_if": {"changes": [c.text for c in changes], "diff": diff}, **data}
        echo_json(data or plan.to_json())
        return
    from ..export.to_terminal import show, show_diff

    if changes:
        click.echo(f"What if {', '.join(c.text for c in changes)}:")
        show_diff(before.diff(plan), limit=None if verbose else 20)
    elif verbose or not (parts or output):
        show(plan, nodes=verbose)
    for name in parts:
        PARTS[name].show(plan)


# --- the parts


class Part(NamedTuple):
    """What can be asked for besides the splits: as data, and on a terminal."""

    data: Callable[[Plan], Any]
    show: Callable[[Plan], None]


def _passes(plan: Plan) -> dict[str, Any]:
    """The backend of each node after each pass and sweep, and under "leafs" that of each leaf."""
    names = {i: backend.name for i, backend in enumerate(plan.backends)}

    def stages(tensors: tuple[PlanTensor, ...]) -> dict[str, list[str | None]]:
        return {
            stage: [names.get(t.placement.passes[row]) for t in tensors]
            for row, stage in enumerate(PASS_NAMES)
        }

    leafs = stages(plan.leafs) if has_leaf_passes(plan) else None
    return {**stages(plan.nodes), "leafs": leafs}


def _show_passes(plan: Plan) -> None:
    from ..export.to_terminal import show_passes

    show_passes(plan)


def _show_steps(plan: Plan) -> None:
    for step in plan.steps:
        click.echo(str(step))


def _show_advice(plan: Plan) -> None:
    findings = plan.advice()
    for finding in findings:
        click.echo(str(finding))
    if not findings:
        click.echo("nothing to advise")


PARTS = {
    "text": Part(lambda plan: plan.text(), lambda plan: click.echo(plan.text(), nl=False)),
    "passes": Part(_passes, _show_passes),
    "steps": Part(lambda plan: [step.to_dict() for step in plan.steps], _show_steps),
    "advice": Part(lambda plan: [found.to_dict() for found in plan.advice()], _show_advice),
}

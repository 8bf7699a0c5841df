"""``ggml-py plan``"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..trace.answers.passes import PASS_NAMES, check_has_passes, has_leaf_passes
from .shared.measured_run import analyze as show_misses
from .shared.measured_run import analyze_option
from .shared.model_options import ModelCommand, as_json, echo_json
from .shared.output import check_output, save, say
from .shared.predicted import Predictions, machine_option
from .shared.remedies import Remedies
from .shared.source import Source, source_options
from .shared.what_if_options import FORMS, Assumption, ChangeType, changed

if TYPE_CHECKING:
    from ..export.page.first_screen import ModelAnswers
    from ..memory.shortfalls import Shortfall
    from ..plan import Plan
    from ..trace.answers.remedy import Remedy
    from ..trace.answers.why_splits import WhySplits
    from ..trace.planned import PlanTensor


@click.command(
    "plan",
    cls=ModelCommand,
    epilog=FORMS,
    short_help="Show how MODEL's graph is split over the devices, and why.",
)
@source_options("model")
@click.option("-v", "--verbose", is_flag=True, help="Print every node and why it is where it is.")
@click.option("--text", is_flag=True, help="Print upstream's GGML_SCHED_DEBUG=2 layout.")
@click.option("--passes", is_flag=True, help="Print the assignment after each pass and sweep.")
@click.option("--steps", is_flag=True, help="Print every question and decision, in order.")
@click.option("--order", is_flag=True, help="Print the order in which nodes are computed.")
@click.option("--cpu", is_flag=True, help="Print threads, memory and kernels of the CPU's nodes.")
@click.option("--advice", is_flag=True, help="Print what you may want to change.")
@click.option(
    "--what-if",
    "changes",
    type=ChangeType(),
    multiple=True,
    metavar="CHANGE",
    help="Plan with something changed, and print what differs. May be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the plan to FILE: .json (for other verbs), .html, ...; add .gz to compress.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@machine_option
@analyze_option
@as_json
def command(
    model: Source,
    verbose: bool,
    changes: tuple[Assumption, ...],
    output: str | None,
    force: bool,
    machine_path: str | None,
    analyze: bool,
    as_json: bool,
    **asked: bool,
) -> None:
    """Show how MODEL's graph is split over the devices, without computing it.

    MODEL may also be a plan that -o saved, or the log of a program that ran with GGML_SCHED_DEBUG=2
    ('-' is standard input). llama-bench prints plans with -v only, other programs with -lv 5. The
    command line of llama-server, llama-cli, llama-completion, llama-bench, ... behind -- is read
    as that program does, and planned on the devices of -d.

    With --what-if, everything printed or saved is the changed plan. --json prints the plan,
    or only the answers to --text, --passes, --steps, --order, --cpu, --advice and --what-if, each
    under its name. With --machine, the graph's time is predicted, before and after a change.

    \b
    ggml-py plan model.gguf -d sim:gpu0,min_batch=32 -d CPU -ngl 20
    ggml-py plan model.gguf -ngl 20 -o plan.json.gz
    ggml-py plan plan.json.gz -o plan.html
    ggml-py plan plan.json.gz --what-if move:'blk.3.*'=CUDA0 --what-if op_offload=off
    ggml-py plan plan.json.gz --passes --advice
    ggml-py plan -d sim:gpu0,profile=rtx4090 -- llama-server -m model.gguf -ot exps=CPU
    """
    if analyze:
        show_misses(model, machine_path, as_json)
        return
    parts = [name for name in PARTS if asked[name]]
    if output is not None:
        check_output(output, force=force)
    predictions = Predictions(machine_path)
    before = plan = model.plan()
    if changes:
        plan = changed(before, changes, model.what_if if model.is_model else None)
    elif model.is_model:
        predictions.remedies = Remedies(model, predictions)
    if output is not None:
        tried = _tried(plan, predictions, output)
        save(plan, output, force=force, machine=predictions.machine, tried=tried)
        click.echo(f"{output}: {plan.headline()}", err=True)
    if as_json:
        data = {name: PARTS[name].data(plan, predictions) for name in parts}
        if "advice" in parts and (short := _shortfalls(predictions)) is not None:
            data["shortfalls"] = short
        if changes:
            promise = {"whose": plan.promise.whose, "text": plan.promise.text}
            told = {"changes": [c.text for c in changes], "promise": promise}
            data = {"what_if": {**told, "diff": before.diff(plan).to_dict()}, **data}
        if not data:
            why, remedy = _answer(plan, predictions)
            answer = {
                "verdict": _verdict(plan, predictions, remedy),
                **why.to_dict(),
                "remedy": None if remedy is None else remedy.to_dict(),
                "shortfalls": _shortfalls(predictions),
            }
            data = {**plan.to_json(), "why": answer}
        echo_json({**data, **predictions.data(plan, before if changes else None)})
        return
    from ..export.to_terminal import show, show_diff

    if changes:
        click.echo(f"What if {', '.join(c.text for c in changes)}:")
        show_diff(before.diff(plan), limit=None if verbose else 20)
        say(plan.promise.text)
        said = predictions.change(before, plan)
    else:
        said = predictions.of(plan)
        shown = verbose or "advice" in parts or not (parts or output)
        lacks = _lacks(predictions)
        if shown and lacks:
            say("\n".join(one.verdict for one in lacks))
            click.echo("`ggml-py memory` with the same options looks for changes that make it fit")
        if verbose or not (parts or output):
            why, remedy = _answer(plan, predictions)
            verdict = "" if lacks else _verdict(plan, predictions, remedy)
            if verdict:
                say(verdict)
            show(plan, verbose, why, remedy)
            if plan.provenance.known and not model.is_model:
                say(f"made with {plan.provenance.text}")
    if said:
        say(said)
    for name in parts:
        PARTS[name].show(plan, predictions)


def _lacks(predictions: Predictions) -> Sequence[Shortfall] | None:
    """Missing memory of devices; None if it is not known, as for a saved plan."""
    return None if predictions.remedies is None else predictions.remedies.lacks


def _shortfalls(predictions: Predictions) -> list[dict[str, Any]] | None:
    lacks = _lacks(predictions)
    return None if lacks is None else [one.to_dict() for one in lacks]


def _verdict(plan: Plan, predictions: Predictions, remedy: Remedy | None) -> str:
    """The answer in a sentence, as `check` begins."""
    from ..advice.checkup import verdict_of

    findings, cost = predictions.findings(plan), predictions.cost(plan)
    best = _timed(plan, predictions, remedy)
    return verdict_of(plan, findings, cost, None, best, predictions.remedies is not None)


def _timed(plan: Plan, predictions: Predictions, remedy: Remedy | None) -> Remedy | None:
    """The remedy with the times of the shown graph; None if times are not known."""
    if remedy is None or not remedy.seconds:
        return None
    before, after = predictions.cost(plan), predictions.cost(remedy.plan)
    times = None if before is None or after is None else (before.seconds, after.seconds)
    return replace(remedy, seconds=times)


def _tried(plan: Plan, predictions: Predictions, output: str) -> ModelAnswers | None:
    """The answers for a page that need the model; None without a model or for other formats."""
    from ..export.formats import exporter_for

    if predictions.remedies is None or not exporter_for(output).compares:
        return None
    from ..export.page.first_screen import ModelAnswers

    _why, remedy = _answer(plan, predictions)
    best = _timed(plan, predictions, remedy)
    return ModelAnswers(predictions.advice(plan), best, _lacks(predictions) or ())


def _answer(plan: Plan, predictions: Predictions) -> tuple[WhySplits, Remedy | None]:
    """The reasons for the splits, and the remedy; it is tried out if the plan is a model's."""
    from ..trace.answers.remedy import remedy_of
    from ..trace.answers.why_splits import why_splits

    why = why_splits(plan)
    if predictions.remedies is None:
        return why, remedy_of(plan, why)
    return why, predictions.remedies.best


# --- the parts


class Part(NamedTuple):
    """Something that is printed besides the splits: as data for JSON, and on a terminal."""

    data: Callable[[Plan, Predictions], Any]
    show: Callable[[Plan, Predictions], None]


def _passes(plan: Plan) -> dict[str, Any]:
    """The backend of each node after each pass and sweep; the leafs' are under "leafs"."""
    check_has_passes(plan)
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
        say(str(step))


def _order(plan: Plan) -> list[dict[str, Any]]:
    """For each split, the order in which its backend computes the nodes."""
    found: list[dict[str, Any]] = []
    for split in plan.splits:
        order, deps = split.order, split.alloc_deps
        found.append({
            "split": split.index,
            "backend": split.backend,
            "order": None if order is None else [node.id for node in order],
            "moved": None if (moved := split.moved) is None else [node.id for node in moved],
            "alloc_deps": (
                None if deps is None else [[dep.tensor.id, dep.until.id] for dep in deps]
            ),
        })  # fmt: skip
    return found


def _show_order(plan: Plan) -> None:
    for split in plan.splits:
        order, moved = split.order, {node.id for node in split.moved or ()}
        said = f"{len(moved)} of {len(split.nodes)} nodes moved" if moved else "as in the graph"
        said = "not known: the backend may reorder nodes" if order is None else said
        click.echo(f"split #{split.index} on {split.backend}: {said}")
        for node in (order or ()) if moved else ():
            mark = "moved" if node.id in moved else ""
            click.echo(f"  {node.id:5} {node.op:16} {node.name:32} {mark}".rstrip())
        for dep in split.alloc_deps or ():
            click.echo(f"  {dep.tensor.name} is kept until {dep.until.name} is computed")


def _cpu(plan: Plan) -> list[dict[str, Any]]:
    return [record._asdict() for record in plan.on_cpu.values()]


def _show_cpu(plan: Plan) -> None:
    if not plan.on_cpu:
        say(_no_cpu(plan))
        return
    click.echo(f"{'node':>5} {'op':16} {'name':28} {'threads':>7} {'work':>9}  kernel")
    for node in plan.nodes:
        cpu = node.cpu
        if cpu is None or not node.is_computed:
            continue
        parts = [f"{cpu.buft} {cpu.kernel}".strip()]
        parts += [f"weight as {cpu.layout}"] if cpu.layout else []
        others = [plan.tensor(i).name for i in cpu.fused if i != node.id]
        parts += [f"fused with {', '.join(others)}"] if others else []
        row = f"{node.id:5} {node.op:16} {node.name:28.28} {cpu.n_tasks:7} {cpu.work_size:9,}"
        click.echo(f"{row}  {', '.join(p for p in parts if p)}".rstrip())


def _no_cpu(plan: Plan) -> str:
    """Why nothing can be said about the CPU's nodes."""
    cpus = {b.name for b in plan.backends if b.device_type == "CPU"}
    used = any(node.is_computed and node.backend in cpus for node in plan.nodes)
    if cpus and not used and plan.capture.source == "scheduler":
        return "the CPU computes no node of this plan"
    return "not known: this plan does not say how the CPU computes its nodes"


def _advice(plan: Plan, predictions: Predictions) -> list[dict[str, Any]]:
    return [finding.to_dict() for finding in predictions.advice(plan)]


def _show_advice(plan: Plan, predictions: Predictions) -> None:
    findings = predictions.advice(plan)
    for finding in findings:
        say(str(finding))
    if not findings:
        click.echo("nothing to advise")


def _plain(data: Callable[[Plan], Any], show: Callable[[Plan], None]) -> Part:
    """A part that needs the plan only."""
    return Part(lambda plan, _predictions: data(plan), lambda plan, _predictions: show(plan))


PARTS = {
    "text": _plain(lambda plan: plan.text(), lambda plan: click.echo(plan.text(), nl=False)),
    "passes": _plain(_passes, _show_passes),
    "steps": _plain(lambda plan: [step.to_dict() for step in plan.steps], _show_steps),
    "order": _plain(_order, _show_order),
    "cpu": _plain(_cpu, _show_cpu),
    "advice": Part(_advice, _show_advice),
}

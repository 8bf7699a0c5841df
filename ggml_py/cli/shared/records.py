"""The options that choose a plan of a file, and the list of a record's plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...files.kinds import LOG, RECORD
from ...trace.names import counted
from ...trace.planned import format_bytes
from .model_options import SAVED, SourceOption

if TYPE_CHECKING:
    from ...plan import Plan
    from ...record.session import Record, RecordedPlan

F = TypeVar("F", bound=Callable[..., Any])
KINDS = ("decode", "prompt", "reserved", "other")  # as in record/session.py


def choice_options(function: F) -> F:
    """The options that choose plans of records and logs."""
    function = click.option(
        "--dump", type=int, metavar="N", cls=SourceOption, kinds=(LOG,),
        help="Which debug print of a log, from 0. Default: the last.",
    )(function)  # fmt: skip
    function = click.option(
        "--when", type=click.Choice(KINDS), cls=SourceOption, kinds=(RECORD,),
        help="For a record: choose the plan of this kind with the most computes.",
    )(function)  # fmt: skip
    return click.option(
        "--plan", "numbers", type=int, multiple=True, metavar="N", cls=SourceOption,
        kinds=(RECORD,), help="Which plan of a record, from 0. Without it, the plans are listed. "
        "For two records: give it twice.",
    )(function)  # fmt: skip


def weights_option(function: F) -> F:
    """The option that places the weights of a saved plan, to plan its graph again."""
    return click.option(
        "--weights", multiple=True, metavar="REGEX=NAME,...", cls=SourceOption,
        kinds=(*SAVED, RECORD), help="Plan the graph of a record or saved plan again, with these "
        "tensors on a device or in a buffer type; needs -d. It is like -ot for a model.",
    )(function)  # fmt: skip


# The model's options that a saved plan takes, too: they plan its graph again.
REPLAYING = ("devices", "op_offload", "profile_set")


def replayed(
    plan: Plan, source: str, weights: Sequence[str], names: Sequence[str], op_offload: bool | None
) -> Plan:
    """The plan's graph, planned again by this build's scheduler on the devices with these names."""
    from ...llama.overrides import parse_overrides
    from ...scheduler.replay import replay
    from ...sim.given import named_devices

    devices = [device for name in names for device in named_devices(name)]
    pairs = [pair for text in weights for pair in parse_overrides(text)]
    found = replay(plan, devices, pairs, op_offload=op_offload)
    for regex in found.unmatched:
        click.echo(
            f"--weights: '{regex}' matches none of the {found.n_weights} weights of the graph",
            err=True,
        )
    for old, new in found.substitutes:
        click.echo(f"{source}: what was in {old} memory is in {new} memory here", err=True)
    return found.plan


def read_record(source: str) -> Record:
    """The record in that file. Says on standard error what is damaged."""
    from ...record.session import Record

    found = Record.read(source)
    for damage in found.damage:
        click.echo(f"{source}: {damage}", err=True)
    if found.damaged:
        click.echo(f"{source}: {found.damaged_plans}", err=True)
    for process in found.processes:
        if process.left_out:
            click.echo(
                f"{source}: {process.program}[{process.pid}] made {process.left_out:,} plans or "
                "computes that were not written (--max-size, --first, or a full disk)", err=True,
            )  # fmt: skip
    return found


def whole_plans(record: Record, source: str) -> list[tuple[RecordedPlan, Plan]]:
    """All plans that can be read. Says on standard error which cannot, if that was not said."""
    before, found = len(record.damaged), record.whole()
    if len(record.damaged) > before:
        click.echo(f"{source}: {record.damaged_plans}", err=True)
    return found


def choose(record: Record, source: str, number: int | None, when: str | None) -> RecordedPlan:
    """The plan that is meant. Without a choice it is the only one; of several, the list is printed
    and the usage error says how to choose."""
    plans = record.plans
    if number is not None:
        if not -len(plans) <= number < len(plans):
            raise click.UsageError(
                f"--plan {number}: {source} has {counted(len(plans), 'plan')}, from 0"
            )
        return plans[number]
    if when is not None:
        found = record.find(when)
        if not found:
            have = ", ".join(sorted({plan.kind for plan in plans})) or "none"
            raise click.UsageError(f"--when {when}: {source} has no such plan, only: {have}")
        return found[0]
    if len(plans) == 1:
        return plans[0]
    if not plans:
        raise ValueError(f"{source}: the record has no plan that can be read")
    click.echo(table(record), err=True)
    raise click.UsageError(
        f"{source} has {len(plans)} plans: choose one with --plan N or --when "
        f"{'|'.join(dict.fromkeys(p.kind for p in plans))}"
    )


# "sched" is the scheduler that made the plan first.
_COLUMNS = (
    "plan", "sched", "kind", "tokens", "nodes", "splits", "copies", "copied", "computed"
)  # fmt: skip


def _row(*cells: object) -> str:
    plan, sched, kind, *rest = map(str, cells)
    widths = (6, 5, 6, 6, 9, 8)
    more = " ".join(f"{cell:>{width}}" for cell, width in zip(rest, widths, strict=True))
    return f"  {plan:>4} {sched:>5} {kind:8} {more}"


def table(record: Record) -> str:
    """The plans of a record, one a line, below each process."""
    lines: list[str] = []
    for process in record.processes:
        end = "" if process.ended else ", did not say that it ended: counts are at least so many"
        lines.append(f"{process.program}[{process.pid}] ggml {process.upstream}{end}")
        lines += [f"  {_about(process)}"] if _about(process) else []
        mine = [plan for plan in record.plans if plan.process is process]
        if mine:
            lines.append(f"{_row(*_COLUMNS)}  unlike the plan before")
        for plan in mine:
            tokens = "-" if plan.n_tokens is None else str(plan.n_tokens)
            realloc = f"; memory laid out: {plan.reasons[0]}" if plan.reasons else ""
            computed = f"{plan.computed:,}{'' if process.ended else '+'}"
            row = _row(
                plan.index, plan.scheduler, plan.kind, tokens, plan.n_nodes, plan.n_splits,
                plan.n_copies, format_bytes(plan.copy_bytes), computed,
            )  # fmt: skip
            lines.append(f"{row}  {plan.difference}{realloc}")
    return "\n".join(lines)


def _about(process: Any) -> str:
    """The doubt about a process's record; "" if there is none."""
    about = process.head.get("about") or {}
    return str(about.get("doubt", ""))


def to_dict(record: Record) -> dict[str, Any]:
    """The list as JSON."""
    return {
        "processes": [
            {
                "pid": p.pid, "program": p.program, "argv": list(p.argv), "started": p.started,
                "ggml_version": p.upstream, "ended": p.ended, "left_out": p.left_out,
                "doubt": _about(p), "schedulers": list(p.schedulers.values()),
            }
            for p in record.processes
        ],
        "plans": [
            {
                "plan": p.index, "pid": p.process.pid, "scheduler": p.scheduler,
                "thread": p.thread, "kind": p.kind,
                "n_tokens": p.n_tokens, "n_nodes": p.n_nodes, "n_splits": p.n_splits,
                "n_copies": p.n_copies, "copy_bytes": p.copy_bytes, "planned": p.planned,
                "allocated": p.allocated, "computed": p.computed, "first": p.first, "last": p.last,
                "difference": p.difference, "reallocations": p.reallocs, "reasons": p.reasons,
                "laid_out_as": None if p.laid_out_as is None else p.laid_out_as.index,
            }
            for p in record.plans
        ],
        "damage": [str(d) for d in record.damage],
        "damaged_plans": [str(one) for one in record.damaged],
    }  # fmt: skip

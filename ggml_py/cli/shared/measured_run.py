"""Predicted beside measured: a run on a machine that was calibrated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .model_options import echo_json
from .output import say
from .predicted import load_machine, said_of

if TYPE_CHECKING:
    from ...cost import Machine
    from ...run import Run
    from .source import Source

_MOST_NODES = 12  # that are shown

analyze_option = click.option(
    "--analyze",
    is_flag=True,
    help="MODEL is a run (`trace --per-op -o`) or a record with --run: with --machine, show "
    "predicted beside measured times, the greatest misses first.",
)


def analyze(
    source: Source, machine_path: str | None, as_json: bool, node: str | None = None
) -> None:
    """What `--analyze` prints. Raises a usage error without a machine, and ValueError for a source
    without times."""
    if machine_path is None:
        raise click.UsageError(
            "--analyze needs --machine FILE, which `ggml-py calibrate -o FILE` writes"
        )
    show_analysis(source.run(), load_machine(machine_path), as_json, node)


def show_analysis(run: Run, machine: Machine, as_json: bool, node: str | None = None) -> None:
    """Prints the misses of a run, or of its nodes with a name."""
    from ...cost.analysis import analysis_of

    found = analysis_of(run, machine)
    plan = found.cost.plan
    nodes = found.nodes
    if node is not None:
        wanted = plan.node(int(node) if node.isdecimal() else node).id
        nodes = tuple(one for one in nodes if one.id == wanted)
    if as_json:
        data = found.to_dict()
        echo_json({**data, "nodes": [n for n in data["nodes"] if n["id"] in {m.id for m in nodes}]})
        return
    say(f"predicted {found.cost.headline()}")
    if found.seconds is not None:
        click.echo(f"measured {found.seconds * 1e3:.3f} ms, the median of {found.n_computes}")
        click.echo("nodes have no times of their own: record with --per-op")
    else:
        click.echo(
            f"measured {found.measured * 1e3:.3f} ms in nodes computed one by one, the median of "
            f"{found.n_computes}; predicted for them {found.predicted * 1e3:.3f} ms"
        )
    if nodes:
        click.echo(f"{'node':>6} {'predicted':>10} {'measured':>10} {'miss':>10}  {'op':16} name")
    for one in nodes[:_MOST_NODES]:
        tensor = plan.tensor(one.id)
        ms = [_ms(seconds) for seconds in (one.predicted, one.measured, one.miss)]
        mark = "" if one.inside else "  outside"
        click.echo(
            f"{one.id:6} {ms[0]:>10} {ms[1]:>10} {ms[2]:>10}  {tensor.op:16} {tensor.name}{mark}"
        )
    for sentence in said_of(found.cost):
        say(sentence)


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.3f} ms"

"""``ggml-py trace``"""

from __future__ import annotations

from typing import Any

import click

from ..trace.names import counted
from .shared.decode_table import as_data, lines
from .shared.model_options import ModelCommand, as_json, echo_json, model_options, read_model
from .shared.output import check_output, save, say


@click.command("trace", cls=ModelCommand, short_help="Run MODEL and show what took the time.")
@model_options
@click.option(
    "-p",
    "--n-prompt",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Tokens in the prompt, which is recorded too.",
)
@click.option(
    "-n",
    "--n-gen",
    default=16,
    show_default=True,
    type=click.IntRange(min=0),
    help="Tokens to generate after it.",
)
@click.option("--per-op", is_flag=True, help="Compute nodes one by one, and time each.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the run to FILE: .json, .trace.json (Perfetto), .html; add .gz to compress.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@as_json
def command(
    n_prompt: int,
    n_gen: int,
    per_op: bool,
    output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run MODEL, and show what its scheduler did and when: splits, copies, waits.

    Without --per-op, recording does not change how graphs are computed. The first evaluation, which
    reads the weights, is not recorded.

    \b
    ggml-py trace model.gguf -n 16 -o run.json
    ggml-py trace model.gguf -p 512 -n 0 --per-op
    """
    if output is not None:
        check_output(output, force=force, runs=True)
    with read_model(quiet=as_json, **options) as model:
        prompt = [i % model.n_vocab for i in range(n_prompt)]
        model.eval(prompt)
        model.reset()
        with model.record(per_op) as recording, model.watch() as decodes:
            model.generate(prompt, n_gen + 1)
    run = recording.run
    if output is not None:
        save(run, output, force=force)
    if as_json:
        echo_json({**run.summary().as_dict(), "decodes": as_data(decodes)})
    else:
        say(str(run.summary()))
        for line in lines(decodes):
            say(line)
        if output is not None:
            events, plans = counted(len(run.events), "event"), counted(len(run.plans), "plan")
            click.echo(f"{output}: {events}, {plans}", err=True)

"""``ggml-py sweep``"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from .shared.model_options import IntList, ModelCommand, as_json, echo_json
from .shared.output import say
from .shared.predicted import load_machine, machine_option, said_of
from .shared.source import Source, check_options, planning_options

if TYPE_CHECKING:
    from ..trace.answers.sweep import Predict, Sweep


@click.command(
    "sweep",
    cls=ModelCommand,
    short_help="Find the shapes at which MODEL's plan changes.",
)
@planning_options("sweep")
@click.option(
    "--n-tokens",
    type=IntList("numbers of tokens", 1, "1,512"),
    default="1,512",
    show_default=True,
    help="Tokens in the batch.",
)
@click.option(
    "--n-past",
    type=IntList("numbers of tokens", 0, "0,4096"),
    default="0",
    show_default=True,
    help="Tokens already in the cache.",
)
@machine_option
@as_json
def command(
    model: Source,
    n_tokens: list[int],
    n_past: list[int],
    machine_path: str | None,
    as_json: bool,
) -> None:
    """Plan MODEL's graph for several shapes. Find where the plan changes, to the token, and why.

    If the plans of neighbouring values differ, bisection finds the threshold between them. The
    cache (-c) and the batch (-ub) must hold the largest values. With --machine each plan has its
    predicted time.

    \b
    ggml-py sweep model.gguf --n-tokens 1,512
    ggml-py sweep model.gguf -d sim:gpu0,profile=cuda -d CPU -c 8192 --n-tokens 1,64 --n-past 0,8000
    ggml-py sweep llama-server.ggrec

    Plans of a record are compared in the order in which the program made them.
    """
    said: dict[str, None] = {}  # what the predictions rest on
    from ..trace import sweep

    check_options(model)
    predict = _predict(said, machine_path)
    if model.is_model:
        with model.opened() as loaded:
            found = sweep(loaded.plan, predict=predict, n_tokens=n_tokens, n_past=n_past)
    else:  # texts are compared as they come: nothing is between them
        plans = dict(model.plans())
        found = sweep(lambda plan: plans[plan], predict=predict, plan=list(plans))
    _show(found, said, as_json)


def _predict(said: dict[str, None], path: str | None) -> Predict | None:
    from ..cost.time_difference import predict_with

    if path is None:
        return None
    return predict_with(load_machine(path), lambda cost: said.update(dict.fromkeys(said_of(cost))))


def _show(found: Sweep, said: Iterable[str], as_json: bool) -> None:
    if as_json:
        echo_json({**found.to_dict(), "notes": list(said)})
    else:
        from ..export.to_terminal import show_sweep

        show_sweep(found)
        for sentence in said:
            say(sentence)

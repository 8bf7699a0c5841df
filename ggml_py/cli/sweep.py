"""``ggml-py sweep``"""

from __future__ import annotations

from typing import Any

import click

from .shared.options import IntList, ModelCommand, as_json, echo_json, load_model, model_options
from .shared.source import saved_plan


@click.command(
    "sweep",
    cls=ModelCommand,
    short_help="Find the shapes at which MODEL's plan changes.",
)
@model_options
@click.option(
    "-n",
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
@as_json
def command(
    model: str, n_tokens: list[int], n_past: list[int], as_json: bool, **options: Any
) -> None:
    """Plan MODEL's graph for several shapes. Find where the plan changes, to the token, and why.

    If the plans of neighbouring values differ, bisection finds the threshold between them. The
    cache (-c) and the batch (-ub) must hold the largest values.

    \b
    ggml-py sweep model.gguf -n 1,512
    ggml-py sweep model.gguf -d sim:gpu0,profile=cuda -d CPU -c 8192 -n 1,64 --n-past 0,8000
    """
    if saved_plan(model) is not None:
        raise click.UsageError(
            f"{model} is a saved plan: a sweep makes many plans, so it needs the model"
        )
    from ..trace import sweep

    with load_model(model, **options) as loaded:
        found = sweep(loaded.plan, n_tokens=n_tokens, n_past=n_past)
    if as_json:
        echo_json(found.to_dict())
    else:
        from ..export.to_terminal import show_sweep

        show_sweep(found)

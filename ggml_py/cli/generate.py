"""``ggml-py generate``"""

from __future__ import annotations

import time
from typing import Any

import click

from .options import IntList, ModelCommand, as_json, echo_json, load_model, model_options


@click.command("generate", cls=ModelCommand)
@model_options
@click.option(
    "--tokens",
    type=IntList("token ids", 0, "1,2,3"),
    required=True,
    help="The prompt, as token ids: 1,2,3.",
)
@click.option("-n", "--n-predict", default=16, show_default=True, help="Tokens to generate.")
@as_json
def command(tokens: list[int], n_predict: int, as_json: bool, **options: Any) -> None:
    """Continue a prompt greedily with MODEL; token ids in, token ids out."""
    with load_model(**options) as model:
        start = time.perf_counter()
        out = model.generate(tokens, n_predict)
        seconds = time.perf_counter() - start
    rate = len(out) / seconds
    if as_json:
        echo_json({"prompt": tokens, "tokens": out, "seconds": seconds, "tokens_per_s": rate})
    else:
        click.echo(",".join(map(str, out)))
        click.echo(f"{len(out)} tokens in {seconds:.2f} s, prompt included", err=True)

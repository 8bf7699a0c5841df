"""``ggml-py plan``"""

from __future__ import annotations

from typing import Any

import click

from .options import as_json, echo_json, load_model, model_options


@click.command("plan")
@model_options
@click.option("-n", "--n-tokens", default=1, show_default=True, help="Tokens in the batch.")
@click.option("--n-past", default=0, show_default=True, help="Tokens in the cache before it.")
@click.option("-v", "--verbose", is_flag=True, help="Print every node and why it is where it is.")
@click.option("--text", is_flag=True, help="Print upstream's GGML_SCHED_DEBUG=2 layout.")
@as_json
def command(
    n_tokens: int, n_past: int, verbose: bool, text: bool, as_json: bool, **options: Any
) -> None:
    """Show how MODEL's graph is split over the devices, without computing it."""
    with load_model(**options) as model:
        plan = model.plan(n_tokens=n_tokens, n_past=n_past)
    if as_json:
        echo_json(plan.to_json())
    elif text:
        click.echo(plan.text(), nl=False)
    else:
        from ..export.to_terminal import show

        show(plan, nodes=verbose)

"""``ggml-py explain``"""

from __future__ import annotations

from typing import Any

import click

from .shared.options import ModelCommand, as_json, echo_json
from .shared.source import get_plan, get_tensor, source_options


@click.command(
    "explain",
    cls=ModelCommand,
    short_help="Tell why NODE is on its backend, back to the first cause.",
)
@source_options("model")
@click.argument("node")
@as_json
def command(model: str, node: str, as_json: bool, **options: Any) -> None:
    """Tell why NODE of MODEL's graph is on its backend: the chain of decisions, back to its root.

    MODEL may also be a plan that `ggml-py plan MODEL -o FILE` saved, or the log of a program that
    ran with GGML_SCHED_DEBUG=2 ('-' is standard input). NODE is a name (also of a weight or a copy)
    or a node's number; if several have the name, the last is meant.

    \b
    ggml-py explain model.gguf ffn_out-3 -ngl 20
    ggml-py explain plan.json.gz 95
    """
    plan = get_plan(model, **options)
    explanation = plan.explain(get_tensor(plan, node))
    if as_json:
        echo_json(explanation.to_dict())
    else:
        click.echo(str(explanation))

"""``ggml-py explain``"""

from __future__ import annotations

import click

from .shared.measured_run import analyze as show_misses
from .shared.measured_run import analyze_option
from .shared.model_options import ModelCommand, as_json, echo_json
from .shared.named_tensor import get_tensor
from .shared.output import say
from .shared.predicted import machine_option
from .shared.source import Source, source_options


@click.command(
    "explain",
    cls=ModelCommand,
    short_help="Tell why NODE is on its backend, back to the first cause.",
)
@source_options("model")
@click.argument("node", required=False)
@analyze_option
@machine_option
@as_json
def command(
    model: Source,
    node: str | None,
    analyze: bool,
    machine_path: str | None,
    as_json: bool,
) -> None:
    """Tell why NODE of MODEL's graph is on its backend: the chain of decisions, back to its root.

    MODEL may also be a plan that `ggml-py plan MODEL -o FILE` saved, or the log of a program that
    ran with GGML_SCHED_DEBUG=2 ('-' is standard input). NODE is a name (also of a weight or a copy)
    or a node's number. If several have the name, the last one counts.

    With --analyze MODEL is a run or a record with times: predicted and measured times stand side by
    side, of NODE or of all nodes, the greatest misses first.

    \b
    ggml-py explain model.gguf ffn_out-3 -ngl 20
    ggml-py explain plan.json.gz 95
    ggml-py explain --analyze run.json --machine machine.json
    """
    if analyze:
        show_misses(model, machine_path, as_json, node)
        return
    if machine_path is not None:
        raise click.UsageError("--machine goes with --analyze")
    if node is None:
        raise click.MissingParameter(param_hint="'NODE'", param_type="argument")
    plan = model.plan()
    explanation = plan.explain(get_tensor(plan, node))
    if as_json:
        echo_json(explanation.to_dict())
    else:
        say(str(explanation))

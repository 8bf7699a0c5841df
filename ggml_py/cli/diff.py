"""``ggml-py diff``"""

from __future__ import annotations

import click

from .shared.model_options import ModelCommand, as_json, echo_json
from .shared.output import say
from .shared.predicted import Predictions, machine_option
from .shared.source import Source, plans_of, source_options


@click.command(
    "diff",
    cls=ModelCommand,
    short_help="Show what plan B decides differently from plan A.",
)
@source_options("a", "b")
@click.option(
    "--rename",
    "renames",
    multiple=True,
    metavar="OLD=NEW",
    help="Backend OLD of A is backend NEW of B, as in gpu0=CUDA0. May be repeated.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print all rows of each table.")
@machine_option
@as_json
def command(
    a: Source,
    b: Source,
    renames: tuple[str, ...],
    verbose: bool,
    machine_path: str | None,
    as_json: bool,
) -> None:
    """Show what B decides differently from A: assignments, causes, splits, copies and their bytes;
    with --machine also the time that each is predicted to take.

    A and B are plans that `ggml-py plan MODEL -o FILE` saved, logs of programs that ran with
    GGML_SCHED_DEBUG=2, or models, to which the options apply. '-' is standard input.

    Exit status: 0 if they are the same, 1 if they differ. An error is 1, too, but prints nothing on
    standard output.

    \b
    ggml-py plan model.gguf -ngl 20 -o before.json.gz
    ggml-py diff before.json.gz model.gguf -ngl 24
    ggml-py diff before.json.gz log.txt --rename gpu0=CUDA0
    """
    from ..advice.two_plans import verdict_of_change

    backends = dict(map(_rename, renames))
    if len(backends) < len(renames):
        raise click.UsageError("--rename: a backend is renamed twice")
    predictions = Predictions(machine_path)
    before, after = plans_of(a, b)
    diff = before.diff(after, backends)
    verdict = verdict_of_change(before, after, diff, predictions.machine)
    if as_json:
        echo_json({"verdict": verdict, **diff.to_dict(), **predictions.data(after, before)})
    else:
        from ..export.to_terminal import show_diff

        show_diff(diff, None if verbose else 20, verdict=verdict)
        if said := predictions.change(before, after):
            say(said)
    click.get_current_context().exit(int(bool(diff)))


def _rename(text: str) -> tuple[str, str]:
    old, sign, new = text.rpartition("=")
    if not (old and sign and new):
        raise click.UsageError(f"--rename {text}: expected OLD=NEW, like gpu0=CUDA0")
    return old, new

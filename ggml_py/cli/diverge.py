"""``ggml-py diverge``"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .shared.bar import bar
from .shared.model_options import ModelCommand, as_json, echo_json, model_options, read_model
from .shared.output import check_target, say

_META = "ggml_py.words"


class _Forwarding(ModelCommand):
    """A verb that gives its words to processes that run it again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Like click's."""
        ctx.meta[_META] = list(args)
        return super().parse_args(ctx, args)


@click.command(
    "diverge", cls=_Forwarding,
    short_help="Find the first op of MODEL that one device or release computes otherwise.",
)  # fmt: skip
@model_options
@click.option(
    "--between",
    nargs=2,
    metavar="A B",
    help="The two sides. Each is devices as for -d (BLAS,CPU), threads=N, upstream=RELEASE, "
    "source=DIR, options of `ggml-py plan`, or several of these in quotation marks.",
)
@click.option("-p", "--n-prompt", default=8, show_default=True, type=click.IntRange(min=1),
              help="Tokens in the prompt.")  # fmt: skip
@click.option("-n", "--n-gen", default=1, show_default=True, type=click.IntRange(min=0),
              help="Tokens after it, one by one.")  # fmt: skip
@click.option("--limit", type=click.FloatRange(min=0), metavar="X",
              help="The error that is allowed, instead of upstream's for each op.")  # fmt: skip
@click.option(
    "--case", type=click.Path(dir_okay=False), metavar="FILE",
    help="Write the first op over the limit (otherwise the worst) for `test-backend-ops "
    "--test-file FILE`.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--side", type=click.Choice(["first", "second"]), hidden=True)
@click.option("--folder", type=click.Path(file_okay=False), hidden=True)
@as_json
def command(
    between: tuple[str, str] | None,
    n_prompt: int,
    n_gen: int,
    limit: float | None,
    case: str | None,
    force: bool,
    side: str | None,
    folder: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run MODEL on both sides, op by op, and name the first op and the worst one whose results
    differ by more than upstream's tests allow. Each op of B has the inputs that it had on A: what
    differed before it does not count.

    The error is the normalised mean squared error, as `test-backend-ops` computes it. Nodes are
    computed one by one, so that ops which a backend would fuse are tested singly. A side that ends
    its process is an error that names the op.

    Exit status: 0 if no op is over its limit, 1 otherwise.

    \b
    ggml-py diverge model.gguf --between CPU BLAS,CPU
    ggml-py diverge model.gguf --between "CPU threads=1" "CPU threads=2" --limit 0
    ggml-py diverge model.gguf --between upstream=0.25.3 upstream=0.26.0 --case case.txt
    """
    from ..conformance.diverge import ModelSide, diverge
    from ..conformance.forced import run_side

    if side is not None and folder is not None:
        with read_model(quiet=True, **options) as model:
            run_side(model, side, Path(folder), n_prompt, n_gen)
        return
    context = click.get_current_context()
    if between is None:
        raise click.UsageError("expected --between A B, such as: --between CPU BLAS,CPU")
    try:
        sides = ModelSide.parse(between[0]), ModelSide.parse(between[1])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if options["devices"] and any("-d" in one.words for one in sides):
        raise click.UsageError("devices are given with -d and in --between: give them once")
    if case is not None:
        check_target(case, force)
    with bar("running both sides", not as_json, at_once=True) as show:
        found = diverge(
            context.meta[_META], sides, limit=limit, build=not options["no_build"], progress=show
        )
    node = found.first or found.worst
    if as_json:
        echo_json(found.to_dict())
    else:
        say(str(found))
    if case is not None and node is not None:
        if not node.case:
            raise ValueError(f"{case} is not written: {node.name}: {node.why_no_case}")
        Path(case).write_text(f"{node.case}\n", encoding="utf-8")
        click.echo(f"{case}: {node.op} as {node.name} has it, with random data", err=True)
    context.exit(int(bool(found)))

"""``ggml-py bisect``"""

from __future__ import annotations

import click

from .shared.bar import bar
from .shared.cases import PLAN_OPTIONS, cases_of
from .shared.model_options import as_json, echo_json
from .shared.output import say
from .shared.verb import Verb

_META = "ggml_py.condition"


class _Conditional(Verb):
    """A verb with a condition behind "--", which a shell need not keep together."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Like click's, without the condition."""
        own, sign, condition = args, "", list[str]()
        if "--" in args:
            at = args.index("--")
            own, sign, condition = args[:at], "--", args[at + 1 :]
        if sign and not condition:
            raise click.UsageError("expected a condition behind --, such as: -- 'splits > 40'", ctx)
        ctx.meta[_META] = " ".join(condition)
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Like click's, with the condition."""
        return [*super().collect_usage_pieces(ctx), "[-- CONDITION]"]


@click.command(
    "bisect",
    cls=_Conditional,
    context_settings=PLAN_OPTIONS,
    short_help="Find the release of ggml that first plans something otherwise.",
)
@click.argument("sources", nargs=-1, type=click.UNPROCESSED)
@click.option("--good", required=True, metavar="RELEASE", help="A release without the change.")
@click.option("--bad", required=True, metavar="RELEASE", help="A release with it.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Plans that are made at once.")  # fmt: skip
@click.option("--no-build", is_flag=True, help="Refuse releases that are not built yet.")
@as_json
def command(
    sources: tuple[str, ...], good: str, bad: str, jobs: int, no_build: bool, as_json: bool
) -> None:
    """Find the release at which a condition on the plans turns, and what changed there.

    SOURCES, and the options of `ggml-py plan` that follow them, are as for `ggml-py compare`. Only
    releases that can be had as a package are asked (`ggml-py build --list`).

    CONDITION holds if it does for any of the plans. Without one, any difference from --good counts.
    After Ctrl-C the same command reuses the finished builds. Conditions on plans are:

    \b
    'splits > 40'  also copies, copy_bytes, nodes
    'NODE on BACKEND', 'NODE not on BACKEND'
    'fallback', 'fallback of FLASH_ATTN_EXT'

    Conditions on runs are:

    \b
    'waits > 9'     also copied_bytes, reallocations, buffer_bytes
    'error > 1e-4'  an output's error against --good
    'time > 1.1'    a compute's time divided by its time under --good

    \b
    ggml-py bisect --good 0.9.4 --bad 0.26.0 llama-server.ggrec
    ggml-py bisect --good 0.26.0 --bad 0.17.0 saved.json.gz -- kqv_out-0 on gpu0
    """
    from ..releases.bisect import bisect

    cases = cases_of(sources)
    condition = str(click.get_current_context().meta[_META])
    with bar("asking releases", at_once=True) as show:
        found = bisect(
            good,
            bad,
            cases,
            condition,
            build=not no_build,
            jobs=jobs,
            progress=show,
        )
    if as_json:
        echo_json(found.to_dict())
    else:
        say(str(found))

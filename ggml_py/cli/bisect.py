"""``ggml-py bisect``"""

from __future__ import annotations

import click

from .compare import split_words
from .shared.bar import bar
from .shared.options import as_json, echo_json


@click.command(
    "bisect",
    context_settings={"ignore_unknown_options": True},
    short_help="Find the release of ggml that first plans something otherwise.",
)
@click.argument("sources", nargs=-1, type=click.UNPROCESSED)
@click.option("--good", required=True, metavar="RELEASE", help="A release without the change.")
@click.option("--bad", required=True, metavar="RELEASE", help="A release with it.")
@click.option(
    "--that", "condition", default="", metavar="CONDITION",
    help='What is looked for: "splits > 40", "copies", "copy_bytes", "nodes" likewise, "NODE on '
         'BACKEND", "NODE not on BACKEND". Default: a plan differs from that of --good.',
)  # fmt: skip
@click.option("--no-build", is_flag=True, help="Refuse releases that are not built yet.")
@as_json
def command(
    sources: tuple[str, ...], good: str, bad: str, condition: str, no_build: bool, as_json: bool
) -> None:
    """Find the release between which a condition on the plans turns, and what changed there.

    SOURCES, and the options of `ggml-py plan` that follow them, are as for `ggml-py compare`. Only
    releases that can be had as a package are asked (`ggml-py build --list`).

    \b
    ggml-py bisect --good 0.9.4 --bad 0.26.0 llama-server.ggrec
    ggml-py bisect --good 0.26.0 --bad 0.17.0 --that "kqv_out-0 on gpu0" saved.json.gz
    """
    from ..releases.bisect import bisect
    from .shared.cases import cases_of

    cases = cases_of(*split_words(sources))
    with bar("asking releases", at_once=True) as show:
        found = bisect(good, bad, cases, condition, build=not no_build, progress=show)
    if as_json:
        echo_json(found.to_dict())
    else:
        click.echo(str(found))

"""``ggml-py memory``"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .shared.bar import bar
from .shared.command_line import command_line
from .shared.options import ModelCommand, as_json, echo_json, given_model_options
from .shared.output import check_target
from .shared.source import for_model, get_plan, is_model, opened, shape_of, source_options

if TYPE_CHECKING:
    from ..llama import LlamaModel
    from ..llama.room import Tried
    from ..memory.moves import NodeMove
    from ..plan import Plan

log = logging.getLogger("ggml_py")


@click.command(
    "memory",
    cls=ModelCommand,
    short_help="Show what MODEL holds in memory, tensor by tensor, and what would lower it.",
)
@source_options("model")
@click.option("--at-peak", is_flag=True, help="List every tensor that is alive at the peak.")
@click.option("-v", "--verbose", is_flag=True, help="List every tensor's place and lifetime.")
@click.option(
    "--fit-print",
    is_flag=True,
    help="Print libllama's estimate only, as llama-fit-params --fit-print on does.",
)
@click.option("--no-changes", is_flag=True, help="Do not look for options that need less memory.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write a page: each tensor's addresses and lifetime, and the bytes alive.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@as_json
def command(
    model: str,
    at_peak: bool,
    verbose: bool,
    fit_print: bool,
    no_changes: bool,
    html: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what MODEL holds in memory on each device, before anything is allocated.

    Of a model the compute buffers are those of the largest graph that llama.cpp reserves memory
    for, or with -n or --n-past of that graph. Only the header of the file is read. If the model
    does not fit, the three smallest changes that make it fit follow, each of them planned; if it
    fits, what would lower its memory. MODEL may also be a plan that -o saved, or a record.

    \b
    ggml-py memory model.gguf -d sim:gpu0,profile=rtx4090 -ngl 20 -c 8192
    ggml-py memory model.gguf -c 32768 --at-peak
    ggml-py memory plan.json.gz --html memory.html
    ggml-py memory model.gguf --fit-print
    """
    from ..llama import LlamaModel
    from ..memory.moves import node_moves

    if html is not None:
        check_target(html, force)
    changes = Changes()
    free: dict[str, tuple[int, int]] = {}
    if is_model(model):
        # Exact sizes for every architecture are libllama's.
        graphs = "libllama" if options["graphs"] == "auto" else options["graphs"]
        asked = {**for_model(options), "graphs": graphs}
        if fit_print:  # llama-fit-params maps no file
            asked["load_mode"] = "none"
        with opened(model, ("-lm", "none") if fit_print else (), **asked) as loaded:
            if not isinstance(loaded, LlamaModel):
                raise click.UsageError("memory is libllama's: not with --graphs ours")
            if fit_print:
                click.echo(loaded.fit_print(), nl=False)
                return
            given = given_model_options()
            as_asked = "-n" in given or "--n-past" in given
            plan = loaded.plan(*shape_of(asked)) if as_asked else loaded.reserved_plan()
            free = {device.name: device.memory for device in loaded.devices}
            if not (no_changes or command_line()):
                changes = _changes(loaded, model, asked, free)
    else:
        if fit_print:
            raise click.UsageError(f"--fit-print needs a model, and {model} is a saved plan")
        plan = get_plan(model, **options)
    moves: Sequence[NodeMove] = () if no_changes or changes.lacks else node_moves(plan)
    if as_json:
        echo_json(_data(plan, free, changes, moves))
    else:
        from ..export.memory_text import show, show_changes

        show(plan.memory, at_peak, verbose, free)
        show_changes(changes.lacks, changes.tried, moves)
    if html is not None:
        from ..export.memory_page import page
        from ..files.writing import write_whole

        write_whole(html, page(plan.memory).encode())
        click.echo(f"{html}: the memory of {plan.headline()}", err=True)


class Changes(NamedTuple):
    """Options that would lower the memory, or make the model fit."""

    lacks: Mapping[str, int] = MappingProxyType({})  # bytes by device
    tried: Sequence[Tried] = ()


def _changes(
    loaded: LlamaModel, source: str, options: dict[str, Any], free: dict[str, tuple[int, int]]
) -> Changes:
    from ..llama import LlamaModel
    from ..llama.room import fitting, lacking, lower

    @contextmanager
    def again(changes: dict[str, Any]) -> Iterator[LlamaModel]:
        log.disabled = True  # its warnings about the options were already shown
        try:
            with opened(source, **{**options, **changes}) as model:
                assert isinstance(model, LlamaModel)
                yield model
        finally:
            log.disabled = False

    # A device whose size is not known reports 0 bytes.
    room = {name: size for name, (size, total) in free.items() if total}
    if lacks := lacking(loaded.memory, room):
        with bar("looking for changes that make it fit") as progress:
            return Changes(lacks, fitting(loaded, again, room, progress=progress))
    with bar("looking for options that need less memory") as progress:
        return Changes({}, lower(loaded, again, progress))


def _data(
    plan: Plan,
    free: dict[str, tuple[int, int]],
    changes: Changes,
    moves: Sequence[NodeMove],
) -> dict[str, Any]:
    return {
        "headline": plan.headline(),
        "devices": {name: {"free": f, "total": t} for name, (f, t) in free.items()},
        "fits": not changes.lacks,
        "lacks": dict(changes.lacks),
        "changes": [one.to_dict() for one in changes.tried],
        "node_moves": [move.to_dict() for move in moves],
        **plan.memory.to_dict(),
    }

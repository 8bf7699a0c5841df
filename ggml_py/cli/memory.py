"""``ggml-py memory``"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .shared.bar import bar
from .shared.command_line import command_line
from .shared.options import ModelCommand, as_json, echo_json, given_model_options
from .shared.output import check_target
from .shared.records import choose, is_record, read_record
from .shared.source import (
    for_model,
    get_plan,
    is_model,
    opened,
    refuse_saved_options,
    shape_of,
    source_options,
)

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
    from ..llama.room import expert_caches
    from ..memory.moves import node_moves

    if fit_print and (as_json or html):
        raise click.UsageError("--fit-print prints its lines only: not with --json or --html")
    if html is not None:
        check_target(html, force)
        if model != "-" and Path(html).exists() and Path(html).samefile(model):
            raise click.UsageError(f"--html {html} would replace what is read: give another name")
    room, notes = Room(), list[str]()
    if is_model(model):
        refuse_saved_options(model, options)
        # Exact sizes for every architecture are libllama's.
        graphs = "libllama" if options["graphs"] == "auto" else options["graphs"]
        asked = {**for_model(options), "graphs": graphs}
        if fit_print:
            asked = _as_fit_params(asked)
        with opened(model, ("-lm", "none") if fit_print else (), **asked) as loaded:
            if not isinstance(loaded, LlamaModel):
                raise click.UsageError("memory is libllama's: not with --graphs ours")
            if fit_print:
                click.echo(loaded.fit_print(), nl=False)
                return
            given = given_model_options()
            as_asked = "-n" in given or "--n-past" in given
            plan = loaded.plan(*shape_of(asked)) if as_asked else loaded.reserved_plan()
            # --fit has chosen: with another option it would choose otherwise.
            look = not (no_changes or command_line() or asked["fit"] == "on")
            room = _room(loaded, model, asked, look)
            notes += [f"of the cache, {cache}" for cache in expert_caches(loaded)]
        if not plan.breakdown:
            notes.append("the bytes of all buffers are not known: with -sm tensor libllama knows "
                         "them only once it has the weights")  # fmt: skip
    else:
        if fit_print:
            raise click.UsageError(f"--fit-print needs a model, and {model} is a saved plan")
        plan = get_plan(model, **options)
        notes += _laid_out(model, options)
    moves: Sequence[NodeMove] = () if no_changes or room.lacks else node_moves(plan)
    if as_json:
        echo_json(_data(plan, room, moves))
    else:
        from ..export.memory_text import show, show_changes

        show(plan.memory, at_peak, verbose, room.free)
        for note in notes:
            click.echo(note)
        show_changes(room.lacks or {}, room.tried, moves)
    if html is not None:
        from ..export.memory_page import page
        from ..files.writing import write_whole

        write_whole(html, page(plan.memory).encode())
        click.echo(f"{html}: the memory of {plan.headline()}", err=True)


class Room(NamedTuple):
    """Whether a model fits, and options that would lower its memory or make it fit."""

    free: Mapping[str, tuple[int, int]] = MappingProxyType({})  # bytes free and in all, by device
    lacks: Mapping[str, int] | None = None  # bytes by device; None: not known
    tried: Sequence[Tried] | None = None  # None: nothing was tried


def _as_fit_params(options: dict[str, Any]) -> dict[str, Any]:
    """The options with llama-fit-params' own in place of ours; it maps no file."""
    given = given_model_options()
    more: dict[str, Any] = {"load_mode": "none"}
    if "-c" not in given:
        more["n_ctx"] = 0
    if "-b" not in given:
        more["n_batch"] = 2048
    return {**options, **more}


def _laid_out(source: str, options: dict[str, Any]) -> list[str]:
    """In whose layout a record's graph got its memory, if it is not its own."""
    if not is_record(source):
        return []
    number = (*options["numbers"], None)[0]
    one = choose(read_record(source), source, number, options["when"])
    if one.laid_out_as in (None, one):
        return []
    return [f"the program gave it its places in the larger layout of plan {one.laid_out_as.index}"]


def _room(loaded: LlamaModel, source: str, options: dict[str, Any], look: bool) -> Room:
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

    free = {device.name: device.memory for device in loaded.devices}
    if not loaded.memory:
        return Room(free)
    # A device whose size is not known reports 0 bytes.
    known = {name: size for name, (size, total) in free.items() if total}
    lacks = lacking(loaded.memory, known)
    if not look:
        return Room(free, lacks)
    if lacks:
        with bar("looking for changes that make it fit") as progress:
            return Room(free, lacks, fitting(loaded, again, known, progress=progress))
    with bar("looking for options that need less memory") as progress:
        return Room(free, lacks, lower(loaded, again, progress))


def _data(plan: Plan, room: Room, moves: Sequence[NodeMove]) -> dict[str, Any]:
    return {
        "headline": plan.headline(),
        "devices": {name: {"free": f, "total": t} for name, (f, t) in room.free.items()},
        "fits": None if room.lacks is None else not room.lacks,
        "lacks": None if room.lacks is None else dict(room.lacks),
        "changes": [one.to_dict() for one in room.tried or ()],
        "node_moves": [move.to_dict() for move in moves],
        **plan.memory.to_dict(),
    }

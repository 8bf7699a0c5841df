"""``ggml-py memory``"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..files.kinds import RECORD
from ..trace.planned import format_bytes
from .shared.bar import bar
from .shared.model_options import ModelCommand, SourceOption, as_json, echo_json, given_options
from .shared.model_setup import ModelSetup
from .shared.output import check_target, save, say
from .shared.source import Source, check_options, source_options

if TYPE_CHECKING:
    from ..llama import LlamaModel
    from ..llama.room import Tried
    from ..memory.node_moves import NodeMove
    from ..memory.shortfalls import DeviceRoom, Shortfall
    from ..plan import Plan


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
    cls=SourceOption,
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
    model: Source,
    at_peak: bool,
    verbose: bool,
    fit_print: bool,
    no_changes: bool,
    html: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show what MODEL holds in memory on each device, before anything is allocated.

    A model's compute buffers are sized for the largest graph that llama.cpp reserves memory for.
    With --n-tokens or --n-past, they are sized for the graph of these options. Only the header of
    the file is read. A model does not fit if a device lacks memory, or if a tensor is larger than
    its largest buffer. Then the three smallest changes that make it fit follow. Each was planned,
    and keeps as much memory free as --fit (-fitt). If it fits, changes that lower it follow.
    MODEL may also be a plan that -o saved, or a record.

    \b
    ggml-py memory model.gguf -d sim:gpu0,profile=rtx4090 -ngl 20 -c 8192
    ggml-py memory model.gguf -c 32768 --at-peak
    ggml-py memory plan.json.gz --html memory.html
    ggml-py memory model.gguf --fit-print
    """
    from ..memory.node_moves import node_moves

    if fit_print and (as_json or html):
        raise click.UsageError("--fit-print prints its lines only: not with --json or --html")
    if html is not None:
        check_target(html, force)
        if model.is_at(html):
            raise click.UsageError(f"--html {html} would replace what is read: give another name")
    room, notes = Room(), list[str]()
    if model.is_model:
        from ..llama import LlamaModel
        from ..llama.room import expert_caches

        check_options(model)
        asked = _as_fit_params() if fit_print else {}
        if model.options["graphs"] == "auto":  # exact sizes for every architecture are libllama's
            asked["graphs"] = "libllama"
        with model.opened(("-lm", "none") if fit_print else (), **asked) as loaded:
            if not isinstance(loaded, LlamaModel):
                raise click.UsageError("memory is libllama's: not with --graphs ours")
            if fit_print:
                click.echo(loaded.fit_print(), nl=False)
                return
            as_asked = any(option.name in ("n_tokens", "n_past") for option in given_options())
            plan = loaded.plan(*model.shape) if as_asked else loaded.reserved_plan()
            # --fit has chosen: with another option it would choose otherwise.
            look = not (no_changes or model.words or model.options["fit"] == "on")
            room = _room(loaded, model, look)
            notes += [f"of the cache, {cache}" for cache in expert_caches(loaded)]
            notes += _of_context(loaded, model.options["split_mode"])
    else:
        plan = model.plan()
        notes += _laid_out(model)
    moves: Sequence[NodeMove] = () if no_changes or room.shortfalls else node_moves(plan)
    if as_json:
        echo_json(_data(plan, room, moves))
    else:
        from ..export.memory_text import show_buffers, show_changes, show_devices

        for line in room.said:
            say(line)
        show_devices(plan.memory, room.free)
        show_changes(room.reserve_said, room.tried, moves, room.lacking)
        show_buffers(plan.memory, at_peak, verbose)
        for note in notes:
            say(note)
    if html is not None:
        from ..export.memory_text import saving
        from ..export.page.first_screen import ModelAnswers

        if plan.memory.unknown:
            raise ValueError(f"nothing to draw: {plan.memory.unknown}")
        savings = [(one.text, saving(one, room.lacking)) for one in room.tried or ()]
        answers = ModelAnswers(lacks=room.shortfalls, savings=savings, view="memory")
        save(plan, html, "html", force=force, tried=answers)
        click.echo(f"{html}: the memory of {plan.headline()}", err=True)


class Room(NamedTuple):
    """Whether a model fits, and options that would lower its memory or make it fit."""

    rooms: Sequence[DeviceRoom] = ()
    shortfalls: Sequence[Shortfall] = ()
    reserve: Mapping[str, int] = MappingProxyType({})  # bytes that changes leave free, by device
    tight: Mapping[str, int] = MappingProxyType({})  # bytes that stay free, where less than that
    unknown: Sequence[str] = ()  # devices that do not say how much memory they have
    used: Mapping[str, int] | None = None  # bytes by device; None: nothing is known
    tried: Sequence[Tried] | None = None  # None: nothing was tried
    reserved: Mapping[str, Any] | None = None  # the graphs that memory is reserved for

    @property
    def free(self) -> dict[str, tuple[int, int]]:
        """Bytes free and in all, by device."""
        return {room.device: (room.free or 0, room.total or 0) for room in self.rooms}

    @property
    def lacking(self) -> list[str]:
        """Devices that lack memory or a larger buffer."""
        return [one.device for one in self.shortfalls]

    @property
    def fits(self) -> bool | None:
        """None if it is not known."""
        if any(one.sure for one in self.shortfalls):
            return False
        return None if self.shortfalls or self.unknown or self.used is None else True

    @property
    def said(self) -> list[str]:
        """Sentences about missing memory, unknown memory, and devices with little left."""
        used = self.used or {}
        lines = [one.verdict for one in self.shortfalls]
        if self.fits:
            left = (f"{format_bytes((one.free or 0) - used.get(one.device, 0))} of {one.device}"
                    for one in self.rooms)  # fmt: skip
            lines.append(f"it fits: {', '.join(left)} stay free")
        lines += [
            f"{device} does not say how much memory it has: whether {used.get(device, 0):,} bytes "
            "fit is not known"
            for device in self.unknown
        ]
        return lines + [
            f"{device} keeps {format_bytes(left)} free, less than the reserve of "
            f"{format_bytes(self.reserve[device])} (-fitt)"
            for device, left in self.tight.items()
        ]

    @property
    def reserve_said(self) -> str:
        """What changes leave free, in a few words."""
        sizes = dict.fromkeys(self.reserve.values())
        if len(sizes) == 1:
            size = next(iter(sizes))
            return f"with {format_bytes(size)} kept free on each device (-fitt)" if size else ""
        each = ", ".join(f"{format_bytes(n)} on {name}" for name, n in self.reserve.items())
        return f"with {each} kept free (-fitt)" if each else ""


def _as_fit_params() -> dict[str, Any]:
    """llama-fit-params' own options in place of ours; it maps no file."""
    own = {"n_ctx": 0, "n_batch": 2048}
    given = {option.name for option in given_options()}
    return {"load_mode": "none", **{name: own[name] for name in own if name not in given}}


def _laid_out(source: Source) -> list[str]:
    """In whose layout a record's graph got its memory, if it is not its own."""
    if source.kind is not RECORD:
        return []
    one = source.recorded
    if one.laid_out_as in (None, one):
        return []
    return [f"the program gave it its places in the larger layout of plan {one.laid_out_as.index}"]


def _room(loaded: LlamaModel, source: Source, look: bool) -> Room:
    from ..llama.room import fitting, lower
    from ..memory.shortfalls import not_known, used

    rooms, rows = loaded.rooms, loaded.memory
    reserve = _reserve(loaded, source.options["fit_target"])
    lacks = loaded.shortfalls()
    if not rows:
        return Room(rooms)
    below = {} if lacks else {one.device: one for one in loaded.shortfalls(reserve)}
    tight = {d: one.available + one.reserve - one.needed for d, one in below.items()}
    found = Room(rooms, lacks, reserve, tight, not_known(rows, rooms), used(rows))
    found = found._replace(reserved=loaded.reserved._asdict())
    if not look:
        return found
    again: Any = ModelSetup(source).opened  # of libllama, too: it is built
    if lacks:
        with bar("looking for changes that make it fit") as progress:
            return found._replace(tried=fitting(loaded, again, reserve, progress=progress))
    with bar("looking for options that need less memory") as progress:
        return found._replace(tried=lower(loaded, again, progress))


def _reserve(loaded: LlamaModel, margins: Sequence[int]) -> dict[str, int]:
    """Bytes that stay free on each device, by llama.cpp's --fit-target in MiB: a number for each
    GPU, the last one for all others; the CPU keeps as much as the first GPU."""
    gpus = [d.name for d in loaded.devices if d.type.name in ("GPU", "IGPU")]
    each = [*margins, *[margins[-1]] * len(gpus)]
    found = {name: each[i] << 20 for i, name in enumerate(gpus)}
    return {room.device: found.get(room.device, margins[0] << 20) for room in loaded.rooms}


def _of_context(loaded: LlamaModel, split_mode: str) -> list[str]:
    """The graphs as llama.cpp's log has them, and a note if it gives up pipeline parallelism."""
    notes = [f"llama.cpp's log has: {loaded.reserved.text}"]
    if loaded.pipeline_lacks:
        lacks = "; ".join(one.text for one in loaded.pipeline_lacks)
        notes.append(f"llama.cpp goes on without pipeline parallelism: for that {lacks}")
    if split_mode == "tensor":
        notes.append(
            "with -sm tensor these are each GPU's parts, without buffers for sums with other GPUs"
        )
    return notes


def _data(plan: Plan, room: Room, moves: Sequence[NodeMove]) -> dict[str, Any]:
    return {
        "headline": plan.headline(),
        "devices": {
            one.device: {
                "free": one.free or 0,
                "total": one.total or 0,
                "max_buffer": one.max_buffer,
            }
            for one in room.rooms
        },
        "fits": room.fits,
        "lacks": None if room.used is None else _lacks(room.shortfalls),
        "shortfalls": [one.to_dict() for one in room.shortfalls],
        "reserve": dict(room.reserve),
        "below_reserve": dict(room.tight),
        "reserved": room.reserved,
        "changes": [one.to_dict() for one in room.tried or ()],
        "node_moves": [move.to_dict() for move in moves],
        **plan.memory.to_dict(),
    }


def _lacks(found: Sequence[Shortfall]) -> dict[str, int]:
    return {one.device: one.missing for one in found if one.kind == "memory"}

"""The memory of a plan on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table

from ..memory import ComputeBuffer, MemoryBlock, PlanMemory
from ..memory.node_moves import NodeMove
from ..trace.names import counted
from ..trace.planned import format_bytes
from .console import new_console, new_table, say


class SavingChange(Protocol):
    """An option that was tried (`llama.room.ModelAnswers`)."""

    @property
    def text(self) -> str:
        """As llama.cpp's programs take it."""
        ...

    @property
    def saved(self) -> dict[str, int]:
        """Bytes by device; negative: it needs more."""
        ...

    @property
    def left(self) -> dict[str, int]:
        """Bytes that stay free, by device."""
        ...


_SHOWN = 5  # tensors alive at the peak
_WIDTH = 60  # of the curve


def mib(n: int | None) -> str:
    """Bytes as MiB with two decimals, as llama.cpp's log has them; "?" if not known."""
    return "?" if n is None else f"{n / 2**20:.2f}"


def show_devices(
    memory: PlanMemory,
    free: Mapping[str, tuple[int, int]] | None = None,
    console: Console | None = None,
) -> None:
    """Prints the sizes of a model's buffers by device, beside each device's `free` and total
    memory."""
    console = console or new_console()
    if memory.breakdown:
        console.print(_breakdown(memory, free or {}))
    if memory.unknown:
        say(f"the compute buffers are not known: {memory.unknown}", console=console)


def show_buffers(
    memory: PlanMemory, at_peak: bool = False, every: bool = False, console: Console | None = None
) -> None:
    """Prints each compute buffer: its peak, and what is alive then. With `at_peak` that is every
    tensor; with `every` each tensor's place and lifetime follow. Then what the graph uses of other
    buffers."""
    console = console or new_console()
    for buffer in memory.buffers:
        if buffer.size:
            _buffer(console, memory, buffer, at_peak, every)
    for held in memory.held:
        largest = ", ".join(f"{t.name} {format_bytes(t.nbytes)}" for t in held.tensors[:3])
        say(
            f"{held.buft}, {held.what}: {counted(len(held.tensors), 'tensor')} that the graph "
            f"uses, {format_bytes(held.nbytes)}; the largest: {largest}",
            console=console,
        )
    if memory.note:
        say(memory.note, console=console)
    sizes = {b.name: b.size for b in memory.buffers}
    # The compute buffer of several devices with split mode "tensor", of which each has all.
    whole = next((size for name, size in sizes.items() if name.startswith("Meta(")), 0)
    if any((row.compute or 0) > sizes.get(row.buft, whole) for row in memory.breakdown):
        say(
            "the table has what llama.cpp allocates: each compute buffer of the largest graph that "
            "it reserves memory for, which is not this one",
            console=console,
        )


def _breakdown(memory: PlanMemory, free: Mapping[str, tuple[int, int]]) -> Table:
    """A row per buffer type, and per device its sum beside its memory."""
    names = ("weights", "cache", "compute", "outputs", "together", "free", "total")
    table = new_table("memory (MiB)", *(f">{name}" for name in names))
    for device in dict.fromkeys(row.device for row in memory.breakdown):
        rows = [row for row in memory.breakdown if row.device == device]
        columns = zip(*((r.weights, r.cache, r.compute or 0, r.outputs) for r in rows), strict=True)
        sums = [sum(column) for column in columns]
        room = [mib(n) for n in free[device]] if device in free else ["?", "?"]
        table.add_row(device, *map(mib, sums), mib(sum(sums)), *room)
        for row in rows if len(rows) > 1 or rows[0].buft != device else ():
            sizes = (row.weights, row.cache, row.compute, row.outputs)
            table.add_row(f"  {row.buft}", *map(mib, sizes))
    return table


def _buffer(
    console: Console, memory: PlanMemory, buffer: ComputeBuffer, at_peak: bool, every: bool
) -> None:
    alive = buffer.alive(buffer.peak_step)
    console.print()
    say(
        f"{buffer.name} compute buffer, {format_bytes(buffer.size)}"
        + (f" in {len(buffer.chunk_sizes)} chunks" if len(buffer.chunk_sizes) > 1 else "")
        + f": at most {format_bytes(buffer.peak)} alive, at step {buffer.peak_step} of "
        f"{len(memory.steps)} ({memory.what(buffer.peak_step)}); "
        f"{format_bytes(buffer.fragmented)} lost between tensors, {format_bytes(buffer.padding)} "
        f"to the alignment of {buffer.alignment}",
        console=console,
    )
    console.print(f"  alive: {curve(buffer.live, buffer.size)}", soft_wrap=True)
    shown = alive if at_peak else alive[:_SHOWN]
    console.print(_blocks(memory, shown, "alive at the peak"))
    if len(alive) > len(shown):
        rest = sum(block.padded for block in alive[len(shown) :])
        n = counted(len(alive) - len(shown), "other tensor")
        say(f"and {n}, {format_bytes(rest)} (--at-peak shows them)", "  ", console)
    if every:
        console.print(_blocks(memory, buffer.blocks, "every tensor, in the order of places given"))


def _blocks(memory: PlanMemory, blocks: tuple[MemoryBlock, ...], title: str) -> Table:
    table = new_table(f"  {title}", ">bytes", ">offset", ">steps", "")
    for block in blocks:
        t = memory.plan.tensor(block.tensor)
        steps = f"{block.first}–{block.last}" if not block.kept else f"{block.first}– end"
        where = f"{block.chunk}:{block.offset:,}" if block.chunk else f"{block.offset:,}"
        notes = ["output"] * ("output" in t.flags) + ["input"] * ("input" in t.flags)
        if block.place_of >= 0:
            notes.insert(0, f"in the place of {memory.plan.tensor(block.place_of).name}")
        table.add_row(
            f"  {t.name} ({t.record.op_desc})", f"{block.size:,}", where, steps,
            ", ".join(notes),
        )  # fmt: skip
    return table


def show_changes(
    reserve: str = "",
    tried: Sequence[SavingChange] | None = None,
    moves: Sequence[NodeMove] = (),
    lacks: Collection[str] = (),
    console: Console | None = None,
) -> None:
    """Prints changes. With devices that lack memory
    (`lacks`) they make the model fit and keep the `reserve`, otherwise they lower its memory.
    `tried` is None without a search."""
    console = console or new_console()
    kept = f", {reserve}" * bool(reserve)
    if lacks and tried is not None and not tried:
        say(f"no change of a single option makes it fit{kept}", console=console)
    if tried or moves:
        title = "the smallest changes that make it fit" if lacks else "what would lower it"
        table = new_table(title, kept.removeprefix(", ") if lacks else "")
        for one in tried or ():
            table.add_row(f"  {one.text}", saving(one, lacks))
        for move in moves:
            what = f"  {move.op} '{move.node}' on {move.backend}"
            table.add_row(what, _savings(move.saved))
        console.print()
        console.print(table)


def saving(change: SavingChange, lacks: Collection[str]) -> str:
    """The memory that a change saves by device, and what it leaves on devices that lack some."""
    left = {name: n for name, n in change.left.items() if name in lacks}
    return _savings(change.saved) + _left(left)


def _left(left: Mapping[str, int]) -> str:
    sizes = ", ".join(f"{name} {_size(n)}" for name, n in left.items())
    return f"; leaves {sizes}" if left else ""


def _savings(saved: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name} {'-' if size > 0 else '+'}{_size(abs(size))}" for name, size in saved.items()
    )


def _size(n: int) -> str:
    """In MiB; small numbers with their unit."""
    return mib(n) if n * 100 >= 1 << 20 else format_bytes(n)


_LEVELS = " ▁▂▃▄▅▆▇█"


def curve(values: tuple[int, ...], whole: int, width: int = _WIDTH) -> str:
    """Numbers as a line of bars, each the most of its part; `whole` is a full bar."""
    if not values or whole <= 0:
        return ""
    n = min(width, len(values))
    parts = [
        values[i * len(values) // n : max((i + 1) * len(values) // n, i * len(values) // n + 1)]
        for i in range(n)
    ]
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[max(0, min(top, -(-max(part) * top // whole)))] for part in parts)

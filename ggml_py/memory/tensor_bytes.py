"""Which bytes of a compute buffer each tensor has, and from when to when."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..trace.layout import ALLOC, FREE, REUSE, TRIM, GraphLayout, LayoutEvent
from ..trace.record import ComputeBufferRecord
from ..typed import typed


class MemoryBlock(NamedTuple):
    """A tensor's place in a compute buffer, from step `first` to step `last`, both included.

    Steps count the nodes of the graph that is allocated (`GraphLayout.order`).
    """

    tensor: int  # id
    chunk: int
    offset: int  # bytes in the chunk
    size: int  # bytes that the backend asks for
    padded: int  # bytes that it takes: rounded up to the alignment
    first: int
    last: int  # the last step; of an output, which is never freed, the graph's last
    place_of: int  # id of the operand whose place it took (in place); -1: a place of its own
    kept: bool  # never freed: an output, or nothing reads it

    @property
    def end(self) -> int:
        """Bytes in the chunk up to its end."""
        return self.offset + self.padded

    @typed
    def alive(self, step: int) -> bool:
        """Whether it has its place when the node of `step` is computed."""
        return self.first <= step <= self.last


class Usage(NamedTuple):
    """One compute buffer of a layout."""

    buffer: ComputeBufferRecord
    blocks: tuple[MemoryBlock, ...]  # in the order in which they get their places
    chunk_sizes: tuple[int, ...]  # bytes
    live: tuple[int, ...]  # bytes alive at each step
    grown: int  # the step at which the last chunk got its final size; -1: without any

    @property
    def size(self) -> int:
        """Bytes of all its chunks."""
        return sum(self.chunk_sizes)

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once. The rest of `size` is lost between tensors."""
        return max(self.live, default=0)

    @property
    def peak_step(self) -> int:
        """First step at which the live bytes reach the peak."""
        return self.live.index(self.peak) if self.live else -1

    def alive(self, step: int) -> tuple[MemoryBlock, ...]:
        """The blocks that are alive at a step, the largest first. If a result is written in its
        operand's place, only the result's block is in the list."""
        found = [block for block in self.blocks if block.alive(step)]
        taken = {block.place_of for block in found if block.first == step}
        found = [block for block in found if block.tensor not in taken]
        return tuple(sorted(found, key=lambda b: (-b.padded, b.chunk, b.offset)))


def next_in_place(blocks: Sequence[MemoryBlock]) -> dict[int, tuple[int, ...]]:
    """The tensors that get bytes of each tensor's place next, by its id; () if nobody does. An
    operand's place goes to the result that is written over it."""
    found: dict[int, dict[int, None]] = {block.tensor: {} for block in blocks}
    holders: dict[int, list[tuple[int, int, int]]] = {}  # by chunk, sorted: offset, end, tensor
    for block in blocks:
        if not block.padded:
            continue
        held = holders.setdefault(block.chunk, [])
        first = bisect_right(held, (block.offset,))
        first -= first > 0 and held[first - 1][1] > block.offset
        last = bisect_left(held, (block.end,))
        parts = []
        for at, end, tensor in held[first:last]:
            found[tensor][block.tensor] = None
            parts += [(at, block.offset, tensor)] * (at < block.offset)
            parts += [(block.end, end, tensor)] * (block.end < end)
        held[first:last] = sorted([*parts, (block.offset, block.end, block.tensor)])
    return {tensor: tuple(ids) for tensor, ids in found.items()}


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // alignment) * alignment


def usage(buffer: ComputeBufferRecord, layout: GraphLayout) -> Usage:
    """What a layout makes of a compute buffer."""
    events = [event for event in layout.events if event.backend == buffer.backend]
    n = len(layout.order)
    sizes, grown = _chunks(events, buffer.alignment)
    blocks = _blocks(events, buffer.alignment, n)
    return Usage(buffer, blocks, sizes, _live(events, buffer.alignment, n), grown)


def _chunks(events: Iterable[LayoutEvent], alignment: int) -> tuple[tuple[int, ...], int]:
    sizes: dict[int, int] = {}
    grown = -1
    for event in events:
        if event.kind == ALLOC:
            end = event.offset + padded(event.size, alignment)
            if end > sizes.get(event.chunk, -1):
                sizes[event.chunk], grown = end, max(event.step, 0)
    return tuple(sizes[chunk] for chunk in sorted(sizes)), grown


def _blocks(events: Sequence[LayoutEvent], alignment: int, n_steps: int) -> tuple[MemoryBlock, ...]:
    ended: dict[int, int] = {}  # step at which a tensor loses its place
    for event in events:
        if event.kind == FREE:
            ended[event.tensor] = max(event.step, 0)
        elif event.kind == REUSE:
            ended[event.of] = max(event.step, 0)
    return tuple(
        MemoryBlock(
            event.tensor, event.chunk, event.offset, event.size, padded(event.size, alignment),
            max(event.step, 0), ended.get(event.tensor, max(n_steps - 1, 0)),
            event.of if event.kind == REUSE else -1, event.tensor not in ended,
        )
        for event in events
        if event.kind in (ALLOC, REUSE)
    )  # fmt: skip


def _live(events: Iterable[LayoutEvent], alignment: int, n_steps: int) -> tuple[int, ...]:
    """A node's operands are freed after it has its place: the most is alive in between."""
    most, ends = [0] * n_steps, [0] * n_steps
    now = at = 0
    for event in events:
        step = max(event.step, 0)
        for skipped in range(at + 1, min(step + 1, n_steps)):
            most[skipped] = ends[skipped] = now
        at = max(at, step)
        if event.kind == ALLOC:
            now += padded(event.size, alignment)
        elif event.kind in (FREE, TRIM):
            now -= padded(event.size, alignment)
        if step < n_steps:
            most[step] = max(most[step], now)
    for skipped in range(at + 1, n_steps):
        most[skipped] = now
    return tuple(most)

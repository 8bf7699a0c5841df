"""One compute buffer: the memory that a graph's tensors share while it is computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from ..trace.layout import GraphLayout
from ..trace.record import ComputeBufferRecord
from ..typed import typed
from .tensor_bytes import MemoryBlock, next_in_place, usage


class ComputeBuffer:
    """The memory that a graph's tensors share while it is computed, of one buffer type.

    A step is a node of the graph that is allocated.
    """

    def __init__(
        self,
        record: ComputeBufferRecord,
        layout: GraphLayout,
        name: str,
        backends: tuple[str, ...],
        device: str,
        tensors: Callable[[int], str],
    ) -> None:
        """`tensors` gives a tensor's name by its id."""
        self.name = name  # the buffer type's
        self.backends = backends  # that use it
        self.device = device  # whose memory it is
        self.record = record
        self._usage = usage(record, layout)
        self._tensors = tensors

    def __repr__(self) -> str:
        return f"<ComputeBuffer {self.name}: {self.size:,} bytes>"

    @property
    def alignment(self) -> int:
        """Bytes to which places are rounded up."""
        return self.record.alignment

    @property
    def size(self) -> int:
        """Bytes that this layout needs. A buffer that was made for a larger graph before stays as
        large as it was."""
        return self._usage.size

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """The same by chunk: a device with a largest allocation may need several."""
        return self._usage.chunk_sizes

    @property
    def blocks(self) -> tuple[MemoryBlock, ...]:
        """Each tensor's place, in the order in which they get them."""
        return self._usage.blocks

    @property
    def live(self) -> tuple[int, ...]:
        """Bytes alive at each step."""
        return self._usage.live

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once."""
        return self._usage.peak

    @property
    def peak_step(self) -> int:
        """First step at which the live bytes reach the peak."""
        return self._usage.peak_step

    @property
    def grown(self) -> int:
        """The step at which it got its final size; -1 if it is empty."""
        return self._usage.grown

    @property
    def fragmented(self) -> int:
        """Bytes of `size` that are alive at no time: lost between tensors."""
        return self.size - self.peak

    @typed
    def alive(self, step: int) -> tuple[MemoryBlock, ...]:
        """The blocks that are alive at a step, the largest first."""
        return self._usage.alive(step)

    @cached_property
    def next_in_place(self) -> dict[int, tuple[int, ...]]:
        """The ids of the tensors that get bytes of each tensor's place next, by its id."""
        return next_in_place(self.blocks)

    @property
    def padding(self) -> int:
        """Bytes of the tensors alive at the peak that only round up to the alignment."""
        return sum(block.padded - block.size for block in self.alive(self.peak_step))

    def to_dict(self) -> dict[str, Any]:
        """All of it as data that `json` can write."""
        return {
            "buft": self.name, "backends": list(self.backends), "device": self.device,
            "alignment": self.alignment, "size": self.size, "chunk_sizes": list(self.chunk_sizes),
            "peak": self.peak, "peak_step": self.peak_step, "fragmented": self.fragmented,
            "live": list(self.live),
            "blocks": [
                {
                    "name": self._tensors(block.tensor), **block._asdict(),
                    "next_in_place": list(self.next_in_place[block.tensor]),
                }
                for block in self.blocks
            ],
        }  # fmt: skip

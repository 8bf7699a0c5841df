"""Weights in a mapped file, as those of models are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np

from ..backends.device import Device
from ..graphs.context import Context
from ..scheduler.scheduler import Scheduler
from ..tensors.convert import row_size, type_of
from ..tensors.tensor import Tensor
from .blocks import block_of

ROWS = 64  # that are made once and repeated
_K = 2048  # elements of the rows that fill a mapped file: whole blocks of any type
_ALIGNED, _PIECE = 256, 1 << 20


class Mapped:
    """A mapped file full of blocks of one type, in which matrices of any shape lie."""

    def __init__(self, cpu: Device, scheduler: Scheduler, type_: str, total: int) -> None:
        self._scheduler = scheduler
        block = block_of(type_, _K, ROWS)
        with tempfile.TemporaryFile() as file:
            for _ in range(-(-total // block.nbytes)):
                file.write(block.tobytes())
            _read_again(file)
            self._memory = np.memmap(file, np.uint8, "c")
        self._buffer = cpu.buffer_from(self._memory)
        self._buffer.usage = "weights"

    @contextmanager
    def matrices(self, type_: str, ne: tuple[int, ...], total: int) -> Iterator[list[Tensor]]:
        """So many matrices of that shape that they have about `total` bytes together."""
        size = size_of(type_, ne)
        step = -(-size // _ALIGNED) * _ALIGNED
        count = max(min(self._memory.nbytes // step, -(-total // step)), 1)
        with Context(64 << 20) as context:
            made = [context.new_tensor(type_, *ne) for _ in range(count)]
            for i, tensor in enumerate(made):
                tensor.alloc(self._buffer, i * step)
            try:
                yield made
            finally:
                self._scheduler.reset()

    def close(self) -> None:
        """Gives the memory back."""
        self._buffer.close()


def size_of(type_: str, ne: tuple[int, ...]) -> int:
    """Bytes of one matrix."""
    return row_size(type_of(type_), ne[0]) * int(np.prod(ne[1:]))


def _read_again(file: IO[bytes]) -> None:
    """Makes the file's pages those of a file that was read, which lie together: those of one that
    was just written are up to a fifth slower."""
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file.seek(0)
    while file.read(_PIECE):
        pass

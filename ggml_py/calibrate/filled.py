"""Memory full of blocks of one type, in which matrices of any shape lie."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from ..backends.backend import Backend
from ..backends.buffer import Buffer
from ..backends.device import Device
from ..graphs.context import Context
from ..tensors.convert import row_size, type_of
from ..tensors.tensor import Tensor
from .random_bytes import block_of, fill

ROWS = 64  # that are made once and repeated
_K = 2048  # elements of the rows that fill it: whole blocks of any type
_ALIGNED, _PIECE = 256, 1 << 20
_SPARE = 1 << 20  # bytes: some devices lay tensors out with more than they have


class Filled:
    """A buffer full of blocks. `below` is memory that must last as long."""

    def __init__(self, buffer: Buffer, below: Any = None) -> None:
        self._buffer, self._below = buffer, below
        buffer.usage = "weights"

    @contextmanager
    def matrices(self, type_: str, ne: tuple[int, ...], total: int) -> Iterator[list[Tensor]]:
        """Matrices of that shape, with about `total` bytes together."""
        with Context(64 << 20) as context:
            first = context.new_tensor(type_, *ne)
            size = max(self._buffer.alloc_size(first), first.nbytes)
            step = -(-size // _ALIGNED) * _ALIGNED
            count = max(min(self._buffer.size // step, -(-total // step)), 1)
            made = [first, *(context.new_tensor(type_, *ne) for _ in range(count - 1))]
            for i, tensor in enumerate(made):
                tensor.alloc(self._buffer, i * step)
            yield made

    def close(self) -> None:
        """Gives the memory back."""
        self._buffer.close()


def mapped_file(cpu: Device, type_: str, total: int) -> Filled:
    """The memory of a mapped file, as that of a model."""
    block = block_of(type_, _K, ROWS)
    with tempfile.TemporaryFile() as file:
        for _ in range(-(-total // block.nbytes)):
            file.write(block.tobytes())
        _read_again(file)
        memory = np.memmap(file, np.uint8, "c")
    return Filled(cpu.buffer_from(memory), memory)


def own_memory(backend: Backend, type_: str, total: int) -> Filled:
    """Memory of the backend's own: of one buffer, so it may be less than asked for."""
    row = row_size(type_of(type_), _K)
    rows = min(-(-total // row), (backend.buffer_type.max_size - _SPARE) // row)
    with Context(1 << 20) as context:
        whole = context.new_tensor(type_, _K, rows)
        buffer = backend.buffer_type.alloc(whole.nbytes + _SPARE)
        try:
            whole.alloc(buffer)
            fill(whole, block_of(type_, _K, ROWS))
        except BaseException:
            buffer.close()
            raise
    return Filled(buffer)


def size_of(type_: str, ne: tuple[int, ...]) -> int:
    """Bytes of one matrix."""
    return row_size(type_of(type_), ne[0]) * int(np.prod(ne[1:]))


def _read_again(file: IO[bytes]) -> None:
    """Drops the file's pages and reads the file. Its pages then lie together: right after writing
    they do not, and are up to a fifth slower."""
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file.seek(0)
    while file.read(_PIECE):
        pass

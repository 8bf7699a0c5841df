"""Matrices to multiply with: so many that no cache holds them, in each kind of memory that models
have their weights in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..backends.device import Device
from ..boundary.ffi import lib
from ..errors import AllocError, GgmlError
from ..graphs.context import Context
from ..tensors.convert import row_size, type_of
from ..tensors.tensor import Tensor
from .bench import Bench, block_of, fill

MAPPED, REPACKED, OWN = "mapped", "repacked", "own"
_ROWS = 64  # that are made once and repeated
_PAGE = 4096


def places_of(measured: Device, type_: str) -> tuple[str, ...]:
    """The kinds of memory in which the device's weights of that type are: on the CPU the mapped
    file, and repacked if it has a layout for the type."""
    if measured.name == "BLAS":
        return (MAPPED,)
    if measured.name != "CPU":
        return (OWN,)
    return (MAPPED, REPACKED) if _repacks(measured, type_) else (MAPPED,)


def _repacks(measured: Device, type_: str) -> bool:
    for buft in measured.extra_buffer_types:
        with Context(1 << 20) as context, Context(1 << 20) as weights:
            a = weights.new_tensor(type_, 512, 64)
            try:
                weights.alloc(buft, usage="weights")
            except GgmlError:
                continue
            b = context.new_tensor("f32", 512, 1)
            if measured.supports_op(context.mul_mat(a, b)):
                return True
    return False


@contextmanager
def matrices(
    bench: Bench, type_: str, ne: tuple[int, ...], total: int, where: str
) -> Iterator[list[Tensor]]:
    """So many matrices of that shape that they have at least `total` bytes together: at least two,
    unless one has more than half of it."""
    size = row_size(type_of(type_), ne[0]) * int(np.prod(ne[1:]))
    count = max(min(-(-total // size), 3000), 2)
    block = block_of(type_, ne[0], min(_ROWS, int(np.prod(ne[1:]))))
    with Context(64 << 20) as context:
        made = [context.new_tensor(type_, *ne) for _ in range(count)]
        if where == MAPPED:
            with _mapped(bench, context, made, size, block):
                yield made
            return
        buft = bench.backend.buffer_type
        if where == REPACKED:
            buft = bench.device.extra_buffer_types[0]
        context.alloc(buft, usage="weights")
        for tensor in made:
            fill(tensor, block)
        yield made


@contextmanager
def _mapped(
    bench: Bench, context: Context, made: list[Tensor], size: int, block: object
) -> Iterator[None]:
    """Puts them into a mapped file, as models are."""
    step = -(-size // _PAGE) * _PAGE
    with tempfile.TemporaryFile() as file:
        content = np.zeros(step, np.uint8)
        content[:size] = np.resize(block, size)  # type: ignore[arg-type]
        for _ in made:
            file.write(content.tobytes())
        file.flush()
        mapped = np.memmap(file, np.uint8, "c")
        buffer = bench.cpu.buffer_from(mapped)
        try:
            buffer.usage = "weights"
            for i, tensor in enumerate(made):
                tensor.alloc(buffer, i * step)
            yield
        finally:
            bench.scheduler.reset()
            context.close()
            buffer.close()

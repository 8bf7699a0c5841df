"""Matrices to multiply with: more than the caches hold, in each kind of memory that models have
their weights in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..backends.device import Device
from ..errors import GgmlError
from ..graphs.context import Context
from ..tensors.tensor import Tensor
from .filled import ROWS, size_of
from .node_times import MOST_MATRICES, Bench
from .random_bytes import block_of, fill

MAPPED, REPACKED, OWN = "mapped", "repacked", "own"


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
    """Matrices of that shape, with about `total` bytes together."""
    total = min(total, MOST_MATRICES * size_of(type_, ne))
    if where != REPACKED:
        filled = bench.filled(type_, max(total, size_of(type_, ne)), where == MAPPED)
        with filled.matrices(type_, ne, total) as made:
            try:
                yield made
            finally:
                bench.scheduler.reset()
        return
    count = max(-(-total // size_of(type_, ne)), 1)
    block = block_of(type_, ne[0], ROWS)
    buft = bench.device.extra_buffer_types[0]
    with Context(64 << 20) as context:
        made = [context.new_tensor(type_, *ne) for _ in range(count)]
        context.alloc(buft, usage="weights")
        for tensor in made:
            fill(tensor, block)
        try:
            yield made
        finally:
            bench.scheduler.reset()

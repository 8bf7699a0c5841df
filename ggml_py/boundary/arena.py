"""Memory for contexts: address space whose first pages stay touched from one context to the next.

A context reserves far more than it uses and pays only for the pages it touches. Page faults take a
quarter of the time of building an op. A graph is often built once per token, so a closed context
leaves its block to the next one.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

from ..errors import AllocError
from .ffi import ffi

SIZE = 512 << 20  # bytes of a normal block: 1.4 million tensors of 368 bytes
_KEPT = 4 << 20  # bytes of a kept block that stay touched: 11 thousand tensors
_MAX_KEPT = 4  # blocks
_kept: list[mmap.mmap] = []


def take(size: int) -> mmap.mmap:
    """A block of `size` bytes, not cleared. Memory is used only for pages that are touched.

    Raises `AllocError` when the process cannot get that much address space.
    """
    if size == SIZE:
        with contextlib.suppress(IndexError):
            return _kept.pop()
    private = {}
    if hasattr(mmap, "MAP_PRIVATE"):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        private["flags"] = flags
    try:
        return mmap.mmap(-1, size, **private)
    except (OSError, MemoryError, OverflowError):
        raise AllocError(
            f"a context with reserve={size:,}: this process cannot get that many bytes of address "
            "space, expected fewer (the machine's memory and `ulimit -v` limit it)"
        ) from None


def give(block: mmap.mmap, used: int) -> None:
    """Takes back a block from `take` of which the first `used` bytes were touched."""
    if len(block) != SIZE or len(_kept) >= _MAX_KEPT:
        return
    if used > _KEPT:
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        block.madvise(mmap.MADV_DONTNEED, _KEPT, SIZE - _KEPT)
    _kept.append(block)


def address(block: mmap.mmap) -> Any:
    """The native pointer to a block; valid while the block is referenced."""
    return ffi.cast("void *", ffi.from_buffer(block))

"""Counts what this process holds, as far as possible, and what grew between two counts."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ggml_py.boundary.handle import LIVE

_C = ctypes.CDLL(None)
_PROC = Path("/proc/self")
_MEMORY = ("malloc: ", "blocks: ", "resident: ")


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """Bytes and numbers of objects; -1 if this system does not provide a number."""

    live: dict[str, int]
    malloc: int  # bytes allocated by malloc, exact
    blocks: int  # blocks of Python's own allocator, which has small objects, exact
    resident: int
    threads: int
    files: int

    def grown(self, now: Counts, cycles: int) -> list[str]:
        """What grew until `now`, one line each. Memory counts only from a few bytes a cycle.

        Python's own tables grow and shrink, so 16 KB of malloc'd memory do not count as a leak
        (3 KB were seen), nor do 1,000 small objects (365 were seen). Resident memory counts whole
        pages and memory that malloc keeps, so 1 MB of it is tolerated.
        """
        found = [
            f"{kind}: {now.live.get(kind, 0)} are open, before {self.live.get(kind, 0)}"
            for kind in sorted(self.live.keys() | now.live.keys())
            if now.live.get(kind, 0) > self.live.get(kind, 0)
        ]
        allowed = {
            "malloc": 16 << 10, "blocks": 1000, "resident": 1 << 20, "threads": 0, "files": 0
        }  # fmt: skip
        for what, most in allowed.items():
            before, after = getattr(self, what), getattr(now, what)
            if after - before > most:
                found.append(f"{what}: {before:,} became {after:,} in {cycles:,} cycles")
        return found


def count() -> Counts:
    """Collects garbage, returns free memory to the system, and counts."""
    gc.collect()
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
    malloc, blocks = _malloc(), sys.getallocatedblocks()
    return Counts(dict(LIVE), malloc, blocks, _resident(), _entries("task"), _entries("fd"))


def leaks(work: Callable[[], object], cycles: int, tries: int = 4) -> list[str]:
    """What `work`, with `cycles` cycles, leaves behind. Memory counts only if it grows every time.

    A leak grows every time. Other growth comes in steps: a table that is resized, or malloc's
    arenas, which keep memory that their threads used. Which arena a thread gets is random: a step
    of 1.7 MB was seen after many other tests.
    """
    grown: list[str] = []
    for _ in range(tries):
        before = count()
        work()
        grown = before.grown(count(), cycles)
        if not grown or not all(line.startswith(_MEMORY) for line in grown):
            break
    return grown


def _malloc() -> int:
    if hasattr(_C, "__sanitizer_get_current_allocated_bytes"):
        function = _C.__sanitizer_get_current_allocated_bytes
        function.restype = ctypes.c_size_t
        return int(function())
    if not hasattr(_C, "mallinfo2"):  # since glibc 2.33
        return -1
    _C.mallinfo2.restype = _Mallinfo2
    info = _C.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def _resident() -> int:
    if not _PROC.is_dir() or hasattr(_C, "__asan_init"):  # ASan keeps freed memory for a while
        return -1
    return int((_PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _entries(what: str) -> int:
    folder = _PROC / what
    return len(list(folder.iterdir())) if folder.is_dir() else -1

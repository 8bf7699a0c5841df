"""What this process holds, as far as it can be counted; and what grew between two counts."""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import dataclass
from pathlib import Path

from ggml_py._handle import LIVE

_C = ctypes.CDLL(None)
_PROC = Path("/proc/self")


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
    """Bytes, and numbers of things; -1 where this system does not tell."""

    live: dict[str, int]
    malloc: int  # bytes given out by malloc, exact
    resident: int
    threads: int
    files: int

    def grown(self, now: Counts, cycles: int) -> list[str]:
        """What `now` has more, one line each; memory only if it is more than a few bytes a cycle.

        Python's own tables grow and shrink: 16 KB are not called a leak of malloc'd memory (3 KB
        were seen). Resident memory counts whole pages, and what malloc keeps: 1 MB.
        """
        found = [
            f"{kind}: {now.live.get(kind, 0)} are open, {self.live.get(kind, 0)} were"
            for kind in sorted(self.live.keys() | now.live.keys())
            if now.live.get(kind, 0) > self.live.get(kind, 0)
        ]
        allowed = {
            "malloc": 16 << 10, "resident": 1 << 20, "threads": 0, "files": 0
        }  # fmt: skip
        for what, most in allowed.items():
            before, after = getattr(self, what), getattr(now, what)
            if after - before > most:
                found.append(f"{what}: {before:,} became {after:,} in {cycles:,} cycles")
        return found


def count() -> Counts:
    """Collects garbage, gives free memory back to the system, and counts."""
    gc.collect()
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
    return Counts(dict(LIVE), _malloc(), _resident(), _entries("task"), _entries("fd"))


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
    if not _PROC.is_dir() or hasattr(_C, "__asan_init"):  # which keeps what was freed for a while
        return -1
    return int((_PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _entries(what: str) -> int:
    folder = _PROC / what
    return len(list(folder.iterdir())) if folder.is_dir() else -1

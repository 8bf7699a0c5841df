"""Address space that this process may still get."""

from __future__ import annotations

import mmap
from pathlib import Path

_STATM = Path("/proc/self/statm")


def left() -> int | None:
    """Bytes that `ulimit -v` leaves; None without a limit, and where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _hard = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(_STATM.read_text().split()[0]) * mmap.PAGESIZE
    except OSError:
        return None
    return max(0, limit - used)


def lack(nbytes: int) -> str:
    """For messages about `nbytes` that were not to be had: how much less the process may get, or ""
    if that is not the reason."""
    most = left()
    if most is None or nbytes <= most:
        return ""
    return (
        f": `ulimit -v` leaves this process {most:,} bytes of address space, {nbytes - most:,} too "
        "few. Plans need address space, not memory: `ulimit -v unlimited` ends the limit"
    )

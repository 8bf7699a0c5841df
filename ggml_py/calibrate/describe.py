"""Describes the machine that is measured, and says how busy others keep it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import Any

from ..backends.device import Device, device, devices
from ..boundary.ffi import BUILD
from ..builds.processor import host as processor
from ..cost.machine import SIMULATED

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_STAT = Path("/proc/stat")


def here() -> dict[str, Any]:
    """What `Machine.stale` compares a file with: this library, processor and its GPUs. A simulated
    device may stand for the one that was measured."""
    gpus = {
        d.name: d.description for d in devices()
        if d.type.name in ("GPU", "IGPU") and not d.registry.startswith("RPC")
        and not d.description.startswith(SIMULATED)
    }  # fmt: skip
    return {
        "ggml": BUILD["ggml_version"], "build": BUILD["key"], "processor": processor(),
        "cards": gpus,
    }  # fmt: skip


def cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def largest_cache() -> int:
    """Bytes of the largest cache of a core; 0 if the system does not tell."""
    found = [0]
    for path in _CACHES.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            number, unit = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip()).groups()  # type: ignore[union-attr]
            found.append(int(number) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[unit])
    return max(found)


def memory() -> int:
    """Bytes of memory; 0 if the system does not tell."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


def shares_cache(measured: Device) -> bool:
    """Whether a device reads through the caches of this processor: the CPU, what computes in its
    memory, and a server on this machine. For a server the answer is a guess: it has one of this
    machine's addresses, and as much memory (a server on a GPU has the GPU's)."""
    if not measured.registry.startswith("RPC"):
        return measured.buffer_type.is_host or measured.description.startswith(SIMULATED)
    same = measured.props.memory_total == device("CPU").props.memory_total
    return same and _is_here(measured.description.rpartition(":")[0])


def _is_here(host: str) -> bool:
    """Whether an address is one of this machine's, which only those can be bound to. ggml's servers
    have IPv4 addresses."""
    try:
        with socket.socket(socket.AF_INET) as bound:
            bound.bind((socket.gethostbyname(host), 0))
    except OSError:
        return False
    return True


class Busy:
    """Cores that others kept busy since it was made: cores used by other processes, and time that
    the machine's host took (steal). 0 where the system does not count them."""

    def __init__(self) -> None:
        self._all, self._own = _busy_ticks(), _own_ticks()
        self._then = os.times().elapsed

    def others(self) -> float:
        """Cores, from 0."""
        seconds = os.times().elapsed - self._then
        if not self._all or seconds <= 0:
            return 0.0
        ticks = _busy_ticks() - self._all - (_own_ticks() - self._own)
        return max(ticks / os.sysconf("SC_CLK_TCK") / seconds, 0.0)


def _busy_ticks() -> float:
    try:
        words = _STAT.read_text().splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _wait, irq, soft, steal = map(float, words[:8])
    return user + nice + system + irq + soft + steal


def _own_ticks() -> float:
    used = os.times()
    own = used.user + used.system + used.children_user + used.children_system
    return own * os.sysconf("SC_CLK_TCK")


def load_average() -> float:
    """Processes that wanted to run, averaged over the last minute; 0 if the system does not
    tell."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0

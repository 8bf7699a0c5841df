"""Checks for free memory before the system would kill the process, and errors that name the part of
the model that the memory was for."""

from __future__ import annotations

import contextlib
import errno
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...backends.buffer import Buffer, BufferType, reserving
from ...enums import BackendDevType
from ...errors import AllocError
from ...graphs.context import Context
from ...sim.sim_device import existing

ReservedPart = tuple[str, str, Mapping[BufferType, int]]  # its name, what would need less, bytes
_MEMINFO = Path("/proc/meminfo")
_OWN_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def naming(
    part: str, advice: str, elsewhere: Callable[[Sequence[str]], str] | None = None
) -> Iterator[None]:
    """Raises `AllocError` if the block runs out of memory. `part` is a part of the model, and
    `advice` names changes that need less. `elsewhere` names one for tensors that are larger than
    any buffer."""
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:  # ENOMEM: from mmap
            raise
        if not isinstance(error, AllocError):
            raise AllocError(f"no memory for {part}: {error}. {advice}") from None
        if elsewhere is not None and error.too_large:
            advice = elsewhere(error.too_large)
        text = f"no memory for {part}: {error}. {advice}"
        raise AllocError(text, error.sizes, error.too_large) from None


def alloc_all(contexts: Mapping[BufferType, Context]) -> list[Buffer]:
    """A buffer for the tensors of each context, of the given type. Raises `AllocError`, and then
    closes all contexts and buffers."""
    try:
        return [alloc(context, buft) for buft, context in contexts.items()]
    except BaseException:
        for context in contexts.values():
            context.close()
        raise


def alloc(context: Context, buft: BufferType, usage: str = "any") -> Buffer:
    """`Context.alloc`, of address space where the memory is this machine's: planning needs no more.
    `check_reserved` checks before anything is computed. Raises `AllocError`."""
    with reserving():
        return context.alloc(buft, usage)


def check_reserved(parts: Iterable[ReservedPart]) -> None:
    """Raises `AllocError` for the first part of a model that the machine has no memory for, beside
    the parts before."""
    beside = 0
    for part, advice, found in parts:
        with naming(part, advice):
            for buft, nbytes in found.items():
                if is_machines(buft) and not buft.name.endswith("_Mapped"):
                    check_room(buft.name, nbytes, beside)
                    beside += nbytes


def sizes(buffers: Iterable[Buffer]) -> dict[BufferType, int]:
    """Bytes of the buffers of each type."""
    found: dict[BufferType, int] = {}
    for buffer in buffers:
        found[buffer.type] = found.get(buffer.type, 0) + buffer.size
    return found


def check_room(name: str, nbytes: int, beside: int = 0) -> None:
    """Raises `AllocError` for more bytes than the machine has, `beside` others that are not written
    to yet. Linux would grant them, and then kill the process when it writes to them."""
    free = available()
    free = None if free is None else max(free - beside, 0)
    if free is not None and nbytes > free:
        raise AllocError(
            f"{name}: {nbytes:,} bytes could not be allocated ({free:,} bytes are free on this "
            "machine or within this process's limit)",
            {name: nbytes},
        )


def is_machines(buft: BufferType) -> bool:
    """Whether buffers of this type are in the machine's memory, not in a GPU's. A simulated
    device's are."""
    device = buft.device
    if device is None or buft.is_host or device.type == BackendDevType.CPU:
        return True
    return existing(device.name) is not None


def available() -> int | None:
    """How many bytes the system could still give this process, swap included. None if the system
    does not tell."""
    info = dict(re.findall(r"^(\w+): +(\d+) kB$", _read(_MEMINFO), re.M))
    if "MemAvailable" not in info:
        return None
    free = (int(info["MemAvailable"]) + int(info.get("SwapFree", 0))) << 10
    own = re.search(r"^0::/(.*)$", _read(_OWN_CGROUP), re.M)
    group = _CGROUPS / (own[1] if own else "")
    return min([free, *(_left(folder) for folder in (group, *group.parents))])


def _left(group: Path) -> int:
    """How many bytes a control group may still use. Cached file contents count as free."""
    most, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if not most.isdecimal() or not used.isdecimal():
        return sys.maxsize
    files = re.search(r"^inactive_file (\d+)$", _read(group / "memory.stat"), re.M)
    return max(int(most) - int(used) + (int(files[1]) if files else 0), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

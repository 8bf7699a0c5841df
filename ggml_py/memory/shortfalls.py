"""Memory that devices lack for a model: for all of its buffers together, and for a single buffer
that is larger than the device allocates at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..trace.planned import format_bytes
from ..trace.promise import MemoryRow

MAPPED = "_Mapped"  # end of the name of a buffer type that is a mapped file
Reserve = int | Mapping[str, int]  # bytes that stay free on each device


class DeviceRoom(NamedTuple):
    """The memory of a device, before the model is loaded."""

    device: str
    free: int | None  # bytes; None: the device does not say
    total: int | None
    max_buffer: int | None = None  # bytes of the largest buffer; None: no limit
    # False if the device may allocate a larger buffer all the same: Vulkan cuts memory into buffers
    # of max_buffer bytes, and tries a larger one for a tensor that is larger.
    refuses: bool = True
    part_of: str = ""  # the device whose memory this is a part of: an integrated GPU's is the CPU's


class UncutBuffer(NamedTuple):
    """The largest buffer of one type and kind that llama.cpp allocates in one piece. Weights, cache
    and compute buffers are cut between tensors where a device has a largest buffer, so a buffer
    that is larger than that has one tensor, or is the last of 16 compute buffers."""

    buft: str  # the buffer type
    device: str  # as in MemoryRow
    kind: str  # "weights", "cache", "compute" or "outputs"
    nbytes: int
    tensor: str  # its largest tensor; "" if it is not known
    tensor_nbytes: int


class Shortfall(NamedTuple):
    """Memory that a device lacks."""

    device: str
    kind: str  # "memory": all buffers together; else the kind of one buffer that is too large
    needed: int  # bytes
    available: int  # bytes: free without the reserve, or the largest buffer
    reserve: int = 0  # bytes
    tensor: str = ""  # the largest tensor of that buffer
    tensor_nbytes: int = 0
    sure: bool = True  # False: the device may allocate it all the same

    @property
    def missing(self) -> int:
        """Bytes."""
        return self.needed - self.available

    @property
    def text(self) -> str:
        """A sentence with the device, what it needs, and what it has."""
        if self.kind == "memory":
            kept = f", with {format_bytes(self.reserve)} kept free" if self.reserve else ""
            return (
                f"{self.device} lacks {self.missing:,} bytes ({format_bytes(self.missing)}): "
                f"{self.needed:,} are needed and {self.available:,} are free{kept}"
            )
        limit = f"{self.device}'s largest buffer of {self.available:,} bytes"
        fails = "" if self.sure else ", although the device may allocate more for one tensor"
        what = f"needs {self.needed:,} bytes, more than {limit}{fails}"
        if self.tensor and self.tensor_nbytes > self.available:
            return f"'{self.tensor}' ({self.kind}) {what}"
        return f"the last buffer for {self.kind} {what}"

    @property
    def verdict(self) -> str:
        """The sentence, and whether the model fits."""
        return f"{self.text}: it {'does' if self.sure else 'may'} not fit"

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {**self._asdict(), "missing": self.missing, "text": self.text}


def shortfalls(
    rows: Iterable[MemoryRow],
    buffers: Iterable[UncutBuffer],
    rooms: Iterable[DeviceRoom],
    reserve: Reserve = 0,
) -> tuple[Shortfall, ...]:
    """Memory that devices lack for a model with these `rows` and largest `buffers`; () if it fits.
    `reserve` bytes stay free on each device. A device of unknown memory lacks none (see
    `not_known`). Buffers whose failure is not certain come last."""
    needs, found = used(rows), list(rooms)
    lacks = [*_memory(needs, found, reserve), *_largest(buffers, found)]
    return tuple(sorted(lacks, key=lambda one: not one.sure))


def not_known(rows: Iterable[MemoryRow], rooms: Iterable[DeviceRoom]) -> tuple[str, ...]:
    """The devices that the model needs memory of and that do not say how much they have."""
    needs = used(rows)
    known = {room.device for room in rooms if room.free is not None}
    return tuple(device for device, size in needs.items() if size and device not in known)


def used(rows: Iterable[MemoryRow]) -> dict[str, int]:
    """Bytes by device. A mapped file takes none: the system may drop its pages."""
    found: dict[str, int] = {}
    for row in rows:
        size = row.nbytes - (row.weights if row.buft.endswith(MAPPED) else 0)
        found[row.device] = found.get(row.device, 0) + size
    return found


def kept_free(device: str, reserve: Reserve) -> int:
    """Bytes that stay free on a device."""
    return reserve.get(device, 0) if isinstance(reserve, Mapping) else reserve


def _memory(
    needs: Mapping[str, int], rooms: Iterable[DeviceRoom], reserve: Reserve
) -> Iterator[Shortfall]:
    parts: dict[str, list[str]] = {}
    known = list(rooms)
    for room in known:
        if room.part_of:
            parts.setdefault(room.part_of, []).append(room.device)
    for room in known:
        if room.free is None:
            continue
        needed = sum(needs.get(name, 0) for name in (room.device, *parts.get(room.device, ())))
        kept = kept_free(room.device, reserve)
        # A device that the model does not use needs no reserve either.
        if needed and needed > room.free - kept:
            yield Shortfall(room.device, "memory", needed, max(room.free - kept, 0), kept)


def _largest(buffers: Iterable[UncutBuffer], rooms: Iterable[DeviceRoom]) -> Iterator[Shortfall]:
    limits = {room.device: room for room in rooms}
    for one in buffers:
        room = limits.get(one.device)
        if room is not None and room.max_buffer is not None and one.nbytes > room.max_buffer:
            yield Shortfall(
                one.device, one.kind, one.nbytes, room.max_buffer, 0, one.tensor,
                one.tensor_nbytes, room.refuses,
            )  # fmt: skip

"""The file of a record: a stream of chunks, written by ggml_py/native/record_file.cpp.

    | file    | MAGIC, then chunks
    | chunk   | "GPCK", type (4 bytes), size (u8), a random number of the process (u4), CRC-32 (u4),
    |         | time (i8, ns since the epoch), then the payload
    | payload | JSON ("head", "schd", "note"), or sections: tag (8 bytes), size (u8), the bytes

The CRC-32 covers the whole chunk, with 0 in its own place. Integers are little-endian. Several
processes may write to one file. A killed writer or a full disk may leave a chunk cut off, with
whole chunks of other processes after it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..trace.structs import Member, StructLayout

MAGIC = b"GGMLPYRECORD1\r\n\n"
_CHUNK = struct.Struct("<4s4sQIIq")
_SECTION = struct.Struct("<8sQ")
_SIGN = b"GPCK"
_JSON = frozenset({"head", "schd", "note"})
_MOST = 1 << 32  # bytes of a chunk; a larger size is damage
_LOOKS = 16  # how often all bytes of a file may be summed up


class Chunk(NamedTuple):
    """One chunk. `at` is its place in the file, `process` the number of who wrote it."""

    type: str
    process: int
    time: int  # ns since the epoch
    at: int
    payload: memoryview

    @property
    def size(self) -> int:
        """Its bytes in the file."""
        return _CHUNK.size + len(self.payload)

    def data(self) -> dict[str, Any]:
        """The payload as JSON."""
        found = json.loads(bytes(self.payload).decode("utf-8", "replace"))
        if not isinstance(found, dict):
            raise ValueError("expected an object")
        return found

    def sections(self) -> dict[str, memoryview]:
        """The payload's sections by their tags. Raises ValueError if they do not fill it."""
        found, at = {}, 0
        while at < len(self.payload):
            if at + _SECTION.size > len(self.payload):
                raise ValueError("a section is cut off")
            tag, size = _SECTION.unpack_from(self.payload, at)
            at += _SECTION.size
            if at + size > len(self.payload):
                raise ValueError("a section is cut off")
            found[tag.rstrip(b"\0").decode("ascii", "replace")] = self.payload[at : at + size]
            at += size
        return found


class Damage(NamedTuple):
    """Bytes of the file that are no whole chunk, or a chunk that says what cannot be."""

    at: int
    size: int
    is_end: bool  # nothing comes after them
    what: str = ""  # the chunk and what is wrong with it: "the counts: it has no 'seen'"

    def __str__(self) -> str:
        if self.what:
            return f"{self.size:,} bytes at {self.at:,} are damaged: {self.what}"
        if self.is_end:
            return (
                f"the last {self.size:,} bytes are a part of a chunk: the writer was killed, or "
                "the disk was full"
            )
        return f"{self.size:,} bytes at {self.at:,} are damaged"


def chunks(content: bytes, damage: list[Damage]) -> Iterator[Chunk]:
    """The whole chunks of a file, in their order. Bytes between them are added to `damage`."""
    file = _File(content)
    at = len(MAGIC) if content.startswith(MAGIC) else 0
    while at < len(content):
        found = file.chunk_at(at)
        if found is not None:
            yield found
            at += found.size
        elif content.startswith(MAGIC, at):
            at += len(MAGIC)  # two writers began the file at once
        else:
            end = file.next(at + 1)
            damage.append(Damage(at, end - at, end == len(content)))
            at = end


class _File:
    """Finds whole chunks. It stops after looking at so many bytes (`_LOOKS`): a file may have a
    million signs, each with the rest of the file as its size."""

    def __init__(self, content: bytes) -> None:
        self._content, self._view = content, memoryview(content)
        self._left = _LOOKS * len(content)

    def chunk_at(self, at: int) -> Chunk | None:
        """The whole chunk that begins there."""
        content = self._content
        if at + _CHUNK.size > len(content):
            return None
        sign, type_, size, pid, crc, time = _CHUNK.unpack_from(content, at)
        end = at + _CHUNK.size + size
        if sign != _SIGN or size > _MOST or end > len(content) or self._left < size:
            return None
        self._left -= size
        payload = self._view[at + _CHUNK.size : end]
        head = _CHUNK.pack(sign, type_, size, pid, 0, time)
        if zlib.crc32(payload, zlib.crc32(head)) != crc:
            return None
        return Chunk(type_.decode("ascii", "replace"), pid, time, at, payload)

    def next(self, at: int) -> int:
        """Where the next whole chunk begins; the end of the file without one."""
        while (at := self._content.find(_SIGN, at)) >= 0:
            if self.chunk_at(at) is not None:
                return at
            at += 1
        return len(self._content)


def layouts(described: dict[str, Any]) -> dict[str, StructLayout]:
    """The layouts that a "head" chunk describes."""
    found: dict[str, StructLayout] = {}
    for name, one in described.items():
        fields = [(str(field), str(format_), int(at)) for field, format_, at in one["fields"]]
        members = (Member(field, found.get(text, text), at) for field, text, at in fields)
        found[name] = StructLayout(int(one["size"]), tuple(members))
    return found

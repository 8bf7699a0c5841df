"""Arrays of C structs in bytes, read by the description of their layout.

A record is read on machines that have nothing but Python, so this does without numpy. Struct
members do not overlap, are aligned, and have the byte order of this machine.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

Columns = dict[str, list[Any]]

_MOST = 1 << 16  # bytes of a struct
_INTEGERS = {
    "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
}  # fmt: skip


class Member(NamedTuple):
    """A member of a struct. `format` is the layout of a struct, or a text: "i4" is a signed integer
    of four bytes, "u8" an unsigned one of eight, "S64" a text of 64 bytes, "i4:10" an array."""

    name: str
    format: str | StructLayout
    offset: int

    @property
    def values(self) -> int:
        """How many values an array has; 0 for a member that is none."""
        text = "" if isinstance(self.format, StructLayout) else self.format
        return self._count(text.partition(":")[2]) if ":" in text else 0

    def _count(self, digits: str) -> int:
        if len(digits) < 6 and digits.isdecimal() and 0 < int(digits) <= _MOST:
            return int(digits)
        raise ValueError(f"unknown field format {str(self.format)[:40]!r}")

    @property
    def is_text(self) -> bool:
        """Whether its values are bytes, up to the first NUL after the text."""
        return isinstance(self.format, str) and self.format[:1] == "S"

    @property
    def is_number(self) -> bool:
        """Whether its values are integers."""
        return isinstance(self.format, str) and not self.is_text

    @property
    def code(self) -> str:
        """Its format in the module `struct`. Raises ValueError for an unknown one."""
        if isinstance(self.format, StructLayout):
            return f"{self.format.size}s"
        base, n = self.format.partition(":")[0], self.values
        if base in _INTEGERS:
            return f"{n or 1}{_INTEGERS[base]}"
        return f"{self._count(base[1:] if base[:1] == 'S' else '')}s" * (n or 1)

    @property
    def width(self) -> int:
        """Bytes of a value of it."""
        if isinstance(self.format, StructLayout):
            return self.format.size
        return struct.calcsize(f"={self.code}") // (self.values or 1)

    def read(self, content: bytes, size: int) -> list[Any]:
        """Its values in all rows of `size` bytes."""
        width, n, end = self.width, self.values, len(content)
        columns: list[list[Any]] = []
        for at in range(self.offset, self.offset + width * (n or 1), width):
            if isinstance(self.format, StructLayout):
                parts = [content[i : i + width] for i in range(at, end, size)]
                columns.append([*Rows(self.format, b"".join(parts))])
            elif self.is_text:
                texts = [content[i : i + width] for i in range(at, end, size)]
                columns.append([text.rstrip(b"\0") for text in texts])
            else:
                code: Any = _INTEGERS[self.format.partition(":")[0]]
                values = memoryview(content).cast(code)
                columns.append(values[at // width :: size // width].tolist())
        return [*zip(*columns, strict=True)] if n else columns[0]


@dataclass(frozen=True)
class StructLayout:
    """The layout of a struct of `size` bytes. Raises ValueError if there is no such struct."""

    size: int
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if not 0 < self.size <= _MOST:
            raise ValueError(f"a row of {self.size:,} bytes, expected at most {_MOST:,}")
        end = 0
        for member in sorted(self.members, key=attrgetter("offset")):
            if member.offset < end:
                raise ValueError(f"the field {member.name!r} begins in the one before it")
            end = member.offset + struct.calcsize(f"={member.code}")
            if member.is_number and (member.offset % member.width or self.size % member.width):
                raise ValueError(f"the field {member.name!r} is not aligned")
        if end > self.size or len({member.name for member in self.members}) < len(self.members):
            raise ValueError(f"its fields do not fit into a struct of {self.size:,} bytes")

    @cached_property
    def by_name(self) -> dict[str, Member]:
        """Its members by their names."""
        return {member.name: member for member in self.members}

    def columns(self, content: bytes, members: Iterable[Member]) -> Columns:
        """Values of the rows in `content`, by the members' names."""
        return {member.name: member.read(content, self.size) for member in members}


class Rows:
    """The rows of an array of structs, as dicts; `rows["ne"]` is a column of them."""

    def __init__(self, layout: StructLayout, content: bytes) -> None:
        """Raises ValueError for bytes that are not whole rows."""
        if len(content) % layout.size:
            raise ValueError(f"{len(content):,} bytes are not whole rows of {layout.size:,}")
        self.layout, self.content = layout, content

    def __len__(self) -> int:
        return len(self.content) // self.layout.size

    def __getitem__(self, name: str) -> list[Any]:
        """A column. Raises KeyError for an unknown name."""
        return self.layout.columns(self.content, [self.layout.by_name[name]])[name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        columns = self.columns()
        return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    def columns(self) -> Columns:
        """All columns."""
        return self.layout.columns(self.content, self.layout.members)

    def at(self, places: Iterable[int]) -> Rows:
        """The rows at some places."""
        size, view = self.layout.size, memoryview(self.content)
        return Rows(self.layout, b"".join(view[i * size : (i + 1) * size] for i in places))


def numbers(content: bytes, format: str = "i4") -> tuple[int, ...]:
    """An array of integers. Raises ValueError for bytes that are not whole ones."""
    code = _INTEGERS[format]
    n, rest = divmod(len(content), struct.calcsize(f"={code}"))
    if rest:
        raise ValueError(f"{len(content):,} bytes are not whole numbers of {format[1:]}")
    return struct.unpack(f"={n}{code}", content)

"""Reads all files that users give: plans, runs, logs, profiles, states."""

from __future__ import annotations

import codecs
import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from . import bounds

_MARKS = (
    ("utf-8", codecs.BOM_UTF8), ("utf-32", codecs.BOM_UTF32_LE), ("utf-32", codecs.BOM_UTF32_BE),
    ("utf-16", codecs.BOM_UTF16_LE), ("utf-16", codecs.BOM_UTF16_BE),
)  # fmt: skip
_SAVE = "Save it as UTF-8, or as UTF-16 with a byte order mark"
UNMARKED = f"looks like UTF-16 without a byte order mark. {_SAVE}"
_LOOKED_AT = 64  # first bytes
_PIECE = 1 << 20
_KINDS = {
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe without a file",
    stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
}  # fmt: skip
_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # our parent writes to these


def read_file(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """All bytes of a file. A pipe is read only if the shell opened it (`<(…)`, /dev/stdin).

    Raises OSError as `open` does, ValueError if it is not a file or has more than `most` bytes
    (`bounds.TEXT`). It neither blocks on nor fills memory with such files.
    """
    most = bounds.TEXT if most is None else most
    with open_file(path) as file:
        now = os.fstat(file.fileno())
        if stat.S_ISREG(now.st_mode) and now.st_size == 0:
            most = min(most, bounds.WITHOUT_SIZE)
        try:
            return read_most(file, os.fspath(path), most, now.st_size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens the file for reading. Raises as `read_file` does."""
    # Non-blocking: a pipe may have no writer, and open would wait for one.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        now = os.fstat(number)
        kind = stat.S_IFMT(now.st_mode)
        is_pipe = kind in (stat.S_IFIFO, stat.S_IFSOCK)
        if kind != stat.S_IFREG and not (is_pipe and os.fspath(path).startswith(_OPEN_ALREADY)):
            raise ValueError(f"{path} is {_KINDS.get(kind, 'not a file')}: expected a file")
        if is_pipe and hasattr(os, "set_blocking"):
            os.set_blocking(number, True)
        if kind == stat.S_IFREG and now.st_size == 0 and hasattr(os, "pread"):
            os.pread(number, 4096, 0)  # files of /proc: they fail here, by name
        return os.fdopen(number, "rb", buffering=0)
    except BlockingIOError:  # such as /proc/kmsg and trace_pipe
        os.close(number)
        raise ValueError(
            f"{path} waits for data still to come: expected a file that ends"
        ) from None
    except BaseException as error:
        os.close(number)
        if isinstance(error, OSError):
            error.filename = os.fspath(path)
        raise


def read_most(file: BinaryIO, name: str, most: int, size: int = 0) -> bytes:
    """The rest of an open file, or of a pipe. Raises ValueError for more than `most` bytes; `size`:
    that it says it has."""
    pieces: list[bytes] = []
    n = 0
    while max(n, size) <= most:
        piece = file.read(_PIECE)
        if piece is None:
            raise ValueError(f"{name} waits for data still to come: expected a file that ends")
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        n += len(piece)
    raise ValueError(
        f"{name} has more than {most >> 20:,} MiB, the most that is read of such a file"
    )


def decompressed(content: bytes) -> bytes:
    """The content of a file, decompressed if it was compressed with gzip.

    Raises ValueError if it is damaged, or larger than any plan: even a small file can be."""
    pieces: list[bytes] = []
    left = bounds.TEXT + 1
    while content.startswith(b"\x1f\x8b") and left and len(pieces) < bounds.MEMBERS:
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            pieces.append(member.decompress(content, left))
        except zlib.error as error:
            raise ValueError(f"its compression is damaged: {error}") from None
        left -= len(pieces[-1])
        if left and not member.eof:
            raise ValueError("its compression is damaged: it ends early")
        content = member.unused_data
    if not left:
        raise ValueError(f"more than {bounds.TEXT >> 20:,} MiB when decompressed")
    if pieces and content.strip(b"\0"):
        raise ValueError(f"its compression is damaged: {len(content):,} bytes come after its end")
    return b"".join(pieces) if pieces else content


def parse_json(content: bytes) -> Any:
    """The data in a JSON file, which may be compressed. Raises ValueError, also if it would take
    more memory than any plan does."""
    try:
        content = decompressed(content)
        count = content.count
        n = count(b",") + count(b"[") + count(b"{") + 3 * count(b":")  # keys take more memory
        if n <= bounds.VALUES:
            return json.loads(content)
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error})") from None
    raise ValueError(f"it has about {n:,} values, expected at most {bounds.VALUES:,}")


def in_utf8(content: bytes, errors: str = "replace") -> bytes:
    """Text in UTF-8 without a byte order mark, if it begins with one: PowerShell's `>` writes
    UTF-16. Other bytes are returned as they are."""
    for encoding, mark in _MARKS:
        if content.startswith(mark):
            return content.decode(encoding, errors).removeprefix("\ufeff").encode()
    return content


def decoded(content: bytes, name: str | os.PathLike[str]) -> str:
    """The text of a file in UTF-8, or in UTF-16 or UTF-32 with a byte order mark. Raises ValueError
    for other encodings."""
    if is_unmarked(content):
        raise ValueError(f"{name} {UNMARKED}")
    try:
        return in_utf8(content, "strict").decode()
    except UnicodeDecodeError as error:
        at = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise ValueError(f"{name} is not {error.encoding.upper()}: {at}. {_SAVE}") from None


def check_lines(text: str, name: str, most: int = bounds.TEXT) -> None:
    """Raises ValueError for a text with more lines than any has, or with a line of more than `most`
    characters."""
    if (n := text.count("\n")) > bounds.LINES:
        raise ValueError(f"{name} has {n:,} lines, expected at most {bounds.LINES:,}")
    at = 0
    while len(text) - at > most:
        end = text.rfind("\n", at, at + most)
        if end < 0:
            line = text.count("\n", 0, at) + 1
            raise ValueError(f"line {line} of {name} has more than {most:,} characters")
        at = end + 1


def is_unmarked(content: bytes) -> bool:
    """Whether it looks like English text in UTF-16 without a byte order mark."""
    head = content[:_LOOKED_AT]
    halves = {bool(half.strip(b"\0")) for half in (head[::2], head[1::2])}
    return len(head) > 3 and halves == {True, False}


def read_text(path: Path) -> str:
    """A file's text; bytes that are not UTF-8 are replaced. Raises as `read_file` does."""
    return read_file(path).decode("utf-8", "replace")

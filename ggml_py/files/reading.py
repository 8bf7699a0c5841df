"""The one door through which files of users are read: plans, runs, logs, profiles, states."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST = 1 << 30  # bytes of a file; a node of a plan takes about 700
# A file of /proc says that it has no bytes, and some never end.
_MOST_WITHOUT_SIZE = 64 << 20
_PIECE = 1 << 20
_KINDS = {
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe without a file",
    stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
}  # fmt: skip
_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # whoever started us wrote to it


def read_file(path: str | os.PathLike[str], most: int = MOST) -> bytes:
    """All bytes of a file; of a pipe only where the shell opened it (`<(…)`, /dev/stdin).

    Raises OSError as `open` does, ValueError for what is no file and for one of more than `most`
    bytes; neither waits nor fills the memory.
    """
    with open_file(path) as file:
        return read_most(file, os.fspath(path), most)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, opened to be read. Raises as `read_file`."""
    # Not to wait for who writes into a pipe, which nobody may do.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        kind = stat.S_IFMT(os.fstat(number).st_mode)
        is_pipe = kind in (stat.S_IFIFO, stat.S_IFSOCK)
        if kind != stat.S_IFREG and not (is_pipe and os.fspath(path).startswith(_OPEN_ALREADY)):
            raise ValueError(f"{path} is {_KINDS.get(kind, 'no file')}: expected a file")
        if is_pipe and hasattr(os, "set_blocking"):
            os.set_blocking(number, True)
        return os.fdopen(number, "rb", buffering=0)
    except BaseException:
        os.close(number)
        raise


def read_most(file: BinaryIO, name: str, most: int = MOST) -> bytes:
    """What is left in an open file. Raises ValueError for more than `most` bytes."""
    now = os.fstat(file.fileno())
    if stat.S_ISREG(now.st_mode) and now.st_size == 0:
        most = min(most, _MOST_WITHOUT_SIZE)
    pieces: list[bytes] = []
    n = 0
    while max(n, now.st_size) <= most:
        piece = file.read(_PIECE)
        if piece is None:  # as /proc/kmsg, and trace_pipe
            raise ValueError(f"{name} waits for what is yet to come: expected a file that ends")
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        n += len(piece)
    raise ValueError(f"{name} has more than {most >> 20:,} MiB, the most that is read of a file")


def read_text(path: Path) -> str:
    """A file's text; bytes that are none of UTF-8 are replaced. Raises as `read_file`."""
    return read_file(path).decode("utf-8", "replace")

"""Writes files that appear under their name only when they are complete."""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_numbers = itertools.count()
_SHOWN = 40  # characters of the name in that of the unfinished file: names have at most 255 bytes


@contextmanager
def whole_file(path: Path, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which gets the name `path` when the block ends without an error.

    It replaces a file of that name; processes that have the old file open keep it. With
    replace=False the old file stays and FileExistsError is raised. A symbolic link stays and points
    to the new file. Something that is not a regular file, such as /dev/stdout or a pipe, is written
    to directly. Raises OSError (disk full) and leaves nothing behind.
    """
    path = Path(path)
    if replace and path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as out:
            yield out
        return
    path = Path(os.path.realpath(path))  # after that: of a pipe (/dev/stdout) it is no path
    # In the same folder, so it can be renamed. Each call, on any thread, has its own name.
    part = path.with_name(f"{path.name[:_SHOWN]}.part{os.getpid()}-{next(_numbers)}")
    try:
        with part.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())  # a rename may reach the disk before the data does
        if replace:
            part.replace(path)
        else:
            _link(part, path)
    finally:
        part.unlink(missing_ok=True)


def _link(part: Path, path: Path) -> None:
    """Gives `part` the name `path`. Fails if the name is taken; check and link are one step."""
    try:
        path.hardlink_to(part)
    except FileExistsError:
        raise FileExistsError(f"{path} already exists: force=True replaces it") from None
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError(f"{path} already exists: force=True replaces it") from None
        part.replace(path)


def write_whole(path: str | Path, content: bytes, force: bool = True) -> None:
    """Writes `content` to `path`: completely or not at all. It is compressed if `path` ends with
    ".gz".

    Raises FileExistsError if the file exists, unless `force`.
    """
    path = Path(path)
    if path.name.endswith(".gz"):
        content = gzip.compress(content, compresslevel=1, mtime=0)
    with whole_file(path, replace=force) as out:
        out.write(content)

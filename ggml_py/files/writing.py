"""Files that appear under their name only when they are whole."""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_numbers = itertools.count()


@contextmanager
def whole_file(path: Path, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to be written, which takes the name `path` when the block ends without an error.

    A file of that name is replaced then, and who has that one open keeps it; unless `replace` it
    stays, and FileExistsError is raised. A link keeps pointing where it does, to the new file. What
    is no file, as /dev/stdout or a pipe, is written to as it is. Raises OSError (disk full) with
    nothing left behind.
    """
    path = Path(os.path.realpath(path))
    if replace and path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as out:
            yield out
        return
    # Beside it, so that it can be renamed; another name for each call, of any thread.
    part = path.with_name(f"{path.name}.part{os.getpid()}-{next(_numbers)}")
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
    """`part` as `path` too; fails where something is there, without a moment between."""
    try:
        path.hardlink_to(part)
    except FileExistsError:
        raise FileExistsError(f"{path} is there already: force=True replaces it") from None
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError(f"{path} is there already: force=True replaces it") from None
        part.replace(path)


def write_whole(path: str | Path, content: bytes, force: bool = True) -> None:
    """Writes `content` to `path`, which is whole or not there. A path that ends with ".gz" is
    compressed.

    Raises FileExistsError where a file is there already, unless `force`.
    """
    path = Path(path)
    if path.name.endswith(".gz"):
        content = gzip.compress(content, compresslevel=1, mtime=0)
    with whole_file(path, replace=force) as out:
        out.write(content)

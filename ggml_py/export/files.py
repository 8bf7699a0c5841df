"""Files that are written whole or not at all."""

from __future__ import annotations

import gzip
import os
from pathlib import Path


def write_whole(path: str | Path, content: bytes, force: bool = True) -> None:
    """Writes `content` to `path`: to a file beside it first, so that it is whole or not there. A
    path that ends with ".gz" is compressed.

    Raises FileExistsError where a file is there already, unless `force`.
    """
    path = Path(path)
    if path.name.endswith(".gz"):
        content = gzip.compress(content, compresslevel=1, mtime=0)
    part = Path(f"{path}.part{os.getpid()}")
    try:
        part.write_bytes(content)
        if force:
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

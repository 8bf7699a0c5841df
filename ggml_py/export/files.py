"""Files that are written whole or not at all."""

from __future__ import annotations

import gzip
from pathlib import Path

from .._whole_file import whole_file


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

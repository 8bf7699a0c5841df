"""The hash of a model's header, which tells models apart without their weights."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from ..boundary.mapped import Stamp
from .reader import Gguf


def header_digest(gguf: Gguf) -> str:
    """SHA-256 of the header: metadata, names, types and shapes; of a split model of the first
    part's. A file that ends after its header has the same as the whole one."""
    return _digest(gguf.path, gguf._stamps[0], gguf.data_offset)


@lru_cache(maxsize=64)
def _digest(path: Path, _stamp: Stamp, n: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(n)).hexdigest()

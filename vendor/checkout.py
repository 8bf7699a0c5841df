"""A copy of a checkout's ggml from which it is built, so that only what changed is compiled."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vendor.comments import without_comments

_FOLDERS = ("cmake", "include", "src")


def digest_of(ggml: Path) -> str:
    """A hash of all files that decide what is built, without comments in C and C++."""
    digest = hashlib.sha256()
    for path in (*_files(ggml), *sorted(ggml.parent.glob("docs/ops/*.csv"))):
        text = hashlib.sha256(without_comments(path)).hexdigest()
        digest.update(f"{os.path.relpath(path, ggml)}\0{text}\n".encode())
    return digest.hexdigest()


def copied(ggml: Path, target: Path, comments: bool = False) -> Path:
    """Makes `target` a copy of the checkout's ggml folder, and returns it. A file in which at most
    comments changed stays as it was, with its time, so that it is not compiled again; with
    `comments` it is copied. What was restored with an old time is new here."""
    there = {path.relative_to(ggml) for path in _files(ggml)}
    for path in list(target.rglob("*")):
        if not path.is_dir() and path.relative_to(target) not in there:
            path.unlink()
    for name in sorted(there):
        source, copy = ggml / name, target / name
        read = Path.read_bytes if comments else without_comments
        if copy.is_file() and read(copy) == read(source):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    return target


def _files(ggml: Path) -> Iterator[Path]:
    folders = (path for name in _FOLDERS for path in (ggml / name).rglob("*"))
    own = (path for path in ggml.glob("*") if path.suffix in (".txt", ".in"))
    return iter(sorted(path for path in (*own, *folders) if path.is_file()))


def replaces(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether a build (its build.json) differs from another only in our own code, or in what is in
    its checkout."""
    if old.get("configuration") == new["configuration"]:
        return True
    same = [(one.get("checkout"), one.get("label"), one.get("cmake")) for one in (new, old)]
    return bool(same[0][0]) and same[0] == same[1]

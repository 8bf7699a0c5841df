"""A copy of a checkout's ggml from which it is built, so that only what changed is compiled."""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vendor.comments import without_comments, without_comments_of
from vendor.edit import Edit

_FOLDERS = ("cmake", "include", "src")


def digest_of(ggml: Path) -> str:
    """A hash of all files that decide what is built, without comments in C and C++."""
    digest = hashlib.sha256()
    for path in _files(ggml):
        text = hashlib.sha256(without_comments(path)).hexdigest()
        digest.update(f"{os.path.relpath(path, ggml)}\0{text}\n".encode())
    return digest.hexdigest()


def copied(ggml: Path, target: Path, comments: bool = False) -> Path:
    """Makes `target` a copy of the checkout's ggml folder, and returns it. A file with changed
    comments only stays as it was, with its time, and is not compiled again; with `comments` it is
    copied. A file that was restored with an old time gets a new one."""
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


def restore_comments(src: Path, known: Path) -> None:
    """Puts the comments that our edits look for into a copy of a checkout's `src`, where the
    checkout says something else there. `known` is the `src` of a release: the comment goes before
    the line of code that it stands before there, if the code around is the same."""
    from vendor import instrument

    for source, edits in instrument.EDITS.items():
        comments = comments_of(edits)
        path, model = src / source, known / source
        if comments and path.is_file() and model.is_file():
            text = path.read_text(encoding="utf-8")
            made = with_comments(text, model.read_text(encoding="utf-8"), comments)
            if made != text:
                path.write_text(made, encoding="utf-8")


def comments_of(edits: Iterable[Edit]) -> list[str]:
    """The lines of comment, or their beginnings, in what edits look for."""
    lines = [line for edit in edits for line in (edit.anchor + "\n" + edit.until).split("\n")]
    return [line for line in lines if line.lstrip().startswith("//")]


def with_comments(text: str, model: str, comments: Iterable[str]) -> str:
    """The text with the comments of `model` that it lacks."""
    missing = [one for one in comments if one not in text and model.count(one) == 1]
    if not missing:
        return text
    code, known = _code(text), _code(model)
    matcher = difflib.SequenceMatcher(
        None, [line for _n, line in known], [line for _n, line in code], autojunk=False
    )
    places = {a + k: b + k for a, b, n in matcher.get_matching_blocks() for k in range(n)}
    lines = text.splitlines(keepends=True)
    added = []
    for comment in missing:
        at = model.count("\n", 0, model.index(comment))
        after = next((i for i, (n, _line) in enumerate(known) if n > at), -1)
        if after in places and places.get(after - 1) == places[after] - 1:
            whole = model.splitlines(keepends=True)[at]
            added.append((code[places[after]][0], at, whole))
    for n, _at, comment in sorted(added, reverse=True):
        lines.insert(n, comment)
    return "".join(lines)


def _code(text: str) -> list[tuple[int, str]]:
    """The lines that are more than comments, without these, and their numbers from 0."""
    lines = without_comments_of(text.encode()).decode().split("\n")
    return [(n, " ".join(line.split())) for n, line in enumerate(lines) if line.strip()]


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

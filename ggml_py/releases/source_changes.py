"""The lines in which two sources of ggml's scheduler and graph allocator differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..builds import script
from ..errors import NotBuiltError
from ..trace.names import counted

FILES = ("ggml-backend.cpp", "ggml-backend-sched.cpp", "ggml-sched.cpp", "ggml-alloc.c")
_SHOWN = 30  # lines
_HEAD = re.compile(r"^[A-Za-z_][^;=]*\b(\w+)\s*\(")
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


class SourceChange(NamedTuple):
    """Lines of a function that differ. Comments, blank lines and spaces do not count."""

    file: str
    function: str  # "" outside of functions
    removed: tuple[tuple[int, str], ...]  # line numbers, and the lines
    added: tuple[tuple[int, str], ...]

    def lines(self) -> list[str]:
        """As a patch has them, with line numbers."""
        number = (self.added or self.removed)[0][0]
        within = f" in {self.function}" if self.function else ""
        return [
            f"{self.file}:{number}{within}",
            *(f"- {text.strip()}" for _number, text in self.removed),
            *(f"+ {text.strip()}" for _number, text in self.added),
        ]

    @property
    def n_lines(self) -> int:
        """Number of lines that differ."""
        return len(self.removed) + len(self.added)


def source_changes(before: str, after: str) -> tuple[SourceChange, ...] | None:
    """The differences between two releases or checkouts; None if a source is not here."""
    folders = [source_folder(release) for release in (before, after)]
    if folders[0] is None or folders[1] is None:
        return None
    return tuple(changes_between(folders[0], folders[1]))


def source_folder(release: str) -> Path | None:
    """The folder with ggml's sources of a release or checkout; None if it is not on this machine.
    Nothing is downloaded."""
    if Path(release).is_dir():
        found = [Path(release) / part / "src" for part in ("ggml", ".")]
        return next((folder for folder in found if (folder / "ggml.c").is_file()), None)
    try:
        answer = script.answer_of("vendor.unpacked", release)
    except (ValueError, NotBuiltError):
        return None
    return Path(answer) if answer else None


def changes_between(before: Path, after: Path) -> Iterator[SourceChange]:
    """The differences between two folders with sources. A scheduler that is in a file of its own
    on one side is compared with the file that it was in."""
    for file in FILES:
        if (before / file).is_file() and (after / file).is_file():
            yield from _of_file(
                file, *((folder / file).read_text("utf-8") for folder in (before, after))
            )


def _of_file(file: str, old: str, new: str) -> Iterator[SourceChange]:
    sides = [_code(text) for text in (old, new)]
    texts = [[text for _number, text in side] for side in sides]
    matcher = difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False)
    for what, a, b, c, d in matcher.get_opcodes():
        if what != "equal":
            original = old.splitlines(), new.splitlines()
            removed, added = (
                tuple((n, lines[n - 1]) for n, _text in side[begin:end])
                for lines, side, begin, end in (
                    (original[0], sides[0], a, b), (original[1], sides[1], c, d),
                )
            )  # fmt: skip
            side, place = (sides[1], c) if added else (sides[0], a)
            yield SourceChange(
                file, _function([text for _n, text in side[: place + 1]]), removed, added
            )


def _code(text: str) -> list[tuple[int, str]]:
    """The lines with code, without comments, and their numbers."""

    def kept(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith('"') else "\n" * found[0].count("\n")

    lines = enumerate(_COMMENT.sub(kept, text).splitlines(), 1)
    return [
        (n, f" {' '.join(line.split())}" if line[:1].isspace() else line.rstrip())
        for n, line in lines
        if line.strip()
    ]


def _function(before: Sequence[str]) -> str:
    """The name of the function that begins last."""
    for line in reversed(before):
        if line.startswith("}"):
            return ""
        if (found := _HEAD.match(line)) and not line.startswith(("if", "for", "while", "return")):
            return found[1]
    return ""


def lines_of(changes: Sequence[SourceChange], verbose: bool = False) -> list[str]:
    """What to show: all lines if these are few, otherwise how many each function has."""
    n = sum(change.n_lines for change in changes)
    files = ", ".join(dict.fromkeys(change.file for change in changes))
    lines = [f"the sources differ in {counted(n, 'line')} of {files}:"]
    if n <= _SHOWN or verbose:
        return lines + [f"  {line}" for change in changes for line in change.lines()]
    by_function: dict[tuple[str, str], int] = {}
    for change in changes:
        key = change.file, change.function or "outside of functions"
        by_function[key] = by_function.get(key, 0) + change.n_lines
    most = sorted(by_function.items(), key=lambda one: -one[1])
    rows = [f"  {file}: {function}, {counted(k, 'line')}" for (file, function), k in most[:8]]
    more = [f"  and {counted(len(most) - 8, 'more function')}"] if len(most) > 8 else []
    return [*lines, *rows, *more, "  --verbose prints them"]

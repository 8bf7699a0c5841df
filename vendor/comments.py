"""The text of C and C++ sources without their comments: a change of a comment changes no build."""

from __future__ import annotations

import re
from pathlib import Path

_C = frozenset((".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".m", ".mm"))
# Strings and characters come first, because they may contain what looks like a comment.
_TOKENS = re.compile(rb'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)


def without_comments(path: Path) -> bytes:
    """The file's text, each comment replaced by its line breaks, so that lines keep their numbers.
    All bytes of a file in another language, and of one with raw strings."""
    data = path.read_bytes()
    if path.suffix not in _C or b'R"' in data or b"??/" in data:
        return data
    return without_comments_of(data)


def without_comments_of(data: bytes) -> bytes:
    """Text in C or C++, each comment replaced by its line breaks."""

    def kept(found: re.Match[bytes]) -> bytes:
        if not found[0].startswith(b"/"):
            return found[0]
        return b" " + b"\n" * found[0].count(b"\n")

    return b"\n".join(line.rstrip() for line in _TOKENS.sub(kept, data).split(b"\n"))

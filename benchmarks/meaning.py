"""A hash of what a source file does: comments, docstrings and line breaks do not count.

The record of a search names the code that it ran. Rewording a docstring does not make the record
older. Rewording a message does, because a message is a string of the code.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import tokenize
from functools import cache

_BEGINS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)  # a statement begins after these
_IGNORED = (tokenize.COMMENT, tokenize.NL)
# Strings and characters come first, because they may contain what looks like a comment.
_C = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)


@cache  # searches share files
def meaning(name: str, data: bytes) -> str:
    """The hash as 16 hex digits. All bytes count in a file of another language, and in one that
    does not parse."""
    text = data
    if name.endswith((".py", ".pyi")):
        with contextlib.suppress(UnicodeDecodeError, tokenize.TokenError, SyntaxError):
            text = _python(data.decode()).encode()
    elif name.endswith((".c", ".h", ".cpp")):
        text = _c(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:16]


def _python(text: str) -> str:
    kept, begins = [], True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _IGNORED:
            continue
        if begins and token.type in (tokenize.STRING, tokenize.NEWLINE):
            continue  # a docstring, and the end of its line
        begins = token.type in _BEGINS
        kept.append(tokenize.tok_name[token.type] if begins else token.string)
    return " ".join(kept)


def _c(text: str) -> str:
    def without(found: re.Match[str]) -> str:
        return " " if found[0].startswith("/") else found[0]

    lines = (" ".join(line.split()) for line in _C.sub(without, text).splitlines())
    return "\n".join(line for line in lines if line)

"""Passwords and keys that stand in a text: it may be shown to others."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Not those that are hidden already, in Markdown with backslashes. Lengths have a bound: others
# chose the text, and looking for them must not take quadratic time.
_HIDDEN = r"(?!\\?\*\\?\*)"
_SERVER = r"\b[\w.-]{1,40}(?=:[^\s:/@]*@[\w.-]+:[0-9])"  # USER:PASSWORD@HOST:PORT
_PASSWORD = re.compile(rf"(?i)([a-z]:/{{1,3}}[^\s/?#:@]*|{_SERVER}):{_HIDDEN}[^\s/?#]*@")
_SECRET = re.compile(
    r"(?i)([?&][^=&?\s]{0,60}?(?:token|sig|key|secret|passw|auth|cred)[^=&?\s]{0,60})="
    rf"{_HIDDEN}[^&#\s'\"]*"
)
_SECRET_FLAG = re.compile(r"(?i)(--?[\w-]*(?:api-?key|hf-?token|hft|password|secret))(=.*)?", re.S)


def without_secrets(text: str) -> str:
    """Text without the passwords of its addresses, and without values of their queries that look
    like secrets."""
    return _SECRET.sub(r"\1=***", _PASSWORD.sub(r"\1:***@", text))


def hidden(words: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line without secrets."""
    found: list[str] = []
    is_next = False
    for word in words:
        flag = _SECRET_FLAG.fullmatch(word)
        shown = f"{flag[1]}=***" if flag and flag[2] else without_secrets(word)
        found.append("***" if is_next else shown)
        is_next = flag is not None and flag[2] is None
    return tuple(found)

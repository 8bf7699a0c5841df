"""Text that somebody else chose: names of tensors, devices, files and programs, servers' errors.

One function for each kind of output. JSON escapes by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

# C0 and C1 controls but tab and line feed, marks that change the direction of text, halves of
# surrogate pairs, which no encoding has, and what XML cannot have.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufffe\uffff]"
)
# The last four: as wide as a letter of Chinese, and computed all the same.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
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
_NO_SPACE = "\u200b"


def visible(text: str) -> str:
    """Text for a terminal: an escape sequence is shown and does nothing, and addresses have no
    passwords."""
    return without_secrets(_UNSEEN.sub(_picture, text))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


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


def cell(value: object) -> object:
    """A cell of a CSV file. Spreadsheets compute text that begins like a formula, so it gets an
    apostrophe, which they hide."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def html(text: str) -> str:
    """Text in HTML, also in an attribute."""
    return escape(visible(text))


def markdown(text: str) -> str:
    """Text in a line or a cell of Markdown: it is no markup, no HTML and no link."""
    text = visible(re.sub("[ \t\n]+", " ", text).strip(" "))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_|\[\]#@~])", r"\\\1", text)
    # GitHub makes links of these, with a backslash, too.
    return re.sub(r"(?<=@)(?=\w)|(?<=://)|(?i:(?<=\bwww)(?=\.))", _NO_SPACE, text)


def fenced(text: str, kind: str = "") -> list[str]:
    """Lines of Markdown that show text as it is."""
    text = visible(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{fence}{kind}", text, fence]

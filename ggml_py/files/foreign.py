"""Text that somebody else chose: names of tensors, devices, files and programs, servers' errors.

One function for each kind of output. JSON escapes by itself.
"""

from __future__ import annotations

import re
from html import escape

from .secrets import without_secrets

# C0 and C1 controls but tab and line feed, marks that change the direction of text, halves of
# surrogate pairs, which no encoding has, and what XML cannot have.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufffe\uffff]"
)
# The last four: as wide as a letter of Chinese, and computed all the same.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NO_SPACE = "\u200b"


def visible(text: str) -> str:
    """Text for a terminal: an escape sequence is shown and does nothing, and addresses have no
    passwords."""
    return without_secrets(_UNSEEN.sub(_picture, text))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def cell(value: object) -> object:
    """A cell of a CSV file, which may go to a terminal. Spreadsheets compute text that begins like
    a formula, so it gets an apostrophe, which they hide."""
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.startswith(_FORMULA) else visible(value)


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

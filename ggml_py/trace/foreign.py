"""Text that somebody else chose: names of tensors, devices, files and programs, servers' errors.

One function for each kind of output. HTML has `html.escape`, JSON escapes by itself.
"""

from __future__ import annotations

import re

# C0 and C1 controls but tab and line feed, marks that change the direction of text, halves of
# surrogate pairs, which no encoding has, and what XML cannot have.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_FORMULA = ("=", "+", "-", "@", "\t")


def visible(text: str) -> str:
    """Text for a terminal: an escape sequence is shown and does nothing."""
    return _UNSEEN.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def cell(value: object) -> object:
    """A cell of a CSV file. Spreadsheets compute text that begins like a formula, so it gets an
    apostrophe, which they hide."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def markdown(text: str) -> str:
    """Text in a line or a cell of Markdown: it is no markup, no HTML and no link."""
    text = visible(text.replace("\n", " ").replace("\t", " "))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|\[\]#@~])", r"\\\1", text)

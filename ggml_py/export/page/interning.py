"""Stores values once and refers to them by number. This keeps a page with 10,000 explanations of
nodes small: they are the same few sentences with different names."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

# What differs between sentences: names in quotation marks, and numbers of splits.
_ARGUMENT = re.compile(r"(?<=')[^'\n]*(?=')|(?<=#)\d+")


class Table:
    """Numbered values, in the order they were added."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, value: Hashable) -> int:
        """The number of a value; a new one if the value is new."""
        return self._numbers.setdefault(value, len(self._numbers))

    def values(self) -> list[Any]:
        """The values, by number."""
        return list(self._numbers)


class Texts:
    """Sentences, each stored as a form that many share and its arguments. `strings` may be shared
    with other columns."""

    def __init__(self, strings: Table) -> None:
        self.strings = strings
        self.forms = Table()
        self.texts = Table()

    def number(self, text: str) -> int:
        """The number of a sentence."""
        pieces, arguments, end = [], [], 0
        for found in _ARGUMENT.finditer(text):
            pieces.append(text[end : found.start()])
            arguments.append(self.strings.number(found[0]))
            end = found.end()
        form = self.forms.number((*pieces, text[end:]))
        return self.texts.number((form, *arguments))

    def text(self, number: int) -> str:
        """The sentence of a number, put together as the page does it."""
        form, *arguments = self.texts.values()[number]
        strings = self.strings.values()
        pieces = self.forms.values()[form]
        inner = (piece + strings[a] for piece, a in zip(pieces, arguments, strict=False))
        return "".join(inner) + str(pieces[-1])

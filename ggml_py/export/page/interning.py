"""Values that are stored once and meant by number, so that a page with 10,000 explanations of
nodes is small: they are the same few sentences about other names."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

# What differs between sentences: names in quotation marks, and numbers of splits.
_ARGUMENT = re.compile(r"(?<=')[^'\n]*(?=')|(?<=#)\d+")


class Table:
    """Values by number, in the order they came."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, value: Hashable) -> int:
        """The number of a value, a new one where it was not met before."""
        return self._numbers.setdefault(value, len(self._numbers))

    def values(self) -> list[Any]:
        """The values, by number."""
        return list(self._numbers)


class Texts:
    """Sentences, cut into a form that many share and what stands in it. `strings` may be shared
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
        """The sentence of a number, as the page puts it together again."""
        form, *arguments = self.texts.values()[number]
        strings = self.strings.values()
        pieces = self.forms.values()[form]
        inner = (piece + strings[a] for piece, a in zip(pieces, arguments, strict=False))
        return "".join(inner) + str(pieces[-1])

"""Sizes of which a debug log tells the whole KiB or MiB only."""

from __future__ import annotations

import math
from typing import Any

_CUT = 10_000 << 20  # of five digits of MiB the log may have left some out


class AtLeast(int):
    """A number of bytes that is this or more, `most` at most. A sum of such is one; as an `int` it
    is the least."""

    most: float

    def __new__(cls, least: int, most: float | None = None) -> AtLeast:
        self = super().__new__(cls, least)
        self.most = most_of_print(least) if most is None else most
        return self

    def __getnewargs__(self) -> tuple[int, float]:  # type: ignore[override]
        return int(self), self.most

    def __add__(self, other: int) -> AtLeast:
        return AtLeast(int(self) + int(other), self.most + most(other))

    __radd__ = __add__


def most_of_print(least: int) -> float:
    """The most bytes that are printed as this many whole KiB or MiB."""
    if least >= _CUT:
        return math.inf
    return least + (1 << 20 if least >= 1 << 20 else 1 << 10) - 1


def with_bounds(data: Any) -> Any:
    """Data for JSON that says of each such size, behind it, the most that it may be:
    {"bytes": 0} is {"bytes": 0, "bytes_at_most": 1023} then, with null where nobody knows."""
    if isinstance(data, dict):
        told: dict[str, Any] = {}
        for key, value in data.items():
            told[key] = with_bounds(value)
            if isinstance(value, AtLeast):
                told[f"{key}_at_most"] = None if math.isinf(value.most) else int(value.most)
        return told
    if isinstance(data, list | tuple) and not hasattr(data, "_fields"):
        return type(data)(map(with_bounds, data))
    return data


def most(n: int) -> float:
    """The most that a size may be."""
    return n.most if isinstance(n, AtLeast) else n

"""Times, rates, bytes and plain numbers as people read them: with a unit, without an exponent.

Numbers have three digits that count, bytes one decimal. The ends of intervals are rounded outwards,
so a printed interval contains the number that it is about.
"""

from __future__ import annotations

import math
from typing import Any

_DIGITS = 3
_UNITS = (
    ("days", 86_400.0, 172_800.0), ("h", 3_600.0, 7_200.0), ("min", 60.0, 600.0), ("s", 1.0, 1.0),
    ("ms", 1e-3, 1e-4), ("µs", 1e-6, 1e-6), ("ns", 1e-9, 0.0),
)  # fmt: skip  # name, seconds, and the time from which it is used
_MOST = 100 * 365 * 86_400.0  # seconds; what is longer is called so
_LEAST = 1e-12  # what is smaller is printed as 0
_LARGEST = 1e300
_OWN_UNIT = 1000.0  # units from which an upper end has a unit of its own
NO_LIMIT = "no limit that is known"


def format_number(n: float, up: int = 0) -> str:
    """A number with three digits that count: "1.23", "1,230", "0.000123". With `up` 1 it is rounded
    up, with -1 down."""
    if not _is_finite(n):
        return NO_LIMIT
    if abs(n) < _LEAST:
        return "0"
    text = f"{_rounded(n, up):.{_DIGITS}g}"
    if "e" not in text:
        return text
    n = float(text)
    return f"{n:,.0f}" if abs(n) >= 1 else f"{n:.15f}".rstrip("0").rstrip(".")


def format_factor(ratio: float) -> str:
    """How often something is as much, to two digits: "3.1", "14", "120"."""
    if not _is_finite(ratio) or ratio >= 99.5:
        return format_number(round(ratio) if _is_finite(ratio) else ratio)
    return f"{ratio:.2g}"


def format_time(seconds: float) -> str:
    """Seconds with a unit: "1.23 ms"."""
    return _in_unit(seconds, *_unit(seconds, 0), 0)


def format_ms(seconds: float) -> str:
    """Seconds in milliseconds, for lists whose times are compared: "0.0101 ms". From one second on
    as `format_time`."""
    return f"{format_number(1e3 * seconds)} ms" if seconds < 1 else format_time(seconds)


def format_times(seconds: float, interval: tuple[float, float]) -> str:
    """Seconds with their interval: "1.2 ms (1.1 to 1.3)", "2.9 ms (0 to 75.3 h)"."""
    return f"{format_time(seconds)} ({format_interval(seconds, interval, with_unit=False)})"


def format_interval(
    seconds: float, interval: tuple[float, float], *, with_unit: bool = True
) -> str:
    """The interval of `seconds`, in the same unit: "1.1 to 1.3 ms"."""
    low, high = interval
    unit = _unit(seconds, 0) if seconds > 0 else _unit(high, 1)
    first = format_number(max(low, 0.0) / unit[1], -1)
    last = format_number(high / unit[1], 1)
    if _rounded(high / unit[1], 1) >= _OWN_UNIT or (seconds <= 0 < high):
        first = first if first == "0" else f"{first} {unit[0]}"
        last = _in_unit(high, *_unit(high, 1), 1)
        return f"{first} to {last}"
    return f"{first} to {last} {unit[0]}" if with_unit else f"{first} to {last}"


def format_error(error: float) -> str:
    """A normalised error or its limit: "1e-07", as upstream writes limits, but "1,230"."""
    text = f"{error:.{_DIGITS}g}"
    return format_number(error) if "e+" in text or not _is_finite(error) else text


def format_rate(rate: float, interval: tuple[float, float] | None = None) -> str:
    """A number per second, with two decimals as llama-bench prints it: "12.34"; with an interval
    "12.34 (11.02 to 13.98)"."""
    if interval is None:
        return _rate(rate, 0)
    low, high = (_rate(end, up) for end, up in zip(interval, (-1, 1), strict=True))
    return f"{_rate(rate, 0)} ({low} to {high})"


def format_rates(interval: tuple[float, float]) -> str:
    """The ends of an interval of rates: "11.02 and 13.98"."""
    return f"{_rate(interval[0], -1)} and {_rate(interval[1], 1)}"


def _rate(rate: float, up: int) -> str:
    if not _is_finite(rate):
        return NO_LIMIT
    if 0 < rate < 0.1:
        return format_number(rate, up)
    hundredths = rate * 100
    n = math.ceil(hundredths - 1e-6) if up > 0 else math.floor(hundredths + 1e-6)
    return f"{(n / 100 if up else rate):.2f}"


def _unit(seconds: float, up: int) -> tuple[str, float]:
    """The name of the unit, and its seconds."""
    rounded = _rounded(seconds, up) if _is_finite(seconds) else 0.0
    return next((name, size) for name, size, least in _UNITS if rounded >= least * (1 - 1e-9))


def _in_unit(seconds: float, name: str, size: float, up: int) -> str:
    if not _is_finite(seconds):
        return NO_LIMIT
    if seconds > _MOST:
        return "more than 100 years"
    return f"{format_number(seconds / size, up)} {name}" if seconds > 0 else "0"


def _is_finite(n: float) -> bool:
    """Whether a number can be rounded up and is still finite."""
    return abs(n) < _LARGEST


def _rounded(n: float, up: int) -> float:
    """To three digits that count."""
    if abs(n) < 1 / _LARGEST or not _is_finite(n):
        return n
    step = 10.0 ** (math.floor(math.log10(abs(n))) - _DIGITS + 1)
    steps = n / step
    if up:
        whole = math.ceil(steps - 1e-9) if up > 0 else math.floor(steps + 1e-9)
    else:
        whole = round(steps)
    return whole * step


# --- sizes


_CUT = 10_000 << 20  # sizes of five digits in MiB may have been cut in the log


class AtLeast(int):
    """A number of bytes known only within bounds: as an `int` it is the least, and `most` is the
    most. Sums keep the bounds."""

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
    """The largest size that a log prints as this number of whole KiB or MiB."""
    if least >= _CUT:
        return math.inf
    return least + (1 << 20 if least >= 1 << 20 else 1 << 10) - 1


def with_bounds(data: Any) -> Any:
    """Data for JSON where each such size is followed by its upper bound: {"bytes": 0} becomes
    {"bytes": 0, "bytes_at_most": 1023}, with null for an unknown bound."""
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
    """The upper bound of a size."""
    return n.most if isinstance(n, AtLeast) else n


def format_bytes(n: float) -> str:
    """Bytes with a unit: "1.5 MiB"; from a log "at least 1.5 MiB" or "less than 1.0 KiB"."""
    if isinstance(n, AtLeast):
        bound = format_bytes(int(n) or n.most + 1)
        return f"at least {bound}" if n else f"less than {bound}"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError

"""The colours of plans, the same in every picture.

People with colour blindness can tell any two of them apart, and text on them is readable
(tests/export/test_palette.py measures both).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..trace.planned import Planned
from .rows import devices


class Color(NamedTuple):
    """A colour on a white and on a dark background."""

    light: str
    dark: str


DEVICES = tuple(f"b{i}" for i in range(8))  # backends with memory of their own, and again from b0
COLORS = {
    "b0": Color("#1e6abd", "#497be2"),
    "b1": Color("#0ea86c", "#35bc83"),
    "b2": Color("#49c5ff", "#78dafa"),
    "b3": Color("#c17ebe", "#a59cee"),
    "b4": Color("#7c2e4c", "#a2495c"),
    "b5": Color("#9582fa", "#d3fdd8"),
    "b6": Color("#522d89", "#cf0db4"),
    "b7": Color("#2206e5", "#bbd9b3"),
    "host": Color("#7a6f7c", "#1d6c94"),  # the last backend, the CPU
    "host2": Color("#afc3a2", "#8f8385"),  # others that compute in the host's memory, like BLAS
    "off-op": Color("#c22a26", "#f0372c"),  # on the host: the device does not support the op
    "off-weight": Color("#e17006", "#f58a2f"),  # a weight or a cache is in other memory
    "off-other": Color("#e0bc09", "#f3e455"),  # a neighbour, a pin or a setting decided
    "none": Color("#c9ced6", "#3a404b"),  # no backend
    "arrow": Color("#7a4fc4", "#b795f5"),  # a copy
    "changed": Color("#c02a9b", "#ff7ad9"),
}  # fmt: skip
_INKS = ("#ffffff", "#10131a")


def lanes(plan: Planned) -> tuple[str, ...]:
    """The name of each backend's colour."""
    own, last = devices(plan), len(plan.backends) - 1
    shown = own or list(range(last)) or [0]
    return tuple(
        DEVICES[shown.index(i) % len(DEVICES)] if i in shown
        else "host" if i == last else "host2"
        for i in range(last + 1)
    )  # fmt: skip


def fills(plan: Planned) -> dict[str, str]:
    """The colour of each backend on white, by its name."""
    names = (b.name for b in plan.backends)
    return {name: COLORS[lane].light for name, lane in zip(names, lanes(plan), strict=True)}


def of_reason(rule: str) -> str:
    """The name of the colour of a node on the host, by the rule that keeps it off the device, as in
    plan.js."""
    if rule == "op":
        return "off-op"
    elsewhere = rule.startswith(("weight", "offload", "memory", "op.memory"))
    return "off-weight" if elsewhere else "off-other"


def luminance(color: str) -> float:
    """The relative luminance of "#rrggbb", 0 to 1, as WCAG defines it."""
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    """The contrast ratio, 1 to 21, as WCAG defines it; 4.5 and more is readable."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def ink(*grounds: str) -> str:
    """Black or white, whichever is more readable on all of these backgrounds."""
    return max(_INKS, key=lambda color: min(contrast(color, ground) for ground in grounds))


def pale(color: str) -> str:
    """A tint on which black text is readable, for programs that write only in black."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{(c + 255) // 2:02x}" for c in parts)


def css() -> str:
    """The page's variables: --b0 and so on, and --on-b0 for text on it."""

    def variables(shades: Iterable[tuple[str, str]]) -> str:
        return "".join(f" --{name}: {c}; --on-{name}: {ink(c)};" for name, c in shades)

    light = variables((name, color.light) for name, color in COLORS.items())
    dark = variables((name, color.dark) for name, color in COLORS.items())
    return f':root {{{light} }}\n:root[data-theme="dark"] {{{dark} }}\n'

"""Graphs drawn at random: the same number draws the same graph, on any machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from .drawing import Drawing, Drawn

T = TypeVar("T")
_DEVICES = (
    ("gpu0", "CPU"), ("gpu0", "gpu1", "CPU"), ("gpu0", "blas0", "CPU"), ("blas0", "blas1", "CPU"),
    ("gpu0", "gpu1", "blas0", "CPU"), ("gpu0", "gpu1", "gpu2", "CPU"),
)  # fmt: skip
_ONE = ("SQR", "SQRT", "RMS_NORM", "CONT", "SQR", "CONT")
_TWO = ("ADD", "MUL", "ADD", "SUB")


class Dice:
    """Random decisions that are the same in every version of Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, of: float) -> bool:
        """True as often as that, from 0 to 1."""
        return self._random() < of

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return int(self._random() * n)

    def one(self, of: Sequence[T]) -> T:
        """One of them."""
        return of[self.below(len(of))]


def draw(seed: int) -> Drawing:
    """The graph of a number."""
    dice = Dice(seed)
    devices = dice.one(_DEVICES)
    g = Drawing(
        *devices, n_copies=4 if dice.chance(0.25) else 1, op_offload=dice.chance(0.85),
        limits={"gpu0": 4096} if "gpu0" in devices and dice.chance(0.15) else None,
    )  # fmt: skip
    memories = (*(d for d in devices if d.startswith("gpu")), "CPU", "CPU")
    rows = (1, 2, 3, 8, 8, 8, 16, 40)
    known: list[Drawn] = [g.input(ne=(64, dice.one(rows), 1, 1)) for _ in range(1 + dice.below(2))]
    weights = [g.weight(dice.one(memories)) for _ in range(1 + dice.below(4))]
    if dice.chance(0.4):
        known.append(g.leaf("kept", (64, 8, 1, 1), memory=dice.one(memories), usage="any"))
    for _ in range(3 + dice.below(12)):
        _node(g, dice, known, weights, devices)
    return g


def _node(
    g: Drawing, dice: Dice, known: list[Drawn], weights: list[Drawn], devices: tuple[str, ...]
) -> None:
    others = tuple(d for d in devices if dice.chance(0.6))
    supports = None if dice.chance(0.6) else (*others, "CPU")
    pin = dice.one(devices) if dice.chance(0.12) else ""
    fields: dict[str, Any] = {
        "supports": supports, "pin": pin if supports is None else "",
        "offload": tuple(d for d in devices[:-1] if dice.chance(0.5)),
        "flags": ("output",) if dice.chance(0.08) else (),
    }  # fmt: skip
    x = known[-1] if dice.chance(0.6) else dice.one(known)
    kind = dice.below(10)
    if kind < 3:
        made = g.node("MUL_MAT", dice.one(weights), x, ne=x.ne, **fields)
    elif kind < 5:
        made = g.node(dice.one(_ONE), x, **fields)
    elif kind < 8:
        same = [t for t in known if t.ne == x.ne]
        y = dice.one(same)
        made = g.node(dice.one(_TWO), *((x, y) if dice.chance(0.5) else (y, x)), **fields)
    elif kind == 8 and x.ne[1] > 1:
        n = x.ne[1] // 2
        made = g.view(x, ne=(64, n, 1, 1), offset=0 if dice.chance(0.5) else 256 * (x.ne[1] - n))
    else:
        made = g.view(x, "RESHAPE")
    known.append(made)


def draw_sizes(seed: int) -> Drawing:
    """A graph of results of many sizes, on a GPU with a largest buffer. The allocator finds and
    frees places there in an order that the seed decides."""
    dice = Dice(seed)
    g = Drawing("gpu0", "CPU", limits={"gpu0": 10240 + 1024 * dice.below(8)})
    whole = g.input(ne=(64, 40, 1, 1))
    live: list[Drawn] = []
    for _ in range(26):
        if live and dice.chance(0.45):
            g.node("SUM", live.pop(dice.below(len(live))), ne=(1, 1, 1, 1), pin="gpu0")
        else:
            part = g.view(whole, ne=(64, 1 + dice.below(38), 1, 1))
            live.append(g.node("CONT", part, pin="gpu0"))
    for one in live:
        g.node("SUM", one, ne=(1, 1, 1, 1), pin="gpu0")
    return g

"""Tokens per second of llama-bench's rows, added up from the plans that its evaluations have.

A prompt is evaluated in graphs of n_ubatch tokens at growing depths, and generation one token at a
time. Between the depths that are planned, time is a straight line: attention grows with each cell,
and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..trace.planned import Planned
from .cost import Cost, Interval, cost_of
from .machine import Machine
from .sample import DECODE

_GRAPHS = 5  # that are planned at most for a row
PlanOf = Callable[[int, int], Planned]


@dataclass(frozen=True)
class BenchRow:
    """One row of llama-bench, predicted."""

    n_prompt: int
    n_gen: int
    n_depth: int
    seconds: float
    interval: Interval
    # Of each graph that was planned: its tokens, the tokens before it, and its cost.
    graphs: tuple[tuple[int, int, Cost], ...]

    @property
    def test(self) -> str:
        """llama-bench's name: "pp512 @ d4096"."""
        name = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return name + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def tokens_per_second(self) -> float:
        """As llama-bench counts them."""
        return (self.n_prompt + self.n_gen) / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second_interval(self) -> Interval:
        """Low and high; nine of ten measurements are between them."""
        low, high = self.interval
        n = self.n_prompt + self.n_gen
        return n / high if high else 0.0, n / low if low else float("inf")

    @property
    def bound(self) -> str:
        """What most of the time is bound by."""
        return self.graphs[-1][2].bound

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        low, high = self.tokens_per_second_interval
        return {
            "test": self.test, "n_prompt": self.n_prompt, "n_gen": self.n_gen,
            "n_depth": self.n_depth, "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_interval": [low, None if high == float("inf") else high],
            "seconds": self.seconds, "bound": self.bound,
            "unknown_nodes": max(len(cost.unknown) for _n, _past, cost in self.graphs),
            "graphs": [{"n_tokens": n, "n_past": past, "seconds": cost.seconds,
                        "interval": list(cost.interval)} for n, past, cost in self.graphs],
        }  # fmt: skip


def prompt_row(
    plan: PlanOf, machine: Machine, n_prompt: int, n_depth: int, n_ubatch: int
) -> BenchRow:
    """The row of a prompt. `plan(n_tokens, n_past)` plans a graph."""
    whole, rest = divmod(n_prompt, n_ubatch)
    first = [n_depth + i * n_ubatch for i in range(whole)]
    parts = [_between(plan, machine, n_ubatch, first)] if whole else []
    if rest:
        parts.append(_between(plan, machine, rest, [n_depth + whole * n_ubatch]))
    return _row(parts, n_prompt, 0, n_depth)


def gen_row(plan: PlanOf, machine: Machine, n_gen: int, n_depth: int) -> BenchRow:
    """The row of generating tokens, each in a graph of its own."""
    depths = [n_depth + i for i in range(n_gen)]
    return _row([_between(plan, machine, 1, depths)], 0, n_gen, n_depth)


_Part = tuple[float, Interval, tuple[tuple[int, int, Cost], ...]]


def _row(parts: Sequence[_Part], n_prompt: int, n_gen: int, n_depth: int) -> BenchRow:
    seconds = sum(part[0] for part in parts)
    interval = sum(part[1][0] for part in parts), sum(part[1][1] for part in parts)
    graphs = tuple(graph for part in parts for graph in part[2])
    return BenchRow(n_prompt, n_gen, n_depth, seconds, interval, graphs)


def _between(plan: PlanOf, machine: Machine, n_tokens: int, depths: Sequence[int]) -> _Part:
    """The seconds of one graph at each of the depths, of which a few are planned."""
    n = len(depths)
    chosen = sorted({round(i * (n - 1) / (_GRAPHS - 1)) for i in range(_GRAPHS)}) if n > 1 else [0]
    costs = [cost_of(plan(n_tokens, depths[i]), machine, depths[i]) for i in chosen]
    around = _around(machine, n_tokens)
    sums = [0.0, 0.0, 0.0]
    weights = [0.0] * len(chosen)
    for i in range(n):  # how much each planned graph counts
        right = next(j for j, c in enumerate(chosen) if c >= i)
        if chosen[right] == i:
            weights[right] += 1.0
            continue
        share = (i - chosen[right - 1]) / (chosen[right] - chosen[right - 1])
        weights[right - 1] += 1 - share
        weights[right] += share
    for weight, cost in zip(weights, costs, strict=True):
        for j, seconds in enumerate((cost.seconds, *cost.interval)):
            sums[j] += weight * (seconds + around)
    graphs = tuple((n_tokens, depths[i], c) for i, c in zip(chosen, costs, strict=True))
    return sums[0], (sums[1], sums[2]), graphs


def _around(machine: Machine, n_tokens: int) -> float:
    """What libllama does for an evaluation besides the graph; 0 if it was not measured."""
    for device in machine.devices:
        found = [s for s in device.samples if s.key == DECODE]
        if found:
            near = min(found, key=lambda s: abs(s.at[0] - n_tokens) if s.at else 0.0)
            return near.usual
    return 0.0

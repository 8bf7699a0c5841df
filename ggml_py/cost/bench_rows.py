"""Tokens per second of llama-bench's rows, added up from the plans that its evaluations have.

A prompt is evaluated in batches of n_batch tokens, each in graphs of n_ubatch tokens, at growing
depths, and generation one token at a time. Between the depths that are planned, time is a straight
line: attention grows with each cell, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..trace.planned import Planned
from ..typed import typed
from .cost import Cost, Interval, cost_of, limits
from .machine import Machine
from .unmeasured import unmeasured

_MOST = 1 << 24  # tokens of a row
_GRAPHS = 5  # that are planned at most for a row, if the caller does not say
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
    # As in `Cost.errors`, of all evaluations together.
    errors: Mapping[tuple[str, str], float] = field(default_factory=dict)
    unknown_seconds: float = 0.0  # as in `Cost`

    @property
    def test(self) -> str:
        """llama-bench's name: "pp512 @ d4096"."""
        name = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return name + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, counted as in llama-bench. An upper bound if anything was not measured
        (`n_unknown`)."""
        return (self.n_prompt + self.n_gen) / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second_interval(self) -> Interval:
        """Low and high; nine of ten measurements are between them."""
        low, high = self.interval
        n = self.n_prompt + self.n_gen
        return n / high if high else 0.0, n / low if low else float("inf")

    @property
    def n_unknown(self) -> int:
        """How many nodes and copies of a graph nothing was measured of, at most."""
        return max(len(c.unknown) + len(c.missing_copies) for _n, _past, c in self.graphs)

    @property
    def unmeasured(self) -> float:
        """The share of the work of a graph of which nothing was measured, at most: 0 to 1."""
        return max((unmeasured(c) for _n, _past, c in self.graphs), default=0.0)

    @property
    def not_measured(self) -> tuple[str, ...]:
        """The kinds of work and the copies that nothing was measured of."""
        costs = [cost for _n, _past, cost in self.graphs]
        nodes = {n.work.key for cost in costs for n in cost.unknown if n.work}
        copies = {
            f"copies from {c.source} to {c.to}" for cost in costs for c in cost.missing_copies
        }
        return *sorted(nodes), *sorted(copies)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions of the prediction, in sentences."""
        return tuple(dict.fromkeys(s for _n, _past, cost in self.graphs for s in cost.assumed))

    @property
    def bound(self) -> str:
        """The bound of most of the time; "unknown" if unmeasured work may take more."""
        cost = self.graphs[-1][2]
        return "unknown" if self.n_unknown and cost.unknown_seconds > cost.seconds else cost.bound

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        low, high = self.tokens_per_second_interval
        return {
            "test": self.test, "n_prompt": self.n_prompt, "n_gen": self.n_gen,
            "n_depth": self.n_depth, "tokens_per_second": self.tokens_per_second or None,
            "at_most": bool(self.n_unknown), "unmeasured": self.unmeasured,
            "tokens_per_second_interval": [low, None if high == float("inf") else high],
            "seconds": self.seconds, "bound": self.bound,
            "unknown_nodes": max(len(cost.unknown) for _n, _past, cost in self.graphs),
            "unknown_copies": max(len(cost.missing_copies) for _n, _past, cost in self.graphs),
            "not_measured": list(self.not_measured), "assumed": list(self.assumed),
            "graphs": [{"n_tokens": n, "n_past": past, "seconds": cost.seconds,
                        "interval": limits(cost.interval)} for n, past, cost in self.graphs],
        }  # fmt: skip


@typed
def prompt_row(
    plan: PlanOf,
    machine: Machine,
    n_prompt: int,
    n_depth: int,
    n_batch: int,
    n_ubatch: int,
    graphs: int = _GRAPHS,
) -> BenchRow:
    """The row of a prompt. `plan(n_tokens, n_past)` plans a graph; it is called `graphs` times at
    most for graphs of one size."""
    _check(n_prompt=n_prompt, n_depth=n_depth, n_batch=n_batch, n_ubatch=n_ubatch)
    sizes: dict[int, list[int]] = {}  # of graphs, with their depths
    for batch in range(0, n_prompt, n_batch):
        end = min(batch + n_batch, n_prompt)
        for start in range(batch, end, n_ubatch):
            sizes.setdefault(min(n_ubatch, end - start), []).append(n_depth + start)
    parts = [_between(plan, machine, n, depths, graphs) for n, depths in sizes.items()]
    return _row(parts, n_prompt, 0, n_depth)


@typed
def gen_row(
    plan: PlanOf, machine: Machine, n_gen: int, n_depth: int, graphs: int = _GRAPHS
) -> BenchRow:
    """The row of generating tokens, each in a graph of its own."""
    _check(n_gen=n_gen, n_depth=n_depth)
    depths = [n_depth + i for i in range(n_gen)]
    return _row([_between(plan, machine, 1, depths, graphs)], 0, n_gen, n_depth)


def _check(**sizes: int) -> None:
    for name, n in sizes.items():
        least = int(name != "n_depth")
        if not least <= n <= _MOST:
            raise ArgumentError(f"{name}={n}: expected {least} to {_MOST:,} tokens")


class _Part(NamedTuple):
    """Graphs of one size."""

    seconds: float
    interval: Interval
    graphs: tuple[tuple[int, int, Cost], ...]
    errors: dict[tuple[str, str], float]
    unknown_seconds: float


def _row(parts: Sequence[_Part], n_prompt: int, n_gen: int, n_depth: int) -> BenchRow:
    seconds = sum(part.seconds for part in parts)
    interval = sum(part.interval[0] for part in parts), sum(part.interval[1] for part in parts)
    graphs = tuple(graph for part in parts for graph in part.graphs)
    errors = added((part.errors, 1.0) for part in parts)
    unknown = sum(part.unknown_seconds for part in parts)
    return BenchRow(n_prompt, n_gen, n_depth, seconds, interval, graphs, errors, unknown)


def added(
    several: Iterable[tuple[Mapping[tuple[str, str], float], float]],
) -> dict[tuple[str, str], float]:
    """Errors of several costs, each with the number of its repetitions. Errors of one kind of work
    add up."""
    found: dict[tuple[str, str], float] = {}
    for errors, times in several:
        for key, error in errors.items():
            found[key] = found.get(key, 0.0) + times * error
    return found


def _between(
    plan: PlanOf, machine: Machine, n_tokens: int, depths: Sequence[int], most: int
) -> _Part:
    """The seconds of one graph at each of the depths, of which a few are planned."""
    n = len(depths)
    chosen = sorted({round(i * (n - 1) / (most - 1)) for i in range(most)}) if n > 1 else [0]
    costs = [cost_of(plan(n_tokens, depths[i]), machine, depths[i]) for i in chosen]
    sums = [0.0, 0.0, 0.0]
    weights = [0.0] * len(chosen)
    for i in range(n):  # how much each planned graph counts
        right = next(j for j, c in enumerate(chosen) if c >= i)
        if chosen[right] == i:
            weights[right] += 1.0
            continue
        low, high = depths[chosen[right - 1]], depths[chosen[right]]
        share = (depths[i] - low) / (high - low)
        weights[right - 1] += 1 - share
        weights[right] += share
    for i, (weight, cost) in enumerate(zip(weights, costs, strict=True)):
        # Graphs of one prompt may overlap; a generated token waits for the one before.
        overlap = n_tokens > 1 and cost.seconds > 0
        part = cost.following / cost.seconds if overlap else 1.0
        first = float(not i)
        times = first + (weight - first) * part
        for j, seconds in enumerate((cost.seconds, *cost.interval)):
            sums[j] += times * seconds
    graphs = tuple((n_tokens, depths[i], c) for i, c in zip(chosen, costs, strict=True))
    errors = added((cost.errors, weight) for weight, cost in zip(weights, costs, strict=True))
    unknown = sum(w * cost.unknown_seconds for w, cost in zip(weights, costs, strict=True))
    return _Part(sums[0], (sums[1], sums[2]), graphs, errors, unknown)

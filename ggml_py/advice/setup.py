"""Findings about how a scheduler was set up: pins, and room for tensors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ..trace.facts import Facts, verb
from ..trace.names import counted
from ..trace.record import TensorRecord
from .finding import Observation

_NEARLY = 0.9


def nearly_full(facts: Facts) -> Iterator[Observation]:
    """The scheduler's hash set has a fixed size; ggml aborts when it is full."""
    size, used = facts.capture.settings.hash_set_size, facts.plan.outcome.hash_set_used
    if used < _NEARLY * size:
        return
    n_nodes, n_leafs = facts.capture.n_nodes, len(facts.capture.leaf_ids)
    pins = facts.capture.settings.pins_elsewhere
    others = used - n_nodes - n_leafs - pins
    parts = [counted(n_nodes, "node"), counted(n_leafs, "leaf")]
    parts += [counted(others, "other tensor")] * (others > 0)
    parts += [f"{counted(pins, 'pin')} of other graphs"] * bool(pins)
    yield Observation(
        f"{used} of the scheduler's {size} slots are taken ({', '.join(parts)}): a graph with "
        f"{counted(size - used + 1, 'more tensor')} would abort with 'hash_set.size >= …'.",
        "Make the scheduler with a larger graph_size (llama.cpp: graph_max_nodes).",
    )


def pins_not_applied(facts: Facts) -> Iterator[Observation]:
    """Pass 3 moves nodes, even pinned ones, up to a backend that shares the buffer type."""
    moved = [t for t in facts.capture.tensors if t.pin not in (-1, facts.where[t.id])]

    def places(t: TensorRecord) -> tuple[int, int]:
        return t.pin, facts.where[t.id]

    for (pin, where), group in groupby(sorted(moved, key=places), places):
        nodes = sorted(group)
        to, instead = facts.name(pin), facts.name(where)
        yield Observation(
            f"{facts.of(nodes, 'node')}, pinned to {to}, {verb(nodes)} on {instead} anyway: "
            f"{instead} has a higher priority and allocates from the same buffer type, so pass 3 "
            "moves nodes that it supports up to it.",
            f"Leave {instead} out of the scheduler's backends or give it another buffer type.",
            nodes,
        )


def pins_dropped(facts: Facts) -> Iterator[Observation]:
    """`reset` and `reserve` drop the pins. llama.cpp pins again for each graph."""
    dropped = facts.capture.dropped_pins
    if not dropped or facts.plan.provenance.model is not None:
        return
    nodes = [facts.capture.tensors[i] for i, _b in sorted(dropped)]
    backends = ", ".join(facts.capture.names(sorted({b for _i, b in dropped})))
    elsewhere = sum(facts.where[i] != b for i, b in dropped)
    yield Observation(
        f"{facts.of(nodes, 'tensor')} {verb(nodes, 'was', 'were')} pinned to {backends} until the "
        f"last reset or reserve, which drops pins; {elsewhere} of {len(nodes)} "
        f"{verb(nodes[:elsewhere])} elsewhere now.",
        "Call set_tensor_backend again after reset or reserve, before alloc_graph.",
        nodes,
    )

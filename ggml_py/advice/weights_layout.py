"""Findings about the layout of all weights over the backends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ..trace import causes
from ..trace.facts import Facts, nbytes, override, verb
from ..trace.planned import format_bytes
from ..trace.record import TensorRecord
from .finding import Observation

# Ops whose weights may be elsewhere for good reason: embeddings are looked up, not multiplied, and
# experts are many and rarely read.
_LEFT_ALONE = frozenset({"GET_ROWS", "MUL_MAT_ID"})
_FEWER = 4  # splits that a change must save, and at least half of them


def alternating(facts: Facts) -> Iterator[Observation]:
    """Weights that alternate between backends: in one run per backend, they need fewer splits."""
    order = _in_order(facts)
    places = [facts.where[w.id] for w in order]
    runs = [place for place, _group in groupby(places)]
    if len(runs) < len(set(runs)) + _FEWER or not set(runs) - {facts.last}:
        return
    moves = dict(_in_one_piece(order, places, facts.last))
    after = facts.what_if(move_weights={i: facts.name(b) for i, b in moves.items()})
    if not facts.is_better(after) or facts.plan.n_splits - after.n_splits < _FEWER:
        return
    if after.n_splits * 2 > facts.plan.n_splits:
        return
    names = " and ".join(facts.capture.names(sorted(set(places))))
    copies = [c for c in facts.unexplained() if not facts.capture.is_weight(c.holder)]
    facts.explain(copies)
    yield Observation(
        f"The weights of {names} alternate, in {len(runs)} runs in graph order. With as many bytes "
        f"on each backend as now, but in one run: {facts.compared(after)}.",
        "Put consecutive layers on the same backend: -ngl and --tensor-split do, -ot rules that "
        "pick tensors out of layers do not.",
        [facts.capture.tensors[i] for i in moves],
        min(facts.plan.copy_bytes - after.copy_bytes, nbytes(copies)),
    )


def _in_order(facts: Facts) -> list[TensorRecord]:
    """The weights that decide where their readers run, in the order of their first readers."""
    order: dict[int, TensorRecord] = {}
    for t in facts.computed:
        weight = facts.followed_weight(t)
        if weight is None or t.op in _LEFT_ALONE or facts.cause(t) == causes.OFFLOADED.code:
            continue
        if t.id not in facts.explained_nodes:
            order.setdefault(weight.id, weight)
    return list(order.values())


def _in_one_piece(
    order: list[TensorRecord], places: list[int], last: int
) -> Iterator[tuple[int, int]]:
    """The weights to move, as (id, backend), so that each backend holds as many bytes as now in one
    run, the last backend first, as with llama.cpp's -ngl."""
    left: dict[int, int] = {}
    for weight, place in zip(order, places, strict=True):
        left[place] = left.get(place, 0) + weight.nbytes
    turns = sorted(left, key=lambda b: (b != last, b))
    for weight, place in zip(order, places, strict=True):
        while len(turns) > 1 and left[turns[0]] <= 0:
            turns.pop(0)
        left[turns[0]] -= weight.nbytes
        if turns[0] != place:
            yield weight.id, turns[0]


def lone_embedding(facts: Facts) -> Iterator[Observation]:
    """With several devices, an embedding lookup on the CPU adds a split before theirs."""
    splits = facts.plan.split_records
    used = {split.backend for split in splits} - {facts.last}
    if len(used.intersection(facts.devices)) < 2 or splits[0].backend != facts.last:
        return
    device = splits[1].backend
    nodes = [t for t in facts.computed if t.id < splits[0].end]
    tables = [w for t in nodes if (w := facts.followed_weight(t))]
    if any(t.op != "GET_ROWS" for t in nodes) or not tables or device not in facts.devices:
        return
    after = facts.what_if(move_weights={w.id: facts.name(device) for w in tables})
    if after is None or after.n_splits >= facts.plan.n_splits:
        return
    copies = facts.around(nodes)
    size = sum(w.nbytes for w in tables)
    yield Observation(
        f"{facts.of(nodes, 'node')} {verb(nodes, 'makes', 'make')} a split on "
        f"{facts.name(facts.last)} before those of {len(used)} devices. With "
        f"{facts.of(tables, 'weight')} ({format_bytes(size)}) on {facts.name(device)}: "
        f"{facts.compared(after)}.",
        f"If {facts.name(device)} has room for {verb(tables, 'it', 'them')}, put "
        f"{verb(tables, 'it', 'them')} there.",
        nodes,
        nbytes(copies),
        (override(facts, tables, device),),
    )

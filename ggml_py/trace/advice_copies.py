"""Findings about tensors that are copied between backends in each evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .finding import Copied, Facts, Found, are, described, nbytes
from .record import TensorRecord


def offloaded_weights(facts: Facts) -> Iterator[Found]:
    """Weights in host memory that go to a device for the ops that it offloads."""
    mine = [
        c
        for c in facts.unexplained()
        if facts.capture.is_weight(c.holder)
        and any(facts.plan.outcome.placements[r.id].cause == "1.off" for r in c.readers)
    ]
    for to, copies in _by_backend(mine):
        size = nbytes(copies)
        if size < facts.min_bytes:
            continue
        facts.explain(copies)
        name, weights = facts.name(to), _tensors(copies)
        yield Found(
            f"{described(weights, 'weight')} in host memory {are(weights)} copied to {name}, which "
            "wants ops at this batch size although their weights are not in its memory.",
            f"If {name} has room for more layers, put them there (llama.cpp: a larger -ngl, "
            f"{_override(facts, weights, to)}). A larger batch (-ub) shares the copies among more "
            "tokens; without op offload (--no-op-offload) the ops run where the weights are.",
            weights,
            size,
        )


def weights(facts: Facts) -> Iterator[Found]:
    """Weights that are read on another backend than where they are kept."""
    mine = [c for c in facts.unexplained() if facts.capture.is_weight(c.holder)]
    for to, copies in _by_backend(mine):
        size = nbytes(copies)
        if size < facts.min_bytes:
            continue
        facts.explain(copies)
        name, weights = facts.name(to), _tensors(copies)
        reader = facts.plan.tensor(copies[0].readers[0].id)
        buft = facts.plan.tensor(weights[0].id).buft
        yield Found(
            f"{described(weights, 'weight')} {are(weights)} kept in {buft.name if buft else '?'} "
            f"memory and copied to {name}, for {reader.record.op_desc} '{reader.name}' runs there "
            f"({reader.cause}).",
            f"Keep {are(weights, 'it', 'them')} where {are(weights, 'it is', 'they are')} read "
            f"(llama.cpp: {_override(facts, weights, to)}).",
            weights,
            size,
        )


def _by_backend(copies: Iterable[Copied]) -> list[tuple[int, list[Copied]]]:
    groups: dict[int, list[Copied]] = {}
    for c in copies:
        groups.setdefault(c.to, []).append(c)
    return sorted(groups.items())


def _tensors(copies: Iterable[Copied]) -> list[TensorRecord]:
    return list(dict.fromkeys(c.holder for c in copies))


def _override(facts: Facts, weights: list[TensorRecord], to: int) -> str:
    """llama.cpp's --override-tensor for these weights."""
    buft = facts.capture.bufts[facts.plan.backends[to].buft].name
    return f"-ot '{_pattern([w.name for w in weights])}={buft}'"


def _pattern(names: list[str]) -> str:
    """A regular expression for the names of weights: by block, if they are all in blocks."""
    blocks = [m for m in map(re.compile(r"blk\.(\d+)\.(.*)").fullmatch, names) if m]
    if len(names) == 1 or len(blocks) < len(names):
        return "|".join(map(re.escape, dict.fromkeys(names)))
    numbers = "|".join(dict.fromkeys(m[1] for m in blocks))
    kinds = list(dict.fromkeys(m[2] for m in blocks))
    kind = f"({'|'.join(map(re.escape, kinds))})" if len(kinds) < 4 else ""
    return rf"blk\.({numbers})\.{kind}"

"""The assignment after each pass and sweep, layer by layer; equal layers are shown once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from ..trace.answers.passes import (
    LEAFS,
    MARKS_AT,
    NO_LEAFS,
    PASS_NAMES,
    backend_letters,
    has_leaf_passes,
    passes_text,
)
from ..trace.names import layer_in
from ..trace.planned import Planned, PlanTensor
from .layers import layers

_RUNS = 4
_NO_LAYER = "outside the layers"


class _Part(NamedTuple):
    """Consecutive tensors of one layer, or of none. `numbers` are the tensors' numbers."""

    layer: int | None
    numbers: tuple[int, ...]
    stages: tuple[tuple[str, ...], ...]  # for each stage a letter per tensor


def lines(plan: Planned, width: int | None = None) -> Iterator[str]:
    """A line per stage with a letter per tensor, in pieces of at most `width` columns. Raises
    ValueError for a plan without passes."""
    last = passes_text(plan).rpartition("\n")[2]
    letters = backend_letters([b.name for b in plan.backends])
    of_nodes = zip(layers(plan), range(len(plan.nodes)), plan.nodes, strict=True)
    yield from _shown("nodes", _parts(of_nodes, letters), width)
    if plan.leafs and not has_leaf_passes(plan):
        yield NO_LEAFS
    elif plan.leafs:
        yield LEAFS
        of_leafs = ((layer_in(t.name), i, t) for i, t in enumerate(plan.leafs))
        by_layer = sorted(of_leafs, key=lambda leaf: -1 if leaf[0] is None else leaf[0])
        yield from _shown("leafs", _parts(by_layer, letters), width)
    yield last


def _parts(
    tensors: Iterable[tuple[int | None, int, PlanTensor]], letters: list[str]
) -> Iterator[_Part]:
    for layer, group in groupby(tensors, key=lambda item: item[0]):
        items = list(group)
        columns = [t.placement.passes for _layer, _i, t in items]
        stages = tuple(
            tuple(letters[c[row]] if c[row] >= 0 else "?" for c in columns)
            for row in range(len(PASS_NAMES))
        )
        yield _Part(layer, tuple(i for _layer, i, _t in items), stages)


def _shown(what: str, parts: Iterable[_Part], width: int | None) -> Iterator[str]:
    """Each part with its heading. Consecutive layers with the same letters are shown as one."""
    alike: list[_Part] = []
    for part in parts:
        if alike and (part.layer is None or not _goes_on(alike[-1], part)):
            yield from _block(what, alike, width)
            alike = []
        alike.append(part)
    if alike:
        yield from _block(what, alike, width)


def _goes_on(before: _Part, part: _Part) -> bool:
    is_next = before.layer is not None and part.layer == before.layer + 1
    return is_next and before.stages == part.stages


def _block(what: str, alike: list[_Part], width: int | None) -> Iterator[str]:
    first, last = alike[0], alike[-1]
    where = _NO_LAYER if first.layer is None else f"layer {first.layer}"
    if first is not last:
        where = f"layers {first.layer}–{last.layer}, all alike; the first is shown"
    n = len(first.numbers)
    step = n if width is None else max((width - MARKS_AT + 1) // 2, 1)
    for at in range(0, n, step):
        numbers = first.numbers[at : at + step]
        yield f"{where}: {what} {_ranges(numbers)}"
        for name, letters in zip(PASS_NAMES, first.stages, strict=True):
            yield f"{name:<{MARKS_AT}}{' '.join(letters[at : at + step])}"


def _ranges(numbers: Sequence[int]) -> str:
    """ "0–3, 7, …": the first few runs of numbers."""
    runs: list[list[int]] = []
    for i in numbers:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    shown = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:_RUNS]]
    return ", ".join(shown + ["…"] * (len(runs) > _RUNS))

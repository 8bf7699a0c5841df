"""Findings about what llama.cpp decided before the scheduler planned (`Plan.choices`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..trace.choice import FUSED, LAYERS, PIPELINE, Choice
from ..trace.facts import Facts
from .finding import Observation


def fused_ops_refused(facts: Facts) -> Iterator[Observation]:
    """A probe made libllama do without a fused op in the whole model."""
    return _of(facts, FUSED)


def no_pipeline(facts: Facts) -> Iterator[Observation]:
    """There are several GPUs, and they take turns."""
    return _of(facts, PIPELINE)


def layers_moved(facts: Facts) -> Iterator[Observation]:
    """--fit put weights into host memory."""
    return _of(facts, LAYERS)


def _of(facts: Facts, kind: str) -> Iterator[Observation]:
    for choice in facts.plan.choices:
        if choice.kind == kind:
            yield Observation(_text(choice), _suggestion(choice))


def _text(choice: Choice) -> str:
    probe = f" Its probe: {choice.probe}." if choice.probe else ""
    guess = " This is inferred from the record's earlier plans." if choice.inferred else ""
    return f"{choice.what} {choice.decided}: {choice.why}.{probe}{guess}"


def _suggestion(choice: Choice) -> str:
    if not choice.flips:
        return "Nothing is known that would decide otherwise."
    return f"Would decide otherwise: {'; '.join(choice.flips)}."

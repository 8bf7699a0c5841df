"""What advice is about, in time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..trace.advice.facts import Finding
from .cost import Cost


def timed(findings: Iterable[Finding], cost: Cost) -> tuple[Finding, ...]:
    """The findings with the predicted seconds of an evaluation that pass in computing their nodes
    and copying their tensors, the most first; those of which nothing is known come last.

    It is not what a change saves: the work is then done elsewhere, and takes its time there.
    """
    taken: dict[int, float] = {}
    for node in cost.nodes:
        if node.seconds is not None:
            taken[node.id] = taken.get(node.id, 0.0) + node.seconds
    for copy in cost.copies:
        if copy.seconds is not None:
            taken[copy.tensor] = taken.get(copy.tensor, 0.0) + copy.seconds
    found = []
    for finding in findings:
        known = [taken[t.id] for t in finding.tensors if t.id in taken]
        found.append(replace(finding, seconds=sum(known)) if known else finding)
    return tuple(
        sorted(found, key=lambda f: -1.0 if f.seconds is None else f.seconds, reverse=True)
    )

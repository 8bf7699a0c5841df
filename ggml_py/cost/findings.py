"""What advice is about, in time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..trace.advice.facts import Finding
from .cost import Cost
from .offload import threshold_finding


def timed(findings: Iterable[Finding], cost: Cost) -> tuple[Finding, ...]:
    """The findings with the predicted seconds of an evaluation that pass in computing their nodes
    and copying their tensors, the most first; those of which nothing is known come last.

    A finding about op offload's threshold is added where another one would be quicker on this
    machine; its seconds are those that are lost. Of the others they are not what a change saves:
    the work is then done elsewhere, and takes its time there.
    """
    taken: dict[int, float] = {}
    for node in cost.nodes:
        if node.seconds is not None:
            taken[node.id] = taken.get(node.id, 0.0) + node.seconds
    for copy in cost.copies:
        if copy.seconds is not None:
            taken[copy.tensor] = taken.get(copy.tensor, 0.0) + copy.seconds
    found = [] if (threshold := threshold_finding(cost)) is None else [threshold]
    for finding in findings:
        known = [taken[t.id] for t in finding.tensors if t.id in taken]
        found.append(replace(finding, seconds=sum(known)) if known else finding)
    return tuple(
        sorted(found, key=lambda f: -1.0 if f.seconds is None else f.seconds, reverse=True)
    )

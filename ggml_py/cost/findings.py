"""What advice is about, in time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..trace.advice.facts import Finding
from .cost import Cost
from .offload import threshold_finding
from .slower import slower_finding


def timed(findings: Iterable[Finding], cost: Cost) -> tuple[Finding, ...]:
    """The findings with the predicted seconds of an evaluation that pass in computing their nodes
    and copying their tensors, the most first; those of which nothing is known come last.

    Two findings are added if they cost time on this machine: a wrong threshold of op offload, and a
    slower device that holds more than a quicker one. Their seconds are the loss. The seconds of all
    other findings are no savings: after a change the work takes its time elsewhere.
    """
    taken: dict[int, float] = {}
    tensors = cost.plan.capture.tensors
    for node in cost.nodes:
        if node.seconds is not None:
            taken[node.id] = taken.get(node.id, 0.0) + node.seconds
    for copy in cost.copies:
        if copy.seconds is not None:
            t = tensors[copy.tensor]
            holder = t.view_src if t.view_src >= 0 else t.id  # findings name what has the memory
            taken[holder] = taken.get(holder, 0.0) + copy.seconds
    found = [one for one in (threshold_finding(cost), slower_finding(cost)) if one is not None]
    for finding in findings:
        known = [taken[t.id] for t in finding.tensors if t.id in taken]
        found.append(replace(finding, seconds=sum(known)) if known else finding)
    if not cost.machine.is_measured:
        found = [replace(one, known_by="by data sheets") for one in found]
    return tuple(
        sorted(found, key=lambda f: -1.0 if f.seconds is None else f.seconds, reverse=True)
    )

"""Findings: what the owner of a plan may want to change (`Plan.advice`).

Each kind of finding has a stable id, a row here and a page, docs/advice/GPnnn.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..trace.facts import Facts
from . import choices_made, copies, host, offload, out_of_reach, setup, stray_ops, weights_layout
from .finding import COST, NOTE, RISK, SKIPPED, Check, Finding, Observation, capitalised
from .slower import slower
from .threshold import threshold

if TYPE_CHECKING:
    from ..cost import Cost
    from ..trace.planned import Planned

LOG = ("debug log",)
BOTH = ("scheduler", *LOG)

# In the order in which they explain nodes and copies: specific checks before general ones.
CHECKS = (
    Check("GP101", COST, "silent fallback", stray_ops.fallback),
    Check("GP107", COST, "op dragged by a small weight", stray_ops.dragged),
    Check("GP105", COST, "BLAS defeats op offload", offload.defeated_by_blas),
    Check("GP106", COST, "layout defeats op offload", offload.defeated_by_layout),
    Check("GP108", COST, "avoidable split", stray_ops.avoidable_splits),
    Check("GP116", COST, "swept across a border", stray_ops.swept),
    Check("GP113", COST, "weights alternate", weights_layout.alternating),
    Check("GP115", COST, "round trip", stray_ops.round_trips, LOG),
    Check("GP103", COST, "op offload copies weights", copies.offloaded_weights, BOTH),
    Check("GP102", COST, "weights copied every time", copies.weights, BOTH),
    Check("GP104", COST, "cache copied every time", copies.state, BOTH),
    Check("GP119", COST, "weights in host memory", host.weights_in_host_memory),
    Check("GP120", COST, "cache in host memory", host.cache_in_host_memory),
    Check("GP121", NOTE, "device left empty", host.empty_devices),
    Check("GP109", NOTE, "input on the wrong side", copies.inputs),
    Check("GP117", RISK, "memory out of reach", out_of_reach.out_of_reach),
    Check("GP110", RISK, "scheduler nearly full", setup.nearly_full),
    Check("GP111", RISK, "pin not applied", setup.pins_not_applied),
    Check("GP112", RISK, "pins dropped", setup.pins_dropped),
    Check("GP114", NOTE, "embedding in a split of its own", weights_layout.lone_embedding),
    Check("GP131", COST, "fused op refused by a probe", choices_made.fused_ops_refused),
    Check("GP132", NOTE, "no pipeline parallelism", choices_made.no_pipeline),
    Check("GP133", NOTE, "layers that --fit moved", choices_made.layers_moved),
    Check("GP118", COST, "op offload threshold is wrong here", threshold, by_time=True),
    Check("GP122", COST, "slower device holds more", slower, by_time=True),
)


def advice(
    plan: Planned, min_bytes: int = 1 << 20, cost: Cost | None = None
) -> tuple[Finding, ...]:
    """See `Plan.advice`; `cost` is the plan's, on a machine."""
    if not isinstance(min_bytes, int) or min_bytes < 0:
        raise ValueError(f"min_bytes={min_bytes!r}: expected a whole number of bytes, 0 or more")
    facts = Facts(plan, min_bytes)
    untimed = [c for c in CHECKS if not c.by_time]
    answerable = [c for c in untimed if plan.capture.source in c.sources]
    found = [_finding(facts, c, seen) for c in answerable for seen in c.run(facts)]
    if cost is not None:
        timed = [c for c in CHECKS if c.by_time]
        found += [_finding(facts, c, seen) for c in timed for seen in c.run(cost)]
    found.sort(key=lambda f: (-f.bytes, f.id))
    skipped = sorted(c.id for c in untimed if c not in answerable and c.sources != LOG)
    found += [_not_checked(plan, skipped)] if skipped else []
    return tuple(found if cost is None else _by_time(found, cost))


def _finding(facts: Facts, check: Check, seen: Observation) -> Finding:
    return Finding(
        check.id, check.severity, check.title, capitalised(seen.text, facts.plan), seen.prose,
        tuple(facts.plan.tensor(t.id) for t in seen.tensors), seen.bytes, seen.seconds,
        options=tuple(seen.options), headline=seen.headline,
    )  # fmt: skip


def _by_time(findings: list[Finding], cost: Cost) -> Iterator[Finding]:
    """The findings with their seconds, the most first; findings without any known time come
    last."""
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
    found = []
    for finding in findings:
        known = [taken[t.id] for t in finding.tensors if t.id in taken]
        if finding.seconds is None and known:
            finding = replace(finding, seconds=sum(known))
        if not cost.machine.is_measured:
            finding = replace(finding, known_by="by data sheets")
        found.append(finding)
    yield from sorted(found, key=_seconds, reverse=True)


def _seconds(finding: Finding) -> float:
    return -1.0 if finding.seconds is None else finding.seconds


def _not_checked(plan: Planned, skipped: list[str]) -> Finding:
    return Finding(
        SKIPPED,
        NOTE,
        "checks skipped",
        f"A {plan.capture.source} does not say what the backends support or where tensors were "
        f"before planning, so these checks were skipped: {', '.join(skipped)}.",
        "Plan the graph with Scheduler.plan, or record it, to run all checks.",
        (),
        0,
    )

"""Findings: what the owner of a plan may want to change (`Plan.advice`).

Each kind of finding has a stable id, a row here and a page, docs/advice/GPnnn.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    copies as advice_copies,
)
from . import decisions as advice_decisions
from . import host as advice_host
from . import (
    layout as advice_layout,
)
from . import (
    offload as advice_offload,
)
from . import (
    ops as advice_ops,
)
from . import reach as advice_reach
from . import (
    setup as advice_setup,
)
from .facts import COST, NOTE, RISK, Check, Facts, Finding

if TYPE_CHECKING:
    from ..planned import Planned

LOG = ("debug log",)
BOTH = ("scheduler", *LOG)

# In the order in which they explain nodes and copies: specific checks before general ones.
CHECKS = (
    Check("GP101", COST, "silent fallback", advice_ops.fallback),
    Check("GP107", COST, "op dragged by a small weight", advice_ops.dragged),
    Check("GP105", COST, "BLAS defeats op offload", advice_offload.defeated_by_blas),
    Check("GP106", COST, "layout defeats op offload", advice_offload.defeated_by_layout),
    Check("GP108", COST, "avoidable split", advice_ops.avoidable_splits),
    Check("GP116", COST, "swept across a border", advice_ops.swept),
    Check("GP113", COST, "weights alternate", advice_layout.alternating),
    Check("GP115", COST, "round trip", advice_ops.round_trips, LOG),
    Check("GP103", COST, "op offload copies weights", advice_copies.offloaded_weights, BOTH),
    Check("GP102", COST, "weights copied every time", advice_copies.weights, BOTH),
    Check("GP104", COST, "cache copied every time", advice_copies.state, BOTH),
    Check("GP119", COST, "weights in host memory", advice_host.weights_in_host_memory),
    Check("GP120", COST, "cache in host memory", advice_host.cache_in_host_memory),
    Check("GP121", NOTE, "device left empty", advice_host.empty_devices),
    Check("GP109", NOTE, "input on the wrong side", advice_copies.inputs),
    Check("GP117", RISK, "memory out of reach", advice_reach.out_of_reach),
    Check("GP110", RISK, "scheduler nearly full", advice_setup.nearly_full),
    Check("GP111", RISK, "pin not applied", advice_setup.pins_not_applied),
    Check("GP112", RISK, "pins dropped", advice_setup.pins_dropped),
    Check("GP114", NOTE, "embedding in a split of its own", advice_layout.lone_embedding),
    Check("GP131", COST, "fused op refused by a probe", advice_decisions.fused_ops_refused),
    Check("GP132", NOTE, "no pipeline parallelism", advice_decisions.no_pipeline),
    Check("GP133", NOTE, "layers that --fit moved", advice_decisions.layers_moved),
)
SKIPPED = "GP100"


def advice(plan: Planned, min_bytes: int = 1 << 20) -> tuple[Finding, ...]:
    """See `Plan.advice`."""
    if not isinstance(min_bytes, int) or min_bytes < 0:
        raise ValueError(f"min_bytes={min_bytes!r}: expected a whole number of bytes, 0 or more")
    facts = Facts(plan, min_bytes)
    answerable = [c for c in CHECKS if plan.capture.source in c.sources]
    findings = [
        Finding(
            check.id, check.severity, check.title,
            found.text[:1].upper() + found.text[1:], found.prose,
            tuple(plan.tensor(t.id) for t in found.tensors), found.bytes,
            options=tuple(found.options),
        )
        for check in answerable
        for found in check.run(facts)
    ]  # fmt: skip
    findings.sort(key=lambda f: (-f.bytes, f.id))
    skipped = sorted(c.id for c in CHECKS if c not in answerable and c.sources != LOG)
    return (*findings, _not_checked(plan, skipped)) if skipped else tuple(findings)


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

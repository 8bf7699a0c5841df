"""A device that holds more weights than a quicker one."""

from __future__ import annotations

from collections.abc import Iterator

from ..cost.cost import Cost, estimator_of
from ..trace.facts import Facts, Option
from ..trace.planned import format_bytes
from ..trace.units import format_number, format_time
from .finding import Observation

_QUICKER = 1.25  # from which on another device's memory is called quicker
_MORE = 1.1  # from which on a device holds more


def slower(cost: Cost) -> Iterator[Observation]:
    """If a device holds more weights than another one whose memory is clearly quicker. The seconds
    are what the difference takes more on the slower device, without its error."""
    plan, facts = cost.plan, Facts(cost.plan, 0)
    held = dict.fromkeys(facts.devices, 0)
    for w in facts.capture.tensors:
        buft = facts.capture.buft_of(w) if facts.capture.is_weight(w) and w.view_src < 0 else -1
        for b in facts.devices:
            if buft >= 0 and buft == plan.backends[b].buft:
                held[b] += w.nbytes
    speeds = {}
    for b in held:
        known = estimator_of(cost.machine, plan.backends[b].name, plan.backends[b].device)
        if known is None or not known.bandwidth:
            return
        speeds[b] = known.bandwidth
    pairs = [
        (slow, quick) for slow in held for quick in held
        if speeds[quick] > _QUICKER * speeds[slow] and held[slow] > _MORE * held[quick]
    ]  # fmt: skip
    if not pairs:
        return
    slow, quick = max(pairs, key=lambda pair: held[pair[0]] - held[pair[1]])
    more = held[slow] - held[quick]
    read = [n for n in cost.nodes if n.backend == facts.name(slow) and n.seconds]
    seconds = sum(n.seconds or 0.0 for n in read) * more / held[slow]
    lost = seconds * (1 - speeds[slow] / speeds[quick])
    text = (
        f"{facts.name(slow)} holds {format_bytes(held[slow])} of weights and {facts.name(quick)}, "
        f"whose memory is {format_number(speeds[quick] / speeds[slow])} times as fast, "
        f"{format_bytes(held[quick])}: {format_time(lost)} of a graph, if both had the same."
    )
    yield Observation(
        text, "Give the quicker device as many layers as it has room for.",
        [plan.capture.tensors[n.id] for n in read], more,
        (Option("-ts", {}), Option("-mg", {})), lost,
        f"{facts.name(slow)} holds more than the quicker {facts.name(quick)}",
    )  # fmt: skip

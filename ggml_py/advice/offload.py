"""Findings about op offload: ops that a device wants but does not get."""

from __future__ import annotations

from collections.abc import Iterator

from ..trace import causes
from ..trace.facts import Facts, Option, verb
from ..trace.planned import Planned, format_bytes
from ..trace.record import TensorRecord
from .finding import Observation


def defeated_by_blas(facts: Facts) -> Iterator[Observation]:
    """Upstream asks devices whether they want to offload an op only if the last backend is the
    first that can read its weight and run it. BLAS reads host memory and comes before the last."""
    before_last = [b for b in range(facts.last) if not facts.has_own_memory(b)]
    stopped = [t for t in _wanted(facts) if facts.where[t.id] in before_last]
    names = facts.capture.names(dict.fromkeys(facts.where[t.id] for t in stopped))
    after = facts.what_if(drop=names) if stopped else None
    found = _gained(facts, stopped, after)
    if not found or after is None:
        return
    device, nodes, size = found
    facts.explain((), nodes)
    who, last, it = " and ".join(names), facts.name(facts.last), verb(nodes, "it", "them")
    yield Observation(
        f"{facts.of(nodes, 'node')} {verb(nodes, 'runs', 'run')} on {who}, and {device} is not "
        f"asked whether it wants {it}: {who} reads host memory and outranks {last}, but only ops "
        f"that {last} would get can be offloaded. Without {who}, {device} computes {it} and "
        f"{format_bytes(size)} of weights are copied there in each evaluation: "
        f"{facts.compared(after)}.",
        f"Leave {who} out (llama.cpp: a build with GGML_BLAS=OFF) and compare prompt times.",
        nodes,
        size,
    )


def defeated_by_layout(facts: Facts) -> Iterator[Observation]:
    """The scheduler does not count weights in the CPU's own layouts as host memory."""
    stopped: dict[str, list[TensorRecord]] = {}
    for t in _wanted(facts, host=False):
        weight = facts.followed_weight(t)
        if weight is not None and facts.where[t.id] == facts.last:
            buft = facts.capture.bufts[facts.capture.buffers[weight.buffer].buft]
            stopped.setdefault(buft.name, []).append(t)
    for buft_name, nodes in stopped.items():
        facts.explain((), nodes)
        weights = dict.fromkeys(w for t in nodes if (w := facts.followed_weight(t)))
        device = facts.capture.names(_takers(facts, nodes[0]))[0]
        yield Observation(
            f"{facts.of(nodes, 'node')} {verb(nodes, 'runs', 'run')} on {facts.name(facts.last)}, "
            f"although {device} wants {verb(nodes, 'it', 'them')} at this batch size: "
            f"{verb(nodes, 'its weight is', 'their weights are')} in {buft_name} memory. That does "
            "not count as host memory, and only ops with weights in host memory are offloaded.",
            f"Keep the weights in their original layout, or put them on {device}.",
            nodes,
            sum(w.nbytes for w in weights),
            (Option("--no-repack", {"repack": False}),),
        )


def _wanted(facts: Facts, host: bool = True) -> Iterator[TensorRecord]:
    """Nodes that a device would take and whose weight is in host memory, or not (`host`)."""
    if not facts.capture.settings.op_offload:
        return
    for t in facts.computed:
        weight = facts.followed_weight(t)
        if weight is None or t.id in facts.explained_nodes or not _takers(facts, t):
            continue
        buft = facts.capture.bufts[facts.capture.buffers[weight.buffer].buft]
        if buft.is_host == host and not facts.has_own_memory(facts.where[t.id]):
            yield t


def _takers(facts: Facts, t: TensorRecord) -> int:
    """The devices that support `t` and want it."""
    return t.supports & t.offload & sum(1 << b for b in facts.devices)


def _gained(
    facts: Facts, nodes: list[TensorRecord], after: Planned | None
) -> tuple[str, list[TensorRecord], int] | None:
    """The device that takes nodes in `after`, these nodes, and the bytes of their weights."""
    if after is None:
        return None
    gained = [t for t in nodes if after.outcome.placements[t.id].cause == causes.OFFLOADED.code]
    if not gained:
        return None
    weights = dict.fromkeys(w for t in gained if (w := facts.followed_weight(t)))
    device = after.tensor(gained[0].id).backend
    return device or "?", gained, sum(w.nbytes for w in weights)

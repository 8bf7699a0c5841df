"""Findings about nodes that run elsewhere than the nodes around them."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import Facts, Found, are, before_and_after, described, nbytes
from .record import TensorRecord

_HALF_AND_MORE = frozenset({"f32", "f16", "bf16"})


def fallback(facts: Facts) -> Iterator[Found]:
    """Nodes that would be on a device, with the nodes around them, if only it supported them."""
    for device in facts.devices:
        groups: dict[tuple[str, ...], list[TensorRecord]] = {}
        for t in facts.computed:
            if _kept_off(facts, t, device):
                types = [facts.capture.tensors[i].type for i in t.src if i >= 0]
                groups.setdefault((t.op_desc, *types), []).append(t)
        for (op, *types), nodes in groups.items():
            after = facts.replan({t.id: {"supports": t.supports | 1 << device} for t in nodes})
            moved = [t for t in nodes if after.outcome.placements[t.id].backend == device]
            if not moved:
                continue
            copies = facts.around(moved)
            facts.explain(copies)
            name, where = facts.name(device), facts.name(facts.where[moved[0].id])
            yield Found(
                f"{described(moved, op + ' node')} {are(moved, 'runs', 'run')} on {where}, in the "
                f"midst of what {name} computes, because {name} does not support "
                f"{are(moved, 'it', 'them')} (sources: {', '.join(types)}). If it did: "
                f"{before_and_after(facts.plan, after)}.",
                _what_to_do(facts, moved[0], name),
                moved,
                nbytes(copies),
            )


def _kept_off(facts: Facts, t: TensorRecord, device: int) -> bool:
    """Whether `t` has to do with a device, and is not there, and is not supported there."""
    where = facts.where[t.id]
    if t.supports >> device & 1 or t.pin >= 0 or where < device or facts.has_own_memory(where):
        return False
    around = [facts.where[i] for i in t.src if i >= 0]
    around += [facts.where[r.id] for r in facts.readers.get(t.id, ())]
    return device in around


def _what_to_do(facts: Facts, t: TensorRecord, device: str) -> str:
    ask = f"plan.why_not('{t.name}', '{device}') tells more."
    if t.op != "FLASH_ATTN_EXT":
        return f"Use types and shapes that {device} supports, or another op. {ask}"
    k, v = (facts.capture.tensors[i].type for i in t.src[1:3])
    if {k, v} <= _HALF_AND_MORE:
        return f"llama.cpp's -fa off computes attention with ops that most devices support. {ask}"
    return f"llama.cpp's -ctk f16 -ctv f16 keeps a cache that most devices support. {ask}"

"""Findings about nodes that a discrete card could not compute."""

from __future__ import annotations

from collections.abc import Iterator

from . import reach
from .finding import Facts, Found, are, described


def out_of_reach(facts: Facts) -> Iterator[Found]:
    """Nodes that use memory which their backend cannot reach, or whose writes are lost."""
    groups: dict[tuple[str, str, int, int], list[reach.Unreached]] = {}
    for u in reach.unreached(facts.plan):
        key = u.node.op_desc, u.what, facts.where[u.node.id], u.buft
        groups.setdefault(key, []).append(u)
    for (op, what, on, _buft), found in groups.items():
        nodes = [u.node for u in found]
        held = list(dict.fromkeys(u.tensor for u in found))
        name, memory = facts.name(on), facts.capture.bufts[found[0].buft].name
        does = what if len(nodes) == 1 else _MANY[what]
        subject = (
            f"{described(nodes, op + ' node')} {are(nodes, 'runs', 'run')} on {name} and {does}"
        )
        memories = f"{described(held, 'tensor')}, which {are(held)} in {memory} memory"
        end = "the update is thrown away" if what == reach.UPDATES else f"{name} cannot reach that"
        yield Found(
            f"{subject} {memories}: {end}. A device with memory of its own ends the process there, "
            "or loses the write; simulated devices refuse to compute it.",
            _what_to_do(facts, found[0], name, memory),
            nodes,
        )


_MANY = {
    reach.WRITES: "write to",
    reach.READS: "read",
    reach.UPDATES: "update copies of",
}


def _what_to_do(facts: Facts, u: reach.Unreached, name: str, memory: str) -> str:
    if facts.cause(u.node) == "usr":
        return f"Take the pin of '{u.node.name}' away, or pin it to where the memory is."
    if u.what == reach.WRITES:
        return (
            f"Use the op that is not in place, whose result has memory of its own on {name}; or "
            f"run it where the memory is: plan.why_not('{u.node.name}', …) tells what keeps it off."
        )
    return f"Allocate '{u.tensor.name}' where {name} can use it, not in {memory} memory."

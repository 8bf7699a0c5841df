"""The finding about memory out of reach (`trace.answers.reach`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..trace import causes
from ..trace.answers.reach import READS, UPDATES, WRITES, Unreached, unreached
from ..trace.answers.reasons import key
from ..trace.facts import Facts, verb
from ..trace.names import quoted
from .finding import Observation


def out_of_reach(facts: Facts) -> Iterator[Observation]:
    """Nodes that use memory that their backend cannot reach, or whose writes are lost."""
    groups: dict[tuple[str, str, int, int], list[Unreached]] = {}
    for u in unreached(facts.plan):
        key = u.node.op_desc, u.what, facts.where[u.node.id], u.buft
        groups.setdefault(key, []).append(u)
    for (op, what, on, _buft), found in groups.items():
        nodes = [u.node for u in found]
        held = list(dict.fromkeys(u.tensor for u in found))
        name, memory = facts.name(on), facts.capture.bufts[found[0].buft].name
        does = what if len(nodes) == 1 else _MANY[what]
        subject = (
            f"{facts.of(nodes, op + ' node')} {verb(nodes, 'runs', 'run')} on {name} and {does}"
        )
        memories = f"{facts.of(held, 'tensor')}, which {verb(held)} in {memory} memory"
        end = "the update is lost" if what == UPDATES else f"{name} cannot reach that memory"
        yield Observation(
            f"{subject} {memories}: {end}. A device with memory of its own ends the process here "
            "or loses the write; simulated devices refuse to compute it.",
            _what_to_do(facts, found[0], name, memory),
            nodes,
        )


_MANY = {
    WRITES: "write to",
    READS: "read",
    UPDATES: "update copies of",
}


def _what_to_do(facts: Facts, u: Unreached, name: str, memory: str) -> str:
    node, tensor = (quoted(facts.plan.tensor(t.id)) for t in (u.node, u.tensor))
    if facts.cause(u.node) == causes.PINNED.code:
        return f"Remove the pin of {node}, or pin it to where the memory is."
    if u.what == WRITES:
        return (
            f"Use the op that is not in place, whose result has memory of its own on {name}, or "
            f"run it where the memory is: plan.why_not({key(facts.plan.tensor(u.node.id))!r}, …) "
            "says what keeps it off."
        )
    return f"Allocate {tensor} where {name} can use it instead of in {memory} memory."

"""Why two releases plan the same work differently: a rule of the scheduler, an answer of a backend,
or another graph.

The reference scheduler follows the rules of any release. It plans one release's graph with single
things taken from the other; what alone leads to the other's plan is the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ..trace.names import counted
from ..trace.planned import Planned
from ..trace.record import NODE, Capture, Outcome, TensorRecord
from ..trace.reference import CannotPlanError, Planning
from ..trace.rules import Rules, rules_of

_SHOWN = 3  # ops in a sentence


class Attribution(NamedTuple):
    """A difference between two releases that the plan depends on."""

    kind: str  # "rule", "answer", "memory", "graph", "history", "unknown"
    what: str  # the field of `Rules`; "" for other kinds
    text: str  # in a sentence
    decides: bool  # whether it alone leads from the one plan to the other


def changes(before: Planned, after: Planned) -> tuple[Attribution, ...]:
    """What led from one release's plan to the other's, what decides first. () if they decide the
    same. "unknown" is what neither rules nor answers explain."""
    a, b = before.capture, after.capture
    if _decided(before.outcome) == _decided(after.outcome) and _graph(a) == _graph(b):
        return ()
    if _graph(a) != _graph(b):
        return (Attribution("graph", "", _graph_text(a, b), True),)
    target = _decided(after.outcome)
    found = [*_rules(a, b, target), *_answers(a, b, target)]
    together = any(one.decides for one in found) or _same(_with_answers(a, b), b, target)
    if not together:
        text = "neither a known rule nor an answer of a backend leads to this plan"
        found.append(Attribution("unknown", "", text, False))
    return tuple(sorted(found, key=lambda change: not change.decides))


def agrees(plan: Planned) -> bool:
    """Whether the reference scheduler makes the same plan by the rules of the plan's release."""
    return _same(plan.capture, plan.capture, _decided(plan.outcome))


def _decided(outcome: Outcome) -> object:
    """What counts of a plan: where everything is, for which cause, and the splits."""
    return [(p.backend, p.cause) for p in outcome.placements], outcome.splits


def _same(capture: Capture, release: Capture, target: object, rules: Rules | None = None) -> bool:
    """Whether the reference makes that of a capture by the rules of another's release."""
    planning = Planning(replace(capture, settings=release.settings), None)
    planning.rules = rules or planning.rules
    try:
        return _decided(planning.run()) == target
    except CannotPlanError:
        return False


def _rules(a: Capture, b: Capture, target: object) -> list[Attribution]:
    old, new = rules_of(a.settings), rules_of(b.settings)
    found = []
    for name in Rules._fields:
        was, now = getattr(old, name), getattr(new, name)
        if was != now:
            swapped = old._replace(**{name: now})
            if _same(a, a, target, swapped):
                found.append(Attribution("rule", name, _RULES[name](was, now), True))
    return found


_INPUTS = {
    "fixed": "a split ends at 30 inputs",
    "capacity": "a split ends at the room that earlier plans left in its slot",
    "": "a split has any number of inputs",
}


def _ignored(was: frozenset[str], now: frozenset[str]) -> str:
    stopped, began = sorted(now - was), sorted(was - now)
    parts = [f"{op} no longer follows its weights in pass 1" for op in stopped]
    return " and ".join(parts + [f"{op} follows its weights in pass 1 again" for op in began])


_RULES: dict[str, Callable[[Any, Any], str]] = {
    "ignore_weights": _ignored,
    "input_limit": lambda was, now: f"{_INPUTS[now]}; before, {_INPUTS[was]}",
    "graph_inputs_pass": lambda was, now: (
        f"graph inputs are copied for pipeline parallelism in pass {now}, not in pass {was}"
    ),
    "reserve_ignores_pins": lambda _was, now: (
        "reserve drops the pins before it plans" if now else "reserve plans with the pins"
    ),
}


def _with_answers(a: Capture, b: Capture) -> Capture:
    """The first capture with the answers, and the memory, of the second."""
    tensors = tuple(
        t._replace(supports=u.supports, offload=u.offload, pin=u.pin, buffer=u.buffer)
        for t, u in zip(a.tensors, b.tensors, strict=True)
    )
    return replace(a, tensors=tensors, bufts=b.bufts, buffers=b.buffers, backends=b.backends)


def _answers(a: Capture, b: Capture, target: object) -> list[Attribution]:
    counts: Counter[str] = Counter()
    for t, u in zip(a.tensors, b.tensors, strict=True):
        for field, verb in (("supports", "supports"), ("offload", "offloads")):
            other = getattr(t, field) ^ getattr(u, field)
            for name in a.names(other) if t.kind == NODE else ():
                now = getattr(u, field) >> a.backend_index(name) & 1
                counts[f"{name} {verb if now else f'no longer {verb}'} {u.op_desc}"] += 1
    decides = _same(_with_answers(a, b), a, target)
    found = []
    if counts:
        rows = [f"{text} ({counted(n, 'node')})" for text, n in counts.most_common(_SHOWN)]
        more = f" and {len(counts) - _SHOWN} more answers" if len(counts) > _SHOWN else ""
        found.append(Attribution("answer", "", ", ".join(rows) + more, decides))
    if _memory(a) != _memory(b):
        elsewhere = sum(x != y for x, y in zip(_memory(a), _memory(b), strict=True))
        text = f"{counted(elsewhere, 'tensor')} in other memory, or pinned otherwise"
        found.append(Attribution("memory", "", text, decides))
    return found


def _memory(capture: Capture) -> list[tuple[object, int]]:
    bufts = [capture.buft_of(t) for t in capture.tensors]
    return [
        (capture.bufts[buft][1:] if buft >= 0 else None, t.pin)
        for t, buft in zip(capture.tensors, bufts, strict=True)
    ]


def _node(t: TensorRecord) -> tuple[object, ...]:
    return t.kind, t.op_desc, t.type, t.ne, t.src, t.view_src


def _graph(capture: Capture) -> list[tuple[object, ...]]:
    return [_node(t) for t in capture.tensors]


def _graph_text(a: Capture, b: Capture) -> str:
    if a.n_nodes != b.n_nodes:
        return f"another graph: {counted(b.n_nodes, 'node')}, not {a.n_nodes}"
    pairs = [(t, u) for t, u in zip(a.tensors, b.tensors, strict=False) if _node(t) != _node(u)]
    if not pairs:
        return f"another graph: {len(b.tensors)} tensors, not {len(a.tensors)}"
    t, u = pairs[0]
    now, was = (f"'{one.name}' ({one.op_desc})" for one in (u, t))
    return f"another graph: the first difference is {now}, before {was}"

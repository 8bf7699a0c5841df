"""Why two releases plan the same work differently: a rule of the scheduler, an answer of a backend,
or another graph.

The reference scheduler follows the rules of any release. It plans one release's graph with parts of
what differs taken from the other. The part that leads to the other's plan is the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..trace.causes import STAGES
from ..trace.names import counted
from ..trace.planned import Planned
from ..trace.planning import CannotPlanError, Planning
from ..trace.record import NODE, Capture, Outcome, TensorRecord
from ..trace.rules import Rules, rules_of
from .rule_changes import ChangedRule, changed_rules, explaining, known_rules

_SHOWN = 3  # ops in a sentence
_SMALL = 2000  # tensors of a graph that is planned with many changed rules


class Attribution(NamedTuple):
    """A difference between two releases that the plan depends on."""

    # "rule", "answer", "memory", "settings", "devices", "graph", "unknown", "pass", and in
    # `Compared.run` what was seen
    kind: str
    what: str  # the field of `Rules`; "" for other kinds
    text: str  # in a sentence
    decides: bool  # whether it, with the others that decide, leads from one plan to the other


def changes(before: Planned, after: Planned) -> tuple[Attribution, ...]:
    """Differences that lead from one release's plan to the other's: each that does so alone,
    otherwise the differences needed together. () if both decide the same. "unknown": the rules and
    answers do not explain it."""
    a, b = before.capture, after.capture
    if _graph(a) != _graph(b):
        return (Attribution("graph", "", _graph_text(a, b), True),)
    target = _decided(after.outcome)
    if _decided(before.outcome) == target:
        return ()
    names = [", ".join(backend.name for backend in side.backends) for side in (a, b)]
    if names[0] != names[1]:
        return (Attribution("devices", "", f"backends {names[1]}, not {names[0]}", True),)
    parts = _parts(a, b)

    def leads(taken: frozenset[str]) -> bool:
        return _planned(_taking(a, b, taken), _rules(a, b, taken)) == target

    every = frozenset(parts)
    if leads(frozenset()):
        text = "the plan before is not the one that its release's rules lead to"
        return (Attribution("unknown", "", text, False),)
    if not leads(every):
        text = "neither a known rule nor an answer of a backend leads to this plan"
        others = [Attribution(*parts[p], False) for p in parts if parts[p][0] != "rule"]
        return (*others, Attribution("unknown", "", text, False))
    alone = [p for p in parts if leads(frozenset((p,)))]
    needed = [p for p in parts if not leads(every - {p})]
    return tuple(Attribution(*parts[p], True) for p in alone or needed or parts)


def parting(before: Planned, after: Planned) -> Attribution | None:
    """The first stage after which something is elsewhere, with the first node of it. None if plans
    part nowhere in the passes, and for other graphs."""
    a, b = before.capture, after.capture
    names = [[backend.name for backend in side.backends] for side in (a, b)]
    if _graph(a) != _graph(b) or names[0] != names[1]:
        return None
    for stage in STAGES.values():
        for t, x, y in zip(
            a.tensors, before.outcome.placements, after.outcome.placements, strict=False
        ):
            rows = [p.passes[stage.row] for p in (x, y) if len(p.passes) > stage.row]
            if len(rows) == 2 and rows[0] != rows[1]:
                was, now = (names[0][i] if i >= 0 else "nowhere yet" for i in rows)
                node = f"'{t.name}' ({t.op_desc})"
                text = f"the plans part in pass {stage.title}, at {node}: {was} → {now}"
                return Attribution("pass", stage.title, text, False)
    for t, x, y in zip(
        a.tensors, before.outcome.placements, after.outcome.placements, strict=False
    ):
        if x.cause != y.cause:
            now, was = y.cause or "no cause", x.cause or "no cause"
            text = f"the same backends, but '{t.name}' for {now}, not {was}"
            return Attribution("pass", "causes", text, False)
    for i, (s, u) in enumerate(zip(before.splits, after.splits, strict=False)):
        if (s.backend, s.start, len(s.inputs)) != (u.backend, u.start, len(u.inputs)):
            at = a.tensors[min(s.start, u.start)].name
            text = f"the plans part in pass 5, at split {i}, which begins with '{at}'"
            return Attribution("pass", "5", text, False)
    if before.outcome.splits != after.outcome.splits:
        return Attribution("pass", "5", "the plans part in pass 5, in the splits", False)
    if before.outcome.copies != after.outcome.copies:
        return Attribution("pass", "5", "the plans part in the copies that pass 5 makes", False)
    return None


def explained(pairs: Sequence[tuple[Planned, Planned] | None]) -> list[ChangedRule]:
    """Changes of a single rule that lead to the second plan of every pair. Changes to a rule that
    some release had are tried first, then any change of the reference."""
    after = [(b.capture, _decided(b.outcome)) for pair in pairs if pair for b in pair[1:]]
    after.sort(key=lambda one: len(one[0].tensors))
    different = [pair for pair in pairs if pair and not agrees(pair[1])]
    first = sorted(different, key=lambda pair: len(pair[0].capture.tensors))[:3]
    if not first or len(first[0][0].capture.tensors) > _SMALL:
        return []
    telling = [(b.capture, _decided(b.outcome)) for _a, b in first]
    rules = rules_of(first[0][1].capture.settings)
    for changes in (known_rules(rules, _RULES), changed_rules()):
        left = explaining(telling, changes, _decided)
        small = [one for one in after if len(one[0].tensors) <= _SMALL]
        if left := explaining(small, left, _decided):
            return left
    return []


def agrees(plan: Planned) -> bool:
    """Whether the reference scheduler makes the same plan by the rules of the plan's release."""
    rules = rules_of(plan.capture.settings)
    return _planned(plan.capture, rules) == _decided(plan.outcome)


def drops_pins(plan: Planned) -> bool:
    """Whether the graph is planned otherwise without its pins."""
    capture = plan.capture
    if all(t.pin < 0 for t in capture.tensors):
        return False
    without = replace(capture, tensors=tuple(t._replace(pin=-1) for t in capture.tensors))
    return _planned(without, rules_of(capture.settings)) != _decided(plan.outcome)


def rules_changed(old: Rules, new: Rules) -> dict[str, str]:
    """The rules that differ, by their names in `Rules`, each in a sentence about the new ones."""
    pairs = {name: (getattr(old, name), getattr(new, name)) for name in Rules._fields}
    return {name: _RULES[name](was, now) for name, (was, now) in pairs.items() if was != now}


def _decided(outcome: Outcome) -> object:
    """The decisions of a plan: the backend and cause of everything, and the splits."""
    return [(p.backend, p.cause) for p in outcome.placements], outcome.splits


def _planned(capture: Capture, rules: Rules) -> object:
    """The decisions of the reference by these rules; None if it cannot plan."""
    planning = Planning(capture, None)
    planning.rules = rules
    try:
        return _decided(planning.run())
    except CannotPlanError:
        return None


# --- the parts that may differ: each rule by its name, and "answer", "memory", "settings"

_Part = tuple[str, str, str]  # kind, what, text


def _parts(a: Capture, b: Capture) -> dict[str, _Part]:
    old, new = rules_of(a.settings), rules_of(b.settings)
    found: dict[str, _Part] = {}
    for name, text in rules_changed(old, new).items():
        found[name] = ("rule", name, text)
    if text := _answers_text(a, b):
        found["answer"] = ("answer", "", text)
    elsewhere = sum(x != y for x, y in zip(_memory(a), _memory(b), strict=True))
    if elsewhere or _readers(a) != _readers(b):
        text = f"{counted(elsewhere, 'tensor')} in other memory, or pinned otherwise"
        found["memory"] = ("memory", "", text if elsewhere else "other compute buffers")
    settings = [f"{n} {now}, not {was}" for n, was, now in _settings(a, b) if was != now]
    if settings:
        found["settings"] = ("settings", "", ", ".join(settings))
    return found


def _rules(a: Capture, b: Capture, taken: frozenset[str]) -> Rules:
    """The rules of `a`, those in `taken` from `b`."""
    new = rules_of(b.settings)
    return rules_of(a.settings)._replace(
        **{name: getattr(new, name) for name in Rules._fields if name in taken}
    )


def _taking(a: Capture, b: Capture, taken: frozenset[str]) -> Capture:
    """The capture `a`, with the parts in `taken` from `b`."""
    tensors = list(a.tensors)
    fields: dict[str, Any] = {}
    for part, names in (("answer", ("supports", "offload")), ("memory", ("pin", "buffer"))):
        if part in taken:
            tensors = [
                t._replace(**{name: getattr(u, name) for name in names})
                for t, u in zip(tensors, b.tensors, strict=True)
            ]
    if "memory" in taken:
        fields |= {"bufts": b.bufts, "buffers": b.buffers, "backends": b.backends}
    if "settings" in taken:
        now: dict[str, Any] = {name: value for name, _was, value in _settings(a, b)}
        fields["settings"] = a.settings._replace(**now)
    if "input_limit" in taken:  # only some releases keep a split's room
        fields["split_capacities"] = b.split_capacities
    return replace(a, tensors=tuple(tensors), **fields)


def _settings(a: Capture, b: Capture) -> list[tuple[str, int, int]]:
    names = ("op_offload", "n_copies")
    return [(name, getattr(a.settings, name), getattr(b.settings, name)) for name in names]


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


def _answers_text(a: Capture, b: Capture) -> str:
    counts: Counter[str] = Counter()
    for t, u in zip(a.tensors, b.tensors, strict=True):
        for field, verb in (("supports", "supports"), ("offload", "offloads")):
            other = getattr(t, field) ^ getattr(u, field)
            for i, backend in enumerate(a.backends) if t.kind == NODE else ():
                if other >> i & 1:
                    now = verb if getattr(u, field) >> i & 1 else f"no longer {verb}"
                    counts[f"{backend.name} {now} {u.op_desc}"] += 1
    rows = [f"{text} ({counted(n, 'node')})" for text, n in counts.most_common(_SHOWN)]
    more = len(counts) - _SHOWN
    return ", ".join(rows) + (f" and {counted(more, 'more answer')}" if more > 0 else "")


def _readers(capture: Capture) -> list[object]:
    return [capture.bufts[b.buft][1:] if b.buft >= 0 else None for b in capture.backends]


def _memory(capture: Capture) -> list[tuple[object, int]]:
    bufts = [capture.buft_of(t) for t in capture.tensors]
    return [
        (capture.bufts[buft][1:] if buft >= 0 else None, t.pin)
        for t, buft in zip(capture.tensors, bufts, strict=True)
    ]


def _node(t: TensorRecord) -> tuple[object, ...]:
    return t.kind, t.op_desc, t.type, t.ne, t.src, t.view_src, "input" in t.flags


def _graph(capture: Capture) -> list[tuple[object, ...]]:
    return [_node(t) for t in capture.tensors]


def _graph_text(a: Capture, b: Capture) -> str:
    if a.n_nodes != b.n_nodes:
        return f"another graph: {counted(b.n_nodes, 'node')}, not {a.n_nodes}"
    pairs = [(t, u) for t, u in zip(a.tensors, b.tensors, strict=False) if _node(t) != _node(u)]
    if not pairs:
        return f"another graph: {len(b.tensors)} tensors, not {len(a.tensors)}"
    t, u = pairs[0]
    now, was = (f"'{one.name}' ({one.op_desc} {one.type} {list(one.ne)})" for one in (u, t))
    if now == was:  # it reads other tensors, or is no longer an input
        return f"another graph: the first difference is what {now} is made of"
    return f"another graph: the first difference is {now}, before {was}"

"""The page's content as compact data: columns of numbers, each distinct value stored once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ...advice.all_findings import advice
from ...advice.checkup import phase_of
from ...cost.cost import Cost
from ...trace.answers.explain import Link, disagreements, has_steps, parts
from ...trace.answers.passes import PASS_NAMES, has_leaf_passes
from ...trace.answers.reasons import first_reason
from ...trace.answers.shares import bytes_moved, headline, shares
from ...trace.answers.why_splits import planned
from ...trace.flops import flops
from ...trace.names import shape, signature
from ...trace.planned import Planned, PlanTensor
from ...trace.record import COPY, NODE
from ..palette import lanes
from ..predicted_times import predicted_times
from ..roles import ROLES, roles
from ..rows import copy_rows, devices, node_rows, off_reasons, off_rows
from ..run_times import Times
from ..snapshot_plan import unknown
from .first_screen import ModelAnswers, findings_data, first_screen
from .interning import Table, Texts
from .memory_map import differences, memory_map

_NOWHERE = "?"


def data(
    plan: Planned,
    measured: Times | None = None,
    cost: Cost | None = None,
    tried: ModelAnswers | None = None,
) -> dict[str, Any]:
    """One plan, with its times if they were measured or predicted, as the scripts of this folder
    read it (`Plan` in plan.js shows what each key is)."""
    strings = Table()
    texts = Texts(strings)
    rows = node_rows(plan)
    tensors = _tensors(plan, strings)
    steps = has_steps(plan)
    found = tried.findings if tried else None
    once = measured.total * 1e-9 if measured and not measured.per_op else None
    phase = phase_of(plan, advice(plan, cost=cost) if found is None else found, cost, once)
    times = measured or (cost and predicted_times(cost))
    numbers: dict[str | None, int] = {b.name: i for i, b in enumerate(plan.backends)}
    made = {
        "headline": headline(plan),
        **first_screen(phase, tried),
        "backends": _backends(plan),
        "shares": _shares(plan),
        "nodes": len(plan.nodes),
        "computed": "".join(str(int(r.is_computed)) for r in rows),
        "layer": [-1 if r.layer is None else r.layer for r in rows],
        "role": "".join(map(str, roles(plan))),
        "roles": ROLES,
        **tensors,
        # relative to the node; 0 for none
        "src": [
            [t.id - i if i >= 0 else 0 for i in t.src] for t in plan.capture.tensors[: len(rows)]
        ],
        "splits": [[s.backend, s.start, s.end] for s in plan.split_records],
        "copies": [
            [c.split, c.id, c.copy_id, c.what, numbers.get(c.src_backend, -1), c.nbytes]
            for c in copy_rows(plan)
        ],
        "times": times and times._asdict() | {"plan": None},
        "map": memory_map(plan),
        "stages": list(PASS_NAMES) if plan.capture.source == "scheduler" else [],
        "passes": _passes(plan),
        "off": [r._asdict() for r in off_rows(plan, rows, off_reasons(plan, rows))],
        "advice": findings_data(phase),
        **_explanations(plan, texts, steps),
        "not": _reasons(plan, texts) if steps else [],
        "disagreements": list(disagreements(plan)),
        "unknown": list(unknown(plan)),
    }
    made["forms"], made["texts"] = texts.forms.values(), texts.texts.values()
    made["strings"] = strings.values()
    return made


def _backends(plan: Planned) -> list[dict[str, Any]]:
    own, bufts = devices(plan), plan.capture.bufts
    return [
        {
            "name": b.name, "device": b.device, "type": b.device_type, "own": i in own,
            "color": color,
            "buft": bufts[b.buft].name if b.buft >= 0 else _NOWHERE,
        }
        for i, (b, color) in enumerate(zip(plan.backends, lanes(plan), strict=True))
    ]  # fmt: skip


def _shares(plan: Planned) -> list[list[int]] | None:
    """For each backend: nodes, FLOPs, bytes read and written, bytes of weights."""
    parts = shares(plan)
    if parts is None:
        return None
    return [[s.nodes, s.flops, s.bytes, s.weight_bytes] for s in parts]


def _tensors(plan: Planned, strings: Table) -> dict[str, Any]:
    """Columns with an item per tensor: nodes, then leafs and others, then copies. Values that
    repeat in every layer (op, shapes, costs) are a row of "kinds"."""
    kinds = Table()
    kind_of = [kinds.number(_kind(plan, plan.tensor(t.id))) for t in plan.tensors]
    return {
        "name": differences([strings.number(t.name) for t in plan.tensors]),
        "kind": kind_of,
        "backend": [p.backend for p in plan.outcome.placements],
        "cause": [strings.number(p.cause) for p in plan.outcome.placements],
        "kinds": kinds.values(),
    }


def _kind(plan: Planned, t: PlanTensor) -> tuple[Any, ...]:
    """kind, op, type, ne, signature, memory before planning, bytes, FLOPs, bytes moved, weight."""
    capture, r = plan.capture, t.record
    cost: tuple[int, int] = 0, 0
    if t.is_computed and capture.source == "scheduler":
        sources = [capture.tensors[i] for i in r.src if i >= 0]
        cost = flops(r, sources), bytes_moved(r, sources)
    ne = shape(t).partition(" ")[2]
    place = t.buft.name if t.buft and r.kind != NODE else ""
    told = signature(t) if r.kind == NODE else ""
    return (r.kind, r.op_desc, r.type, ne, told, place, r.nbytes, *cost, t.is_weight)


def _passes(plan: Planned) -> list[str]:
    """For each stage a letter per node and leaf: a, b, ... for the backends, . for none. Leafs are
    left out if the plan does not know their passes."""
    if plan.capture.source != "scheduler":
        return []
    n = len(plan.nodes) + (len(plan.leafs) if has_leaf_passes(plan) else 0)
    columns = [p.passes for p in plan.outcome.placements[:n]]
    return [
        "".join(chr(97 + c[row]) if c[row] >= 0 else "." for c in columns)
        for row in range(len(PASS_NAMES))
    ]


def _explanations(plan: Planned, texts: Texts, steps: bool) -> dict[str, Any]:
    """Every tensor's chain of decisions and notes. Chains that meet share the rest: "links" has
    each decision once, with the one that it follows from."""
    links: list[Link] = []
    then: list[int] = []  # the link after each, itself at the end
    relations: list[str] = []
    known: dict[tuple[Any, ...], int] = {}
    starts: list[int] = []
    notes: list[list[int]] = []

    def add(chain: Iterator[Link]) -> int:
        start = before = -1
        for link in chain:
            key = link.tensor.id, link.code, link.pass_, link.sweep
            i = known.setdefault(key, len(links))
            if before < 0:
                start = i
            else:
                then[before], relations[before] = i, link.relation
            if i < len(links):
                break
            links.append(link)
            then.append(i)
            relations.append("")
            before = i
        return start

    for record in plan.tensors:
        t = plan.tensor(record.id)
        chain, told = parts(plan, t, steps)
        if record.kind == COPY and steps:
            chain = itertools.islice(
                chain, 1
            )  # the others are in the chains of its reader and source
        starts.append(add(chain))
        notes.append([texts.number(note) for note in told])
    how, number = Table(), texts.strings.number
    columns = {
        "how": [
            how.number((number(x.backend), x.pass_, number(x.sweep), number(x.code), number(r)))
            for x, r in zip(links, relations, strict=True)
        ],
        "tensor": differences([x.tensor.id for x in links]),
        "text": differences([texts.number(x.text) for x in links]),
        # numbers relative to the tensor and to the link itself; 0: none
        "witness": [x.witness.id - x.tensor.id if x.witness else 0 for x in links],
        "then": [next_ - i for i, next_ in enumerate(then)],
    }
    return {
        "links": columns, "hows": how.values(), "why": differences(starts), "notes": notes,
    }  # fmt: skip


def _reasons(plan: Planned, texts: Texts) -> list[Any]:
    """For each node and each backend of higher priority, why the node is not there: backend, rule,
    text, and what would remove the rule."""
    reference = planned(plan)
    told: list[Any] = []
    for node in plan.nodes:
        rows = []
        for b in range(node.placement.backend if node.is_computed else 0):
            found = first_reason(reference, reference.tensor(node.id), b)
            if found is not None:
                changes = [texts.number(text) for text, *_ in found.changes]
                row = [b, texts.strings.number(found.id), texts.number(found.text), changes]
                rows.append(row)
        told.append(rows)
    return told

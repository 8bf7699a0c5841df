"""Requirements on a plan. Each function returns what is wrong, with the explanation of the first
node concerned, or "" if nothing is."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..cause import unknown_cause
from ..facts import Facts
from ..names import counted, joined, label, place, quoted
from ..planned import Planned, PlanTensor, Split, format_bytes
from ..units import most
from . import reach as reach
from .diff import diff
from .explain import explain
from .why_not import why_not

if TYPE_CHECKING:
    from ..record import TensorRecord
    from .diff import Diff, Difference

_MOST = 8  # rows of each kind


def fallen_back(
    plan: Planned, ops: Sequence[str] = (), backend: str | None = None, allow: Sequence[str] = ()
) -> str:
    """See `ggml_py.checks.assert_no_fallback`. Raises KeyError, ValueError."""
    facts = Facts(plan, 0)
    above = facts.devices if backend is None else [plan.capture.backend_index(backend)]
    if ops:
        if not above:
            raise ValueError(
                "backend=None: this plan has no backend with memory of its own, only "
                f"{joined(b.name for b in plan.backends)}; say which of them should run the ops"
            )
        fallen = [(t, max(above)) for t in facts.computed if _is_lower(facts, t, max(above))]
        fallen = [(t, b) for t, b in fallen if {t.op, t.op_desc} & set(ops)]
    else:
        if backend is not None and not facts.has_own_memory(above[0]):
            raise ValueError(
                f"backend={backend!r} works in the CPU's memory and runs only some ops: say which "
                "ops it should run with op="
            )
        fallen = [found for device in above for found in _fallen(facts, device)]
    nodes = {t.id: (plan.tensor(t.id), plan.backends[b].name) for t, b in fallen}
    told = [(t, b) for _id, (t, b) in sorted(nodes.items()) if not _is_allowed(t, allow)]
    if not told:
        return ""
    head = f"{len(told)} node{'s fall' if len(told) > 1 else ' falls'} back to another backend:"
    rows = _grouped((f"{t.record.op_desc} on {t.backend}, not on {b}", t) for t, b in told)
    return "\n".join([head, *rows, "", *why(plan, *told[0])])


def _is_lower(facts: Facts, t: TensorRecord, device: int) -> bool:
    return facts.where[t.id] > device


def _fallen(facts: Facts, device: int) -> Iterator[tuple[TensorRecord, int]]:
    """Unpinned nodes in the CPU's memory that read a tensor on `device`, and unpinned nodes that
    would be on it if it supported them."""
    below = [
        t for t in facts.computed
        if t.pin < 0 and facts.where[t.id] > device and not facts.has_own_memory(facts.where[t.id])
    ]  # fmt: skip
    unsupported = []
    for t in below:
        if any(facts.where[s.id] == device for s in facts.sources(t)):
            yield t, device
        elif not t.supports >> device & 1:
            unsupported.append(t)
    name = facts.name(device)
    after = facts.what_if(supports={(name, t.id): True for t in unsupported})
    if unsupported and after is not None:
        places = after.outcome.placements
        yield from ((t, device) for t in unsupported if places[t.id].backend == device)


def _is_allowed(t: PlanTensor, allow: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(name, pattern)
        for pattern in allow
        for name in (t.name, t.op, t.record.op_desc)
    )


def too_many_splits(plan: Planned, n: int) -> str:
    """Says if there are more than `n` splits."""
    if plan.n_splits <= n:
        return ""
    starts: dict[str, list[Split]] = {}
    for split in plan.splits:
        t = split.first
        if t is None:
            continue  # its nodes are not printed
        cause = "cause not known" if unknown_cause(t) else t.placement.cause
        text = f"on {split.backend} from {t.record.op_desc} [{cause}]"
        starts.setdefault(text, []).append(split)
    head = f"{counted(plan.n_splits, 'split')}, expected at most {n}:"
    if not starts:
        return head
    rows = _grouped((text, s.first) for text, splits in starts.items() for s in splits if s.first)
    most = max(starts.values(), key=len)
    before = plan.splits[most[0].index - 1].backend if most[0].index else None
    reason = why(plan, most[0].first, before) if most[0].first else []
    return "\n".join([head, *rows, "", *reason])


def too_many_bytes(plan: Planned, n: int) -> str:
    """Says if more than `n` bytes are copied in one evaluation."""
    if most(plan.copy_bytes) <= n:
        return ""
    copies = sorted(plan.copied, key=lambda i: -i.nbytes)
    rows = [
        f"  {format_bytes(i.nbytes)} of {label(i.tensor)}: {place(i.tensor)} → {i.dst_backend}"
        for i in copies
    ]
    if plan.copy_bytes <= n:
        head = (
            f"{format_bytes(plan.copy_bytes)} are copied in one evaluation, expected at most {n} "
            f"({format_bytes(n)}); this log cannot show whether it is more, because its sizes are "
            "in whole KiB or MiB"
        )
        return "\n".join([head, *_first_of(rows)])
    head = (
        f"{plan.copy_bytes} bytes ({format_bytes(plan.copy_bytes)}) are copied in one evaluation, "
        f"expected at most {n} ({format_bytes(n)}):"
    )
    return "\n".join([head, *_first_of(rows), "", *why(plan, copies[0].copy)])


def out_of_reach(plan: Planned) -> str:
    """Says if a node uses memory that its backend cannot reach (`reach`)."""
    found = reach.unreached(plan)
    if not found:
        return ""
    rows = _grouped((f"{reach.said(plan, u)}", plan.tensor(u.node.id)) for u in found)
    head = f"{len(found)} node{'s use' if len(found) > 1 else ' uses'} memory out of reach:"
    return "\n".join([head, *rows, "", *why(plan, plan.tensor(found[0].node.id))])


def elsewhere(plan: Planned, expected: Mapping[str, str]) -> str:
    """See `ggml_py.checks.assert_pins`. Raises KeyError."""
    wrong = []
    for pattern, backend in expected.items():
        name = plan.backends[plan.capture.backend_index(backend)].name
        found = plan.find(pattern) or (plan.node(pattern),)
        wrong += [(t, name) for t in found if t.backend != name]
    if not wrong:
        return ""
    rows = _grouped(
        (f"on {t.backend}, not on {b}" if t.backend else f"{place(t)}, {b} expected", t)
        for t, b in wrong
    )
    head = f"{len(wrong)} tensor{'s are' if len(wrong) > 1 else ' is'} not where expected:"
    return "\n".join([head, *rows, "", *why(plan, *wrong[0])])


def otherwise(before: Planned, after: Planned, backends: Mapping[str, str] | None = None) -> str:
    """Says if `after` decides differently from `before`."""
    found = diff(before, after, backends)
    return "\n".join(changes(found, after)) if found else ""


def changes(diff: Diff, after: Planned) -> Iterator[str]:
    """What differs, and why the first node that differs is where it is now."""
    yield diff.headline()
    for title, rows in diff.sections():
        yield f"{title}:"
        yield from _first_of([f"  {row}" for row in rows])
    change = _first_change(diff)
    if change is not None and change.after.index is not None:
        yield ""
        t = after.nodes[change.after.index]
        yield str(explain(after, t))
        yield from _why_not(after, t, change.before.backend)


def _first_change(diff: Diff) -> Difference | None:
    computed = [c for c in diff.changed if c.is_computed]
    return next(iter(diff.moved or computed or diff.changed), None)


def why(plan: Planned, t: PlanTensor, backend: str | None = None) -> list[str]:
    """Why `t` is not on `backend`; if that is unknown, why it is where it is."""
    return _why_not(plan, t, backend) or [str(explain(plan, t))]


def _why_not(plan: Planned, t: PlanTensor, backend: str | None) -> list[str]:
    there = {b.name for b in plan.backends} - {t.backend}
    if backend not in there or plan.capture.source != "scheduler":
        return []
    return [str(why_not(plan, t, backend))]


# --- rows


def _grouped(pairs: Iterable[tuple[str, PlanTensor]]) -> list[str]:
    """A row for each text, with the names of its first tensors."""
    groups: dict[str, list[PlanTensor]] = {}
    for text, t in pairs:
        groups.setdefault(text, []).append(t)
    rows = []
    for text, tensors in groups.items():
        named = ", ".join(map(quoted, tensors[:3])) + ", …" * (len(tensors) > 3)
        rows.append(f"  {len(tensors)}× {text}: {named}")
    return _first_of(rows)


def _first_of(rows: list[str]) -> list[str]:
    return rows if len(rows) <= _MOST else [*rows[:_MOST], f"  … {len(rows) - _MOST} more"]

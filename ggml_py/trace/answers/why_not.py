"""Why a tensor is not on a backend: the first rule that kept it off, the rules behind that one,
and what helps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...typed import typed
from ..html import text_html
from ..names import label, quoted, signature
from ..planning import reference_of
from ..record import NODE
from ..refusals import MEMORY, OP, refused
from .reasons import AppliedRule, Flag, RuleChange, first_reason, key
from .what_if import what_if

if TYPE_CHECKING:
    from ..planned import Planned, PlanTensor
    from .reasons import Changes
    from .variant import Nearest

_MOST_REASONS = 8
ASKED = ("op", "op.unknown")  # reasons about which a device can be asked
_NUMBERED = re.compile(r"(node|leaf)_\d+.*")  # ggml's names of tensors that nobody named


@dataclass(frozen=True)
class TriedChange:
    """A change that would remove a reason, and its effect according to the reference scheduler.

    `text` describes the change. `what_if` are the arguments of `Plan.what_if` that try it, together
    with the changes that removed the reasons before it. `is_there` tells whether the tensor is then
    on the backend. `then` says so and what fails there, or gives the next reason.

    `flag` has llama.cpp's options for the change. `before` has the options of the changes that
    removed earlier reasons; None if a change among them has no option. Options may change the
    graph, too. Until `WhyNot.checked`, the effect is the one on the same graph. `lacks` is the
    memory that devices then lack, "" where they lack none or nobody looked. `n_tokens` is the batch
    that makes the change, 0 if it is another change.
    """

    text: str
    what_if: Mapping[str, Any]
    is_there: bool
    then: str
    flag: Flag | None = None
    before: tuple[Flag, ...] | None = ()
    is_checked: bool = False
    lacks: str = ""
    n_tokens: int = 0

    @property
    def flags(self) -> tuple[Flag, ...]:
        """All options to give: none if the change, or one before it, is no option of llama.cpp."""
        return () if self.flag is None or self.before is None else (*self.before, self.flag)

    @property
    def doubt(self) -> str:
        """Why the effect of llama.cpp's options is not certain; "" if it is, or if it has none."""
        if self.flag is None or self.is_checked:
            return ""
        with_ = " ".join(word for word in self.flag.words if word.startswith("-"))
        return f"not checked: with {with_} llama.cpp may build another graph"

    @property
    def call(self) -> str:
        """Python: "plan.what_if(op_offload=True)"."""
        return f"plan.what_if({', '.join(f'{k}={v!r}' for k, v in self.what_if.items())})"

    def __repr__(self) -> str:
        return f"<TriedChange {self.call}: {self.then}>"

    def __str__(self) -> str:
        return self.said(self.then)

    @typed
    def said(self, then: str) -> str:
        """The change and such an effect, in a line."""
        return "; ".join(filter(None, (f"{self.text}: {then}", self.doubt)))


@dataclass(frozen=True)
class Reason:
    """A rule that keeps a tensor off a backend. `id` is stable (docs/EXPLAIN.md lists them)."""

    id: str
    text: str
    pass_: int
    sweep: str
    witness: PlanTensor | None
    changes: tuple[TriedChange, ...]

    def __repr__(self) -> str:
        return f"<Reason {self}>"

    def __str__(self) -> str:
        stage = f", pass {self.pass_} {self.sweep}".rstrip() if self.pass_ else ""
        return f"{self.id}{stage}: {self.text}"


@dataclass(frozen=True)
class WhyNot:
    """Why `subject` is not on `backend`. `str()` is text to read, `to_dict()` data for JSON.

    `reasons[0]` is the rule that decided. The others would have kept it off too: each is the first
    rule once the reasons before it are removed. There are none if the tensor is on the backend.
    `pin` is what happens if it is pinned there. If a live device was asked, `nearest` is the
    smallest change to the op that the device supports.
    """

    subject: PlanTensor
    backend: str
    reasons: tuple[Reason, ...]
    pin: TriedChange | None = None
    notes: tuple[str, ...] = ()
    nearest: Nearest | None = None

    @property
    def is_there(self) -> bool:
        """Whether it is on that backend."""
        return self.subject.backend == self.backend

    @property
    def headline(self) -> str:
        """One line: the reason that decided."""
        if self.is_there:
            return f"{label(self.subject)} is on {self.backend}"
        return str(self.reasons[0]) if self.reasons else self.notes[0]

    def _repr_html_(self) -> str:
        return text_html(str(self))

    def __repr__(self) -> str:
        ids = ", then ".join(reason.id for reason in self.reasons)
        there = "it is there" if self.is_there else ids or "no rule"
        return f"<WhyNot {label(self.subject)} on {self.backend}: {there}>"

    def __str__(self) -> str:
        t = self.subject
        if self.is_there:
            lines = [f"{label(t)} ({signature(t)}) is on {self.backend}"]
        else:
            lines = [f"{label(t)} ({signature(t)}) is on {t.backend}, not on {self.backend}:"]
        for i, reason in enumerate(self.reasons):
            lines.append(f"  {'then ' if i else ''}{reason}")
            lines += [f"    > {self._short(change)}" for change in reason.changes]
        lines += (
            [f"  {line}" for line in self.nearest.render().splitlines()] if self.nearest else []
        )
        lines += [f"  > {self._short(self.pin)}"] if self.pin else []
        lines += [f"  - {note}" for note in self.notes]
        return "\n".join(lines)

    def _short(self, change: TriedChange) -> str:
        """A reason that has a line of its own is only named."""
        for reason in self.reasons:
            if change.then == _stays(reason):
                return change.said(f"it stays because of {reason.id}")
        return str(change)

    def checked(
        self,
        planned_with: Callable[[Sequence[Flag]], tuple[Planned | str, str]],
        lacks_at: Callable[[Sequence[Flag], int], str] = lambda _flags, _n_tokens: "",
    ) -> WhyNot:
        """The answer, where the effect of llama.cpp's options comes from the plan that
        `planned_with` makes with them, and what devices then lack. In place of a plan it returns
        the error's text. `lacks_at` returns what devices lack with options and a batch of tokens.
        """

        def check(change: TriedChange) -> TriedChange:
            if change.n_tokens and change.before is not None:
                lacks = lacks_at(change.before, change.n_tokens)
                return replace(change, then=change.then + _unfit(lacks), lacks=lacks)
            if not change.flags:
                return change
            after, lacks = planned_with(change.flags)
            then, is_there = _effect(self.subject, self.backend, after)
            then += _unfit(lacks)
            return replace(change, then=then, is_there=is_there, is_checked=True, lacks=lacks)

        reasons = (replace(r, changes=tuple(map(check, r.changes))) for r in self.reasons)
        return replace(self, reasons=tuple(reasons))

    def to_dict(self) -> dict[str, Any]:
        """The answer as data that `json` can write."""
        return {
            "subject": _ref(self.subject),
            "is_on": self.subject.backend,
            "backend": self.backend,
            "is_there": self.is_there,
            "headline": self.headline,
            "reasons": [
                {
                    "id": r.id,
                    "text": r.text,
                    "pass": r.pass_,
                    "sweep": r.sweep,
                    "witness": _ref(r.witness) if r.witness else None,
                    "changes": [_change(c) for c in r.changes],
                }
                for r in self.reasons
            ],
            "pin": _change(self.pin) if self.pin else None,
            "notes": list(self.notes),
            "nearest": self.nearest.to_dict() if self.nearest else None,
        }


def _unfit(lacks: str) -> str:
    return f"; it does not fit: {lacks}" if lacks else ""


def _change(c: TriedChange) -> dict[str, Any]:
    return {
        "text": c.text,
        "what_if": c.call,
        "is_there": c.is_there,
        "then": c.then,
        "flags": [word for flag in c.flags for word in flag.words],
        "is_checked": c.is_checked,
        "lacks": c.lacks,
    }


def _ref(t: PlanTensor) -> dict[str, Any]:
    return {"id": t.id, "index": t.index, "name": t.name, "op": t.op}


def why_not(
    plan: Planned,
    subject: PlanTensor,
    backend: str,
    nearest: Callable[[PlanTensor], Nearest] | None = None,
) -> WhyNot:
    """See `Plan.why_not`; `nearest` finds the nearest variant that a device supports."""
    if not isinstance(backend, str):
        raise TypeError(f"backend {backend!r}: expected its name, such as 'gpu0'")
    b = plan.capture.backend_index(backend)
    name = plan.backends[b].name
    if subject.backend == name:
        return WhyNot(subject, name, ())
    if reference_of(plan).tensor(subject.id).backend == name:
        said = (
            f"the reference scheduler puts it on {name}: this ggml has a rule that it does not know"
        )
        return WhyNot(subject, name, (), None, (said,))
    reasons = tuple(_reasons(plan, subject, name))
    pinned = None
    if subject.record.pin < 0 and subject.id < len(plan.capture.tensors):
        change = ("pin it there", {"pins": {key(subject): name}})
        pinned = _tried(plan, subject.id, name, change)
    found = None
    if nearest is not None and subject.op != "NONE" and any(r.id in ASKED for r in reasons):
        found = nearest(subject)
    return WhyNot(subject, name, reasons, pinned, tuple(_notes(plan, subject, b)), found)


def _reasons(plan: Planned, subject: PlanTensor, backend: str) -> Iterator[Reason]:
    """The reason, then the next one once it is removed, and so on."""
    seen: set[str] = set()
    changed, made = plan, dict[str, Any]()
    flags: tuple[Flag, ...] | None = ()
    found = _found(plan, subject.id, backend)
    while found is not None and len(seen) < _MOST_REASONS:
        witness = plan.tensor(found.witness.id) if found.witness else None
        changes = _all_tried(changed, subject.id, backend, found.changes) or _all_tried(
            changed, subject.id, backend, found.otherwise
        )
        best = next((c for c in changes if c.is_there), changes[0] if changes else None)
        told = tuple(
            replace(c, what_if=_together(plan, made, c.what_if), before=flags) for c in changes
        )
        yield Reason(found.id, found.text, found.pass_, found.sweep, witness, told)
        seen.add(found.text)
        if best is None or best.is_there:
            return
        changed, made = what_if(changed, **best.what_if), _together(plan, made, best.what_if)
        flags = None if flags is None or best.flag is None else (*flags, best.flag)
        found = _found(changed, subject.id, backend)
        if found and found.text in seen:
            return


def _together(plan: Planned, first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Merged arguments of `Plan.what_if`: `first`, then `then`."""
    both = {**first, **then}
    for argument in first.keys() & then.keys():
        a, b = first[argument], then[argument]
        if isinstance(a, Mapping):
            both[argument] = {**a, **b}
        elif isinstance(a, list):
            both[argument] = [*a, *b]
    # Answers of dropped backends and pins to them are dropped too.
    gone = both.get("drop", ())
    for argument in ("supports", "offload"):
        if argument in both:
            both[argument] = {k: v for k, v in both[argument].items() if k[0] not in gone}
    if "pins" in both:
        pinned = {key(t): plan.backends[t.record.pin].name for t in _pinned(plan)}
        both["pins"] = {k: v for k, v in both["pins"].items() if (v or pinned.get(k)) not in gone}
    return {argument: value for argument, value in both.items() if value != {}}


def _pinned(plan: Planned) -> Iterator[PlanTensor]:
    return (plan.tensor(t.id) for t in plan.tensors if t.pin >= 0)


def _all_tried(plan: Planned, id: int, backend: str, changes: Changes) -> tuple[TriedChange, ...]:
    """The effects of the changes, without those that do not help."""
    now = _found(plan, id, backend)
    same = _stays(now) if now else "no change"
    tried = (_tried(plan, id, backend, change) for change in changes)
    return tuple(c for c in tried if c is not None and not c.then.startswith(same))


def _found(plan: Planned, id: int, backend: str) -> AppliedRule | None:
    planned = reference_of(plan)
    return first_reason(planned, planned.tensor(id), plan.capture.backend_index(backend))


def _tried(
    plan: Planned, id: int, backend: str, change: RuleChange | tuple[str, dict[str, Any]]
) -> TriedChange | None:
    """A change and its effect; None if ggml would abort."""
    text, arguments, flag, n_tokens = RuleChange(*change)
    try:
        changed = what_if(plan, **arguments)
    except ValueError:
        return None
    found = _found(changed, id, backend)
    then = _stays(found) if found else f"it moves to {backend}"
    for pinned in changed.nodes if "pins" in arguments else ():
        b = pinned.record.pin
        if b >= 0 > plan.tensors[pinned.id].pin:
            then += _cannot(pinned, b)  # sources in other memory are copied for a pinned node
    return TriedChange(text, arguments, found is None, then, flag, n_tokens=n_tokens)


def _effect(subject: PlanTensor, backend: str, after: Planned | str) -> tuple[str, bool]:
    """The subject's place in a plan with other options, and whether that is the backend."""
    if isinstance(after, str):
        return f"llama.cpp cannot: {after}", False
    n, was = len(after.nodes), len(subject.plan.nodes)
    graph = f"the graph then has {n} nodes instead of {was}" if n != was else ""
    numbered = _NUMBERED.fullmatch(subject.name) is not None
    if not subject.name or (numbered and graph):
        return f"not known: {graph or 'it has no name to find it by'}", False
    same, before = _alike(after, subject), _alike(subject.plan, subject)
    if not same:
        return f"{graph or 'the graph then is another'}, and has no {quoted(subject)}", False
    if len(same) == len(before):
        same = [same[[t.id for t in before].index(subject.id)]]
    there = sorted({t.backend or "no backend" for t in same})
    where = f"it moves to {backend}" if there == [backend] else f"it is on {' and '.join(there)}"
    return "; ".join(filter(None, (where, graph))), there == [backend]


def _alike(plan: Planned, subject: PlanTensor) -> list[PlanTensor]:
    """The tensors of a plan with the subject's name and op."""
    return [
        plan.tensor(t.id) for t in plan.tensors
        if t.name == subject.name and t.op == subject.op and t.kind == subject.record.kind
    ]  # fmt: skip


def _cannot(t: PlanTensor, b: int) -> str:
    """What fails if backend `b` is given node `t` and copies of its sources."""
    why = refused(t, b)
    if why is None or why.kind == MEMORY:
        return ""
    can = "cannot" if why.kind == OP else "may not be able to"
    return f", but {why.backend} {can} compute {quoted(t)}"


def _stays(found: AppliedRule | Reason) -> str:
    return f"it stays because of {found.id}: {found.text}"


def _notes(plan: Planned, t: PlanTensor, b: int) -> Iterator[str]:
    """What would not help."""
    at = reference_of(plan).outcome.placements[t.id].backend
    if t.record.kind != NODE or t.is_view_op or not 0 <= b < at:
        return
    ours, theirs = (plan.capture.bufts[plan.backends[i].buft].name for i in (b, at))
    if ours != theirs:
        yield (
            f"pass 3 moves nodes up only between backends that share a buffer type: "
            f"{plan.backends[b].name} allocates from {ours}, {plan.backends[at].name} from {theirs}"
        )

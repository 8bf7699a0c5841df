"""The rule that kept a tensor off a backend: the first one, in the scheduler's order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import causes
from ..cause import pinned_by
from ..names import block_of, is_cache, is_of_file, memory, quoted
from ..record import COPY, NODE
from ..refusals import MEMORY, OP, RECORD, refused
from .decisions import decisions_of, stage_of
from .explain import readable_sources, sweeps_text
from .what_if import batch_size

if TYPE_CHECKING:
    from ..planned import Planned, PlanTensor
    from ..steps import Step


class Flag(NamedTuple):
    """Options of llama.cpp that make a change. They may change the graph, too: only another plan
    shows their effect."""

    text: str  # "-nkvo, for all layers"
    words: tuple[str, ...]  # of llama.cpp's command line
    options: Mapping[str, Any]  # the same for the verbs that plan a model; `overrides` come first


class RuleChange(NamedTuple):
    """A change after which a rule does not apply: a sentence and the arguments for `Plan.what_if`.
    It is made by llama.cpp's options, or by a batch of `n_tokens`."""

    text: str
    what_if: dict[str, Any]
    flag: Flag | None = None
    n_tokens: int = 0


# A change without options may also be a plain pair.
Changes = Sequence[RuleChange | tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class AppliedRule:
    """A rule that applied. `changes` would stop it from applying; each is a sentence and the
    arguments for `Plan.what_if`."""

    id: str
    text: str
    pass_: int = 0
    sweep: str = ""
    witness: PlanTensor | None = None
    changes: Changes = ()
    otherwise: Changes = ()  # used if ggml would abort on the changes


@dataclass(frozen=True)
class Case:
    """A question: why is `t` on `at`, where `step` put it, and not on `b`?"""

    plan: Planned
    t: PlanTensor
    b: int
    step: Step

    @property
    def backend(self) -> str:
        return self.plan.backends[self.b].name

    @property
    def at(self) -> str:
        return self.step.backend

    @property
    def last(self) -> int:
        return len(self.plan.backends) - 1

    def reads(self, t: PlanTensor, b: int | None = None) -> bool:
        """Whether backend `b` (default: the one in question) can use the memory of `t`."""
        return t.buft is not None and bool(t.buft.readers >> (self.b if b is None else b) & 1)

    def unreadable_source(self) -> PlanTensor | None:
        """The first source that the backend in question could not use when pass 3 reached `t`."""
        return next((src for src in self.t.srcs if not self._could_read(src)), None)

    def _could_read(self, src: PlanTensor) -> bool:
        if src.buft is not None:
            return self.reads(src)
        plan = self.plan
        at = next(s.index for s in decisions_of(plan).about(self.t) if s.pass_ == 3)
        placed = decisions_of(plan).placement(src, at)
        if (placed is None or not placed.backend) and src.view_src is not None:
            placed = decisions_of(plan).placement(src.view_src, at)
        if placed is None or not placed.backend:
            return False
        backend = plan.backends[plan.capture.backend_index(placed.backend)]
        return bool(plan.capture.bufts[backend.buft].readers >> self.b & 1)

    def move(self, t: PlanTensor) -> RuleChange:
        flag = flag_of(t, self.b)
        return RuleChange(
            f"put {quoted(t)} into {self.backend} memory"
            + (f" (llama.cpp: {flag.text})" if flag else ""),
            {"move_weights": {key(t): self.backend}},
            flag,
        )

    def place(self, t: PlanTensor) -> RuleChange:
        """The change that puts a node there: its memory is moved, or it is pinned."""
        if t.buft is not None and not self.reads(t):
            return self.move(holder_of(t))
        return self.pin(t)

    def pin(self, t: PlanTensor) -> RuleChange:
        return RuleChange(f"pin {quoted(t)} to {self.backend}", {"pins": {key(t): self.backend}})

    def leave_out(self, name: str) -> list[RuleChange]:
        """The change that removes backend `name`; none if it is the last one."""
        if name == self.plan.backends[-1].name:
            return []
        return [RuleChange(f"leave {name} out of the scheduler", {"drop": [name]})]

    def refuse(self, name: str) -> list[RuleChange]:
        return [RuleChange(f"make {name} refuse it", {"supports": {(name, self.t.id): False}})]


def first_reason(plan: Planned, t: PlanTensor, b: int) -> AppliedRule | None:
    """The first rule that kept `t` off backend `b`, in a plan of the reference scheduler; None if
    `t` is on `b`."""
    backend = plan.backends[b].name
    if t.record.kind == COPY:
        text = f"it is a copy made for {t.backend}; nodes on {backend} get copies of their own"
        return None if t.backend == backend else AppliedRule("copy", text, 5)
    step = decisions_of(plan).placement(t)
    if step is None or not step.backend:
        return AppliedRule("nobody", "no rule placed it, because no computed node uses it", 4)
    if step.backend == backend:
        return None
    case = Case(plan, t, b, step)
    for rule in (_pinned, _upgraded, _unsupported, _not_upgraded):
        if found := rule(case):
            return found
    if step.answer == causes.UPGRADED.code:  # it was not on `b` before pass 3 either
        before = decisions_of(plan).placement(t, step.index)
        assert before is not None
        case = Case(plan, t, b, before)
    return _rule_of(case)(case)


def _rule_of(case: Case) -> Callable[[Case], AppliedRule]:
    row = causes.find(str(case.step.answer), stage_of(case.step))
    assert row is not None  # the reference sets only codes with a row
    return RULES[row.rule]


# --- before pass 1


def _pinned(case: Case) -> AppliedRule | None:
    pin = case.t.record.pin
    if pin in (-1, case.b):
        return None
    by, why = pinned_by(case.t)
    backend = case.plan.backends[pin].name
    text = causes.PINNED.text.format(by=by, backend=backend, why=why)
    changes = [("remove the pin", {"pins": {key(case.t): None}})]
    return AppliedRule("pin", text, changes=changes)


def _unsupported(case: Case) -> AppliedRule | None:
    t = case.t
    asked = t.record.kind == NODE and not t.is_view_op and "input" not in t.flags
    if t.record.supports >> case.b & 1 or not (asked or t.buft is not None):
        return None
    why = refused(t, case.b)
    assert why is not None
    change = {"supports": {(case.backend, t.id): True}}
    support = RuleChange(f"make {case.backend} support it", change)
    if why.kind in (OP, RECORD):
        return AppliedRule("op" if why.kind == OP else "op.record", why.clause(t), 1,
                           changes=[support])  # fmt: skip
    source = why.source
    moves = [case.move(holder_of(source))] if source is not None else []
    kind = "op.memory" if why.kind == MEMORY else "op.unknown"
    return AppliedRule(kind, why.clause(t), 1, "", source, moves or [support])


# --- pass 1


def _own_memory(case: Case) -> AppliedRule:
    t = case.t
    if not case.reads(t):
        holder = holder_of(t)
        whose = "it" if holder == t else f"the tensor that it views, {quoted(holder)},"
        text = f"{whose} is in {memory(t)}, which {case.backend} cannot read"
        return AppliedRule("memory", text, 1, "", holder, [case.move(holder)])
    return _outranked(case, "memory.first", memory(t))


def _outranked(case: Case, id: str, what: str, witness: PlanTensor | None = None) -> AppliedRule:
    text = (
        f"{case.at} comes before {case.backend}, can also read {what} and supports the op; the "
        "first such backend gets it"
    )
    out, refuse = case.leave_out(case.at), case.refuse(case.at)
    return AppliedRule(id, text, 1, "", witness, out, refuse)


def _input(case: Case) -> AppliedRule:
    text = f"it is a graph input; inputs go to the last backend, {case.at}"
    return AppliedRule("input", text, 1)


def _offloaded(case: Case) -> AppliedRule:
    t, weight = case.t, case.step.witness
    assert weight is not None
    taken = (
        f"{case.at} has a higher priority and wants it although its weight {quoted(weight)} is in "
        f"{memory(weight)} (op offload)"
    )
    wish = RuleChange(f"make {case.at} not want it", {"offload": {(case.at, t.id): False}})
    if case.reads(weight):
        off = _op_offload(False)
        return AppliedRule("offload.taken", taken, 1, "", weight, [off, wish])
    if not t.record.offload >> case.b & 1:
        return _unwanted(case, weight)
    text = f"{taken}; {case.backend} also wants it, but comes after {case.at}"
    changes = [wish, case.move(weight)]
    return AppliedRule("offload.first", text, 1, "", weight, changes)


def _op_offload(on: bool) -> RuleChange:
    words = ("off", "--no-op-offload"), ("on", "--op-offload")
    word, flag = words[on]
    return RuleChange(
        f"turn op offload {word} (op_offload={on})",
        {"op_offload": on},
        Flag(flag, (flag,), {"op_offload": on}),
    )


def _weight(case: Case) -> AppliedRule:
    """A node follows its first weight, to the first backend that can read the weight and supports
    the op. It can be offloaded from there only if the weight is in host memory and that backend is
    the last one."""
    weight = case.step.witness
    assert weight is not None and weight.buffer is not None and weight.buft is not None
    if case.reads(weight):
        return _outranked(case, "weight.first", f"its weight {quoted(weight)}", weight)
    lies = f"its weight {quoted(weight)} is in {memory(weight)}, which {case.backend} cannot read"
    host = case.plan.capture.bufts[case.plan.buffers[weight.record.buffer].buft].is_host
    reader_is_last = case.at == case.plan.backends[-1].name
    move = case.move(weight)
    if case.b == case.last or (not host and not reader_is_last):
        return AppliedRule("weight.memory", lies, 1, "", weight, [move])
    if not case.plan.settings.op_offload:
        text = f"{lies}, and op offload is off (op_offload=False)"
        on = _op_offload(True)
        return AppliedRule("offload.off", text, 1, "", weight, [on, move])
    if not reader_is_last:
        text = (
            f"{lies}; op offload applies only if the last backend, {case.plan.backends[-1].name}, "
            f"is the first that can read the weight and supports the op, but {case.at} comes first"
        )
        out = case.leave_out(case.at)
        return AppliedRule(
            "offload.reader", text, 1, "", weight, [*out, move], case.refuse(case.at)
        )
    if not host:
        plain = case.plan.capture.own_memory(len(case.plan.backends) - 1)
        flag = _NO_REPACK if is_of_file(weight.name) else None
        llama = f"; llama.cpp: {flag.text}" if flag else ""
        text = f"{lies}; op offload needs weights in host memory, and {memory(weight)} is not"
        there = RuleChange(
            f"keep {quoted(weight)} in {plain} memory (not repacked{llama})",
            {"move_weights": {key(weight): case.at}},
            flag,
        )
        return AppliedRule("offload.host", text, 1, "", weight, [there, move])
    return _unwanted(case, weight)


_USUAL_BATCH = 32  # tokens
_WANTED = (
    "by default CUDA, Vulkan, SYCL and CANN want 32 or more, Metal only for matrix products, and "
    "most others never want it"
)


def _unwanted(case: Case, weight: PlanTensor) -> AppliedRule:
    t, rows, n_tokens = case.t, batch_size(case.t.record), 0
    text = (
        f"its weight {quoted(weight)} is in {memory(weight)}, which {case.backend} cannot read, "
        f"and {case.backend} does not want to offload it: "
    )
    if t.op == "GET_ROWS":
        text += "GPU backends never want GET_ROWS"
        bigger = f"make {case.backend} want it"
    else:
        text += f"the batch is {rows} ({_WANTED})"
        n_tokens = _USUAL_BATCH if rows < _USUAL_BATCH else 0
        larger = f" (a batch of {n_tokens} or more, or another minimum)" if n_tokens else ""
        bigger = f"make {case.backend} want it{larger}"
    want = RuleChange(bigger, {"offload": {(case.backend, t.id): True}}, None, n_tokens)
    changes = [want, case.move(weight)]
    return AppliedRule("offload.batch", text, 1, "", weight, changes)


# --- pass 2


def _sweep(case: Case) -> AppliedRule:
    """A sweep placed it, and no earlier sweep brought the backend in question."""
    met = list(decisions_of(case.plan).meetings(case.t))
    taken = met[-1]
    assert taken.carrier is not None
    said = [
        *sweeps_text(case.t, met),
        f"sweep {taken.sweep} brought {case.at} from {quoted(taken.carrier)}",
    ]
    carriers = dict.fromkeys(m.carrier for m in met if m.carrier is not None)
    stopped = [m for m in met if m.outcome == "stopped"] if case.b != case.last else []
    first = stopped[0] if stopped else taken
    kind = "sweep.stopped" if stopped else "sweep.neighbour"
    changes = [case.place(carrier) for carrier in carriers]
    return AppliedRule(kind, "; ".join(said), 2, first.sweep, first.carrier, changes)


# --- pass 3


def _most_sources(case: Case) -> AppliedRule:
    counts = readable_sources(case.plan, case.t)
    met = list(decisions_of(case.plan).meetings(case.t))
    equal = counts[case.at] == counts[case.backend]
    text = (
        f"no sweep brought a backend that supports it; {case.at} can read {counts[case.at]} of its "
        f"sources, {case.backend} {counts[case.backend]}" + " and comes later" * equal
    )
    carriers = dict.fromkeys(m.carrier for m in met if m.carrier is not None)
    near = list(carriers) or list(_neighbours(case.plan, case.t))
    return AppliedRule("sources", text, 3, "", None, [case.place(carrier) for carrier in near])


def _neighbours(plan: Planned, t: PlanTensor) -> Iterator[PlanTensor]:
    for nodes in (reversed(plan.nodes[: t.id]), plan.nodes[t.id + 1 :]):
        yield from [n for n in nodes if not n.is_view_op][:1]


def _upgraded(case: Case) -> AppliedRule | None:
    """Pass 3 moved it elsewhere: it was on this backend, or could have been moved to it."""
    if case.step.answer != causes.UPGRADED.code:
        return None
    was = decisions_of(case.plan).placement(case.t, case.step.index)
    assert was is not None
    if was.backend == case.backend:
        where = "it was there"
    elif (
        case.t.record.supports >> case.b & 1
        and _shares_buft(case, was.backend)
        and case.unreadable_source() is None
    ):
        where = "pass 3 could have moved it there"
    else:
        return None
    text = (
        f"{where}, but {case.at} comes first, shares the buffer type, supports the op and can read "
        "all of its sources"
    )
    out, refuse = case.leave_out(case.at), case.refuse(case.at)
    return AppliedRule("upgrade.taken", text, 3, "", None, out, refuse)


def _not_upgraded(case: Case) -> AppliedRule | None:
    """The backends share a buffer type, but pass 3 did not move it."""
    t, code = case.t, case.step.answer
    if (
        t.is_view_op
        or t.record.kind != NODE
        or code in (causes.UPGRADED.code, causes.MOST_SOURCES.code)
    ):
        return None
    if not _shares_buft(case, case.at) or (src := case.unreadable_source()) is None:
        return None
    text = (
        f"{case.backend} shares the buffer type of {case.at} and supports the op, but cannot read "
        f"its source {quoted(src)}, which is in {memory(src)}"
    )
    return AppliedRule("upgrade.source", text, 3, "", src, [case.place(src)])


def _shares_buft(case: Case, backend: str) -> bool:
    """Whether pass 3 considers the backend in question for nodes on `backend`."""
    at, backends = case.plan.capture.backend_index(backend), case.plan.backends
    return case.b < at and backends[case.b].buft == backends[at].buft


# --- pass 4


def _view(case: Case) -> AppliedRule:
    source = case.step.witness
    assert source is not None
    text = f"a view is where its source is, and {quoted(source)} is on {case.at}"
    return AppliedRule("view", text, 4, "", source, [case.place(source)])


def _consumer(case: Case) -> AppliedRule:
    consumer = case.step.witness
    assert consumer is not None
    text = f"it goes where its first consumer runs, and {quoted(consumer)} is on {case.at}"
    return AppliedRule("consumer", text, 4, "", consumer, [case.pin(consumer)])


def _fallback(case: Case) -> AppliedRule:
    text = f"nothing else placed it, and {case.at} is the first backend that supports it"
    out, refuse = case.leave_out(case.at), case.refuse(case.at)
    return AppliedRule("fallback", text, 4, "", None, out, refuse)


def holder_of(t: PlanTensor) -> PlanTensor:
    """The tensor whose memory `t` is in."""
    return t if t.view_src is None else t.view_src


def key(t: PlanTensor) -> str | int:
    """How `Plan.what_if` is told which tensor: by its name if that is unique, else by its id."""
    return t.name if t.name and t.plan.n_named[t.name] == 1 else t.id


_NO_REPACK = Flag("-nr, for all weights", ("-nr",), {"repack": False})
_CACHE_ON_CPU = Flag("-nkvo, for all layers", ("-nkvo",), {"offload_kqv": False})
_CACHE_ON_GPUS = Flag(
    "-ngl all -kvo", ("-ngl", "all", "-kvo"), {"n_gpu_layers": -1, "offload_kqv": True}
)


def flag_of(t: PlanTensor, b: int) -> Flag | None:
    """llama.cpp's options that put a weight or a cache of a model into the memory of backend `b`;
    None for other tensors."""
    capture = t.plan.capture
    if is_cache(t.name):
        return _CACHE_ON_CPU if b == len(capture.backends) - 1 else _CACHE_ON_GPUS
    if capture.is_weight(t.record) and is_of_file(t.name):
        anchor = "" if block_of(t.name) else "^"
        override = f"{anchor}{re.escape(t.name)}={capture.own_memory(b)}"
        return Flag(f"-ot '{override}'", ("-ot", override), {"overrides": (override,)})
    return None


# By `causes.Code.rule`.
RULES: dict[str, Callable[[Case], AppliedRule]] = {
    "own memory": _own_memory, "input": _input, "offloaded": _offloaded, "weight": _weight,
    "sweep": _sweep, "most sources": _most_sources, "view": _view, "consumer": _consumer,
    "fallback": _fallback,
}  # fmt: skip

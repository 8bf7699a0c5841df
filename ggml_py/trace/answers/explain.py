"""Why a tensor is where it is: the chain of decisions back to its root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import causes
from ..cause import is_for_pipeline, pass_of, sentence, unknown_cause
from ..causes import MEMORY
from ..html import text_html
from ..names import counted, joined, label, memory, quoted, signature
from ..planned import format_bytes
from ..planning import reference_of
from ..record import COPY, DUMPED_NAME
from ..refusals import OP, RECORD, Refused, refused
from .decisions import Meeting, decisions_of, stage_of
from .excerpt import limits as excerpt_limits

if TYPE_CHECKING:
    from ..planned import Planned, PlanTensor
    from ..steps import Step

# Where a chain ends.
WEIGHT, UNSUPPORTED, NO_NEIGHBOUR, UNKNOWN = (
    "weight's buffer", "unsupported op", "no neighbour", "unknown"
)  # fmt: skip
_MAX_LINKS = 1000  # each link of a chain from steps is older; one from codes could loop


@dataclass(frozen=True)
class Link:
    """One decision of a chain.

    `relation` says how it follows from the previous link: "because", "before that" (where the
    tensor was when pass 3 moved it), "its reader" and "its source" (of a copy). `root` names what
    the chain goes back to; only the last link has it.
    """

    tensor: PlanTensor
    backend: str
    pass_: int
    sweep: str
    code: str
    text: str
    witness: PlanTensor | None = None
    relation: str = "because"
    depth: int = 0
    root: str = ""

    def __repr__(self) -> str:
        return f"<Link {self}>"

    @property
    def is_inferred(self) -> bool:
        """Whether a log does not contain the code, but it follows from what the log prints."""
        return bool(self.code) and bool(unknown_cause(self.tensor))

    def __str__(self) -> str:
        where = f" on {self.backend}" if self.backend else ""
        stage = f"pass {self.pass_} {self.sweep}".rstrip() if self.pass_ else ""
        told = ", ".join(part for part in (self.code, stage) if part)
        return f"{label(self.tensor)}{where}" + (f" [{told}]" if told else "") + f": {self.text}"


@dataclass(frozen=True)
class Explanation:
    """Why `subject` is on its backend. `str()` is text to read, `to_dict()` data for JSON.

    `links` are the decisions, the subject's own first. `notes` name the backends asked before, the
    sweeps that reached it, and the tensors copied for it. The links rest on the steps of the
    reference scheduler; `disagreements` lists the tensors that ggml placed differently. It is empty
    unless this ggml has a rule that the reference does not know. `limits` name unknown facts, and
    why they are unknown.
    """

    subject: PlanTensor
    links: tuple[Link, ...]
    notes: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The cause in one line: "1.off via src[4] blk.0.attn_sinks.weight"."""
        first = self.links[0]
        none = "cause not known" if unknown_cause(first.tensor) else "-"
        told = " ".join(part for part in (first.code or none, first.sweep) if part)
        if first.is_inferred:
            told += " (inferred)"
        if first.witness is None:
            return told
        sources = first.tensor.record.src if causes.follows_weight(first.code) else ()
        src = sources.index(first.witness.id) if first.witness.id in sources else None
        return f"{told} via " + ("" if src is None else f"src[{src}] ") + label(first.witness)

    @property
    def root(self) -> str:
        """The origin of the chain: "weight's buffer", "buffer", "input flag", "pin", "unsupported
        op", "no neighbour" or "unknown"."""
        return next((link.root for link in self.links if link.root), UNKNOWN)

    def _repr_html_(self) -> str:
        return text_html(str(self))

    def __repr__(self) -> str:
        return f"<Explanation of {label(self.subject)}: {self.headline}>"

    def __str__(self) -> str:
        t = self.subject
        lines = [f"The reference plans it differently: {text}" for text in self.disagreements]
        where = f"is on {t.backend or 'no backend'}"
        if t.backend is None and t.plan.capture.source != "scheduler":
            where = "is on an unknown backend"
        lines.append(f"{label(t)} ({signature(t)}) {where}: {self.headline}")
        lines += self._chain_lines()
        lines += [f"  - {note}" for note in self.notes]
        lines += [f"  ? {limit}" for limit in self.limits]
        return "\n".join(lines)

    def _chain_lines(self) -> Iterator[str]:
        """A line per link; consecutive nodes of one sweep share a line."""
        indent, passed = 0, 0
        for i, link in enumerate(self.links):
            before, after = self.links[i - 1 : i], self.links[i + 1 : i + 2]
            if before and after and _same_sweep(before[0], link) and _same_sweep(link, after[0]):
                passed += 1
                continue
            indent = 1 if link.depth == 0 else 2 if link.relation.startswith("its") else indent + 1
            skipped = counted(passed, "node")
            further = f", skipping {skipped} of the same sweep" if passed else ""
            lead, passed = f"{link.relation}{further}: " if link.relation else "", 0
            yield "  " * indent + lead + str(link)

    def to_dict(self) -> dict[str, Any]:
        """The explanation as data that `json` can write."""
        return {
            "subject": _ref(self.subject),
            "backend": self.subject.backend,
            "headline": self.headline,
            "root": self.root,
            "links": [
                {
                    "tensor": _ref(link.tensor),
                    "backend": link.backend,
                    "pass": link.pass_,
                    "sweep": link.sweep,
                    "code": link.code,
                    "inferred": link.is_inferred,
                    "text": link.text,
                    "witness": _ref(link.witness) if link.witness else None,
                    "relation": link.relation,
                    "depth": link.depth,
                    "root": link.root,
                }
                for link in self.links
            ],
            "notes": list(self.notes),
            "disagreements": list(self.disagreements),
            "limits": list(self.limits),
        }


def _same_sweep(a: Link, b: Link) -> bool:
    return bool(a.sweep) and (a.sweep, a.backend) == (b.sweep, b.backend) and b.witness is not None


def explain(plan: Planned, subject: PlanTensor) -> Explanation:
    """See `Plan.explain`."""
    found, notes = parts(plan, subject, has_steps(plan))
    links = tuple(found)
    limits = excerpt_limits(plan.capture)
    limits += tuple(_limits(plan)) if plan.capture.source != "scheduler" else ()
    limits += tuple(_not_told(plan, links))
    limits += tuple(_cut_names(links)) if plan.capture.source == "debug log" else ()
    return Explanation(subject, links, tuple(notes), disagreements(plan), limits)


def parts(plan: Planned, t: PlanTensor, by_steps: bool) -> tuple[Iterator[Link], Iterator[str]]:
    """The links and the notes of `explain`, one by one: a caller that asks about every tensor of a
    plan can stop where a chain reaches one that it already has. `by_steps` is `has_steps(plan)`."""
    if not by_steps:
        return _from_codes(plan, t), _copied(plan, t)
    if t.record.kind == COPY:
        return _copy(plan, t), iter(())
    return _chain(plan, t), _notes(plan, t)


def has_steps(plan: Planned) -> bool:
    """Whether the reference scheduler can supply the steps; if not, only cause codes are known."""
    try:
        return plan.capture.source == "scheduler" and reference_of(plan) is not None
    except ValueError:  # CannotPlanError, although ggml planned it
        return False


def disagreements(plan: Planned) -> tuple[str, ...]:
    """What ggml decided differently from the reference scheduler."""
    if plan.capture.source != "scheduler":
        return ()
    try:
        return tuple(_differences(plan))
    except ValueError as error:
        return (f"ggml planned this graph, but the reference scheduler cannot: {error}",)


# --- the links


def _chain(
    plan: Planned, t: PlanTensor, relation: str = "", depth: int = 0, before: int | None = None
) -> Iterator[Link]:
    """The decisions about `t` and what each follows from, going back in time."""
    while (step := decisions_of(plan).placement(t, before)) is not None:
        code = str(step.answer)
        link = _link(plan, step, code, relation, depth)
        yield link
        if link.root:
            return
        depth += 1
        if code.startswith("1."):
            assert step.witness is not None
            yield _memory(step.witness, depth)
            return
        relation, before = "because", step.index
        if code == causes.UPGRADED.code:
            relation = "before that"
        else:
            assert step.witness is not None
            t = step.witness
    yield Link(t, "", 0, "", "", "nothing had placed it by then", None, relation, depth, UNKNOWN)


def _link(plan: Planned, step: Step, code: str, relation: str, depth: int) -> Link:
    t, stage, text, root = step.tensor, stage_of(step), "", ""
    row = causes.find(code, stage)
    if row is not None and row.root == MEMORY:
        return _memory(t, depth, relation)
    if row is not None and row.root:
        root = row.root
    elif step.witness is None and row is not causes.UPGRADED:
        root = _root_of_fallback(plan, t)
        text = _fallback(plan, t, step, code, root)
    text = text or sentence(t, step.backend, code, stage, step.witness)
    pass_ = 0 if row is causes.PINNED else step.pass_
    return Link(t, step.backend, pass_, step.sweep, code, text, step.witness, relation, depth, root)


def _memory(t: PlanTensor, depth: int, relation: str = "because") -> Link:
    """The end of a chain: the memory that `t` is in."""
    holder = t if t.buffer or t.view_src is None else t.view_src
    assert holder.buffer is not None and holder.buft is not None
    names = t.plan.capture.names(holder.buft.readers) or ["no backend"]
    text = f"it is in {holder.buft.name} memory"
    if holder.buffer.usage == "weights":
        text += " as a weight"
    if holder != t:
        text = f"it is a view of {quoted(holder)}, which{text[2:]}"
    text += f", which {joined(names)} can read"
    step = decisions_of(t.plan).placement(t)
    told = (str(step.answer), step.backend) if step else ("", "")
    root = WEIGHT if holder.buffer.usage == "weights" else MEMORY
    pass_ = int(told[0] == causes.ALLOCATED.code)
    return Link(t, told[1], pass_, "", told[0], text, None, relation, depth, root)


def _root_of_fallback(plan: Planned, t: PlanTensor) -> str:
    kinds = {_kind(met) for met in decisions_of(plan).meetings(t) if met.outcome == "unsupported"}
    if not kinds:
        return NO_NEIGHBOUR
    return UNSUPPORTED if kinds & {OP, RECORD} else MEMORY


def _kind(met: Meeting) -> str:
    return OP if met.why is None else met.why.kind


def _fallback(plan: Planned, t: PlanTensor, step: Step, code: str, root: str) -> str:
    """Why a node that no sweep placed is where it is."""
    met = {m.backend: m for m in decisions_of(plan).meetings(t) if m.outcome == "unsupported"}
    if met:
        lacking = [backend for backend, m in met.items() if _kind(m) == OP]
        whys = [
            f"the sweeps brought {m.backend}, but {m.why.clause(t)}"
            for m in met.values()
            if m.why is not None and m.why.kind != OP
        ]
        if lacking:
            whys.insert(0, f"the sweeps brought {joined(lacking)}, which cannot run {signature(t)}")
        why = "; ".join(whys)
    else:
        why = "no sweep reached it"
    if code != causes.MOST_SOURCES.code:
        return f"{why}; {step.backend} is the first backend that supports the op"
    able = readable_sources(plan, t)
    if len(able) == 1:
        return f"{why}; {step.backend} is the only backend that can"
    counts = ", ".join(f"{b} {n}" for b, n in able.items())
    return f"{why}; of those that can, {step.backend} can read the most sources ({counts})"


def readable_sources(plan: Planned, t: PlanTensor) -> dict[str, int]:
    """How many sources of `t` each backend that supports it can read, as pass 3 counted."""
    counts: dict[str, int] = {}
    for step in decisions_of(plan).about(t):
        if step.pass_ == 3 and step.answer is True:
            if step.query == "supports_op":
                counts[step.backend] = 0
            elif step.query == "supports_buft":
                counts[step.backend] += 1
    return counts


def _copy(plan: Planned, t: PlanTensor) -> Iterator[Link]:
    """A copy exists because its reader is on one backend and its source on another."""
    source, code = plan.tensor(t.placement.copy_of), t.placement.cause
    made = decisions_of(plan).copy(source.id, t.placement.backend)
    pass_ = pass_of(code, t.placement.stage)
    if made is None:  # a graph input's, one for each graph in flight
        text = sentence(t, t.backend, code, t.placement.stage, source)
        yield Link(t, t.backend or "", pass_, "", code, text, source, "")
    else:
        split = plan.node(made.tensor.id).split
        text = (
            f"{format_bytes(t.nbytes)} of {quoted(source)}, copied from {source.backend} for split "
            f"#{split}: {t.backend} runs {quoted(made.tensor)} and cannot read {memory(source)}"
        )
        yield Link(t, t.backend or "", pass_, "", code, text, source, "")
        yield from _chain(plan, made.tensor, "its reader", 1)
    yield from _chain(plan, source, "its source", 1)


def _cut_names(links: Iterable[Link]) -> Iterator[str]:
    """Several tensors may share a name that a log has cut."""
    tensors = [t for link in links for t in (link.tensor, link.witness) if t is not None]
    cut = dict.fromkeys(label(t) for t in tensors if len(t.name.encode()) == DUMPED_NAME)
    if cut:
        names = ", ".join(f"'{name}'" for name in list(cut)[:3]) + ", …" * (len(cut) > 3)
        yield (
            f"a log cuts names at {DUMPED_NAME} bytes: {names} may be another tensor whose name "
            "begins the same"
        )


def _not_told(plan: Planned, links: Iterable[Link]) -> Iterator[str]:
    """The tensors whose place a log or a snapshot leaves out."""
    if plan.capture.source == "scheduler":
        return
    lost = dict.fromkeys(label(link.tensor) for link in links if link.tensor.backend is None)
    for name in lost:
        yield f"the {plan.capture.source} does not say where '{name}' is, or why"


def _limits(plan: Planned) -> Iterator[str]:
    if not plan.has_causes:
        yield (
            f"this {plan.capture.source.removeprefix('debug ')} has no causes: released builds of "
            "ggml do not print them. The library that ggml_py builds does (GGML_SCHED_DEBUG=2), "
            "and Plan.to_json writes them"
        )
    else:
        yield (
            f"a {plan.capture.source} contains only the cause of each node: which backends the "
            "scheduler asked, what stopped a sweep and how leafs were placed are unknown"
        )


def _from_codes(plan: Planned, t: PlanTensor) -> Iterator[Link]:
    """The chain, as far as the cause codes alone show it."""
    seen: set[int] = set()
    relation, depth = "", 0
    while len(seen) < _MAX_LINKS:
        seen.add(t.id)
        cause = t.cause
        following = cause.witness
        row = causes.find(cause.code)
        root = row.root if row else ""
        if not root and (following is None or following.id in seen):
            root = UNKNOWN
        sweep = cause.stage[2:] if cause.pass_ == 2 else ""
        yield Link(
            t, t.backend or "", cause.pass_, sweep, cause.code, cause.text, following, relation,
            depth, root,
        )  # fmt: skip
        if root:
            return
        assert following is not None
        t, relation, depth = following, "because", depth + 1


# --- the notes


def _notes(plan: Planned, t: PlanTensor) -> Iterator[str]:
    yield from dict.fromkeys(_refusals(plan, t))
    yield from sweeps_text(t, decisions_of(plan).meetings(t))
    yield from _copied(plan, t)
    yield from _split_at(plan, t)


def _refusals(plan: Planned, t: PlanTensor) -> Iterator[str]:
    """The backends that pass 1 asked and did not choose."""
    placed = decisions_of(plan).placement(t)
    for step in decisions_of(plan).about(t):
        if step.pass_ != 1 or step.answer is not False:
            continue
        asked = f"pass 1 asked {step.backend}"
        asked += " first" if placed is not None and placed.pass_ == 1 else ""
        if step.query == "supports_op":
            yield f"{asked}: {_refusal(plan, t, step.backend)}"
        elif step.query == "offload_op":
            yield f"{step.backend} supports it, but does not want to offload it at this batch size"
        elif step.witness is not None:
            whose = "it" if step.witness == t else quoted(step.witness)
            yield f"{asked}: it cannot read {memory(step.witness)}, where {whose} is"


def _refusal(plan: Planned, t: PlanTensor, backend: str) -> str:
    """Why pass 1 did not give `t` to a backend that does not support it."""
    why = refused(plan.tensor(t.id), plan.capture.backend_index(backend))
    return _about(why, t, f"it cannot run {signature(t)}")


def _about(why: Refused | None, t: PlanTensor, op: str) -> str:
    return op if why is None or why.kind == OP else why.clause(t)


def sweeps_text(t: PlanTensor, meetings: Iterable[Meeting]) -> Iterator[str]:
    """Sentences about the sweeps that reached a node and did not place it."""
    told: dict[str, list[str]] = {}
    for met in meetings:
        if met.carrier is None:
            text = "no node on that side had a backend"
        elif met.outcome == "stopped":
            text = f"stopped at {quoted(met.carrier)}, which is on the last backend, {met.backend}"
        elif met.outcome == "unsupported":
            text = f"came from {quoted(met.carrier)} on {met.backend}, "
            about = _about(met.why, t, "")
            text += f"but {about}" if about else "which does not support the op"
        else:
            continue
        told.setdefault(text, []).append(met.sweep)
    for text, sweeps in told.items():
        yield f"sweep{'s' * (len(sweeps) > 1)} {joined(sweeps)}: {text}"


def _copied(plan: Planned, t: PlanTensor) -> Iterator[str]:
    """The copies that `t` reads, and where `t` itself is copied to."""
    for src, planned in zip(t.record.src, t.placement.planned_src, strict=False):
        if src >= 0 and planned != src:
            source = plan.tensor(src)
            where = f" from {_home(source)}" if source.backend else ""
            why = f", because {t.backend} cannot read {memory(source)}" if source.backend else ""
            yield f"it reads a copy of {quoted(source)} ({format_bytes(source.nbytes)}{where}){why}"
    for split in plan.copied_for.get(t.id, ()):
        size = format_bytes(t.nbytes)
        yield f"it is copied to {split.backend} for split #{split.index} ({size})"
    code = t.cause.later or t.placement.cause
    if is_for_pipeline(t, code) and plan.settings.n_copies > 1:
        yield (
            f"upstream's cause is {code} later: it is a graph input, kept "
            f"{plan.settings.n_copies} times for pipeline parallelism"
        )


def _home(t: PlanTensor) -> str:
    """The backend whose memory `t` is in: the last one that can read it. (The scheduler assigns
    tensors in CPU memory to BLAS, the first one that can read them.)"""
    readers = t.plan.capture.names(t.buft.readers) if t.buft else []
    return readers[-1] if readers else str(t.backend)


def _split_at(plan: Planned, t: PlanTensor) -> Iterator[str]:
    """Why a split begins with `t` although the backend stays the same."""
    for step in decisions_of(plan).about(t):
        if step.query == "new_split" and step.answer != "backend" and step.witness is not None:
            reason = {
                "weight": f"its weight {quoted(step.witness)} must be copied, and the split before "
                "it already had inputs",
                "inputs": "the split before it had no room for another input, "
                f"{quoted(step.witness)}",
            }[str(step.answer)]
            yield f"a new split begins with it, although the backend stays the same: {reason}"


# --- where ggml and the reference disagree


def _differences(plan: Planned) -> Iterator[str]:
    theirs = reference_of(plan)
    if plan == theirs:
        return
    n = len(plan.capture.tensors)
    for t, ours, other in zip(
        plan.capture.tensors, plan.outcome.placements, theirs.outcome.placements, strict=False
    ):
        if t.id < n and (ours.backend, ours.cause) != (other.backend, other.cause):
            yield (
                f"{quoted(plan.tensor(t.id))} is on {_place(plan, ours.backend)} "
                f"({ours.cause or '-'}), in the reference on {_place(plan, other.backend)} "
                f"({other.cause or '-'})"
            )
    if plan.split_records != theirs.split_records:
        n_splits = counted(plan.n_splits, "split")
        yield f"the splits differ: the plan has {n_splits}, the reference {theirs.n_splits}"


def _place(plan: Planned, backend: int) -> str:
    return plan.backends[backend].name if backend >= 0 else "no backend"


def _ref(t: PlanTensor) -> dict[str, Any]:
    return {"id": t.id, "index": t.index, "name": t.name, "op": t.op}

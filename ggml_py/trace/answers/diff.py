"""The differences between two plans: assignments, causes, splits, copies, bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...files.foreign import html
from ..html import MOST, folded
from ..names import counted
from ..planned import Planned, PlanTensor, format_bytes
from ..record import DUMPED_BACKEND, NODE, dumped_name
from ..units import with_bounds
from .excerpt import mark
from .match import match_tensors, without_number
from .scope import Scope, by_number, scope

_SHOWN = 20  # rows of each kind that `str` prints


@dataclass(frozen=True, slots=True)
class Side:
    """A tensor in one of the two plans."""

    index: int | None  # of the node in its graph; None if it is not a node
    backend: str | None
    cause: str
    buft: str | None  # the buffer type it was in before planning

    def __str__(self) -> str:
        return " ".join(filter(None, (self.backend or "unknown", self.cause)))


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor of both graphs that is elsewhere now, or in the same place for another reason."""

    name: str
    op: str  # its description: SILU rather than UNARY
    kind: str
    is_computed: bool
    before: Side
    after: Side
    weight_bytes: int = 0  # if it is a weight that is elsewhere, and its size is known

    @property
    def moved(self) -> bool:
        """Whether it is on another backend."""
        return self.before.backend != self.after.backend

    @property
    def moved_memory(self) -> bool:
        """Whether it was allocated elsewhere before it was planned."""
        return self.before.buft != self.after.buft


@dataclass(frozen=True, slots=True)
class OneSided:
    """A tensor that only one of the graphs has."""

    name: str
    op: str
    kind: str
    index: int | None
    backend: str | None


@dataclass(frozen=True, slots=True)
class SplitStart:
    """A split that only one plan has: none of the other starts at this node on this backend."""

    index: int
    backend: str
    name: str  # of the first computed node
    op: str
    n_nodes: int
    n_inputs: int
    nbytes: int  # copied in


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that is copied from one backend to another in each evaluation."""

    tensor: str
    src_backend: str | None
    dst_backend: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Totals:
    """One plan in numbers."""

    n_nodes: int
    n_splits: int
    n_copies: int
    copy_bytes: int
    nodes_per_backend: dict[str, int]


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two plans; true if there are any.

    Plans are the same if they make the same decisions: the same nodes on the same backends for the
    same causes, the same splits, and the same copies of the same sizes. `context` (model, flags,
    cards, release, settings) and `n_reshaped` (nodes with another shape) are reported, but do not
    count as differences. Of a plan that is compared with an excerpt only the part
    between the first and the last node of both counts, also in `before` and `after`.
    """

    before: Totals
    after: Totals
    changed: tuple[Difference, ...]
    added: tuple[OneSided, ...]
    removed: tuple[OneSided, ...]
    splits_added: tuple[SplitStart, ...]
    splits_removed: tuple[SplitStart, ...]
    copies_added: tuple[Edge, ...]
    copies_removed: tuple[Edge, ...]
    copies_resized: tuple[tuple[Edge, Edge], ...]
    n_reshaped: int  # nodes of both graphs whose shape or type differs
    causes_compared: bool  # False if a plan has none, as a dump of stock ggml
    context: dict[str, tuple[Any, Any]]
    parts: tuple[str, str] = ("", "")  # of each plan that is an excerpt of a log
    # "before", "after": plans of a scheduler of which it is not recorded how they were made.
    unrecorded: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether both plans make the same decisions."""
        return not (
            self.changed or self.added or self.removed
            or self.splits_added or self.splits_removed
            or self.copies_added or self.copies_removed or self.copies_resized
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Diff: {self.headline()}>"

    def __bool__(self) -> bool:
        return not self.same

    @property
    def moved(self) -> tuple[Difference, ...]:
        """Nodes that another backend computes, in the order of the graph `before`."""
        return tuple(c for c in self.changed if c.moved and c.is_computed)

    def headline(self) -> str:
        """One line: nodes moved, splits and copies before and after."""
        a, b = self.before, self.after
        copies = f"{a.n_copies} ({format_bytes(a.copy_bytes)})"
        copies_after = f"{b.n_copies} ({format_bytes(b.copy_bytes)})"
        same = "same as far as printed" if any(self.parts) else "same"
        start = same if self.same else self._moves()
        only = [sum(t.kind == NODE for t in side) for side in (self.removed, self.added)]
        if any(only):
            start += f", {counted(only[0], 'node')} only before, {only[1]} only after"
        start = "".join(f"{side}: {part}; " for side, part in self._parts()) + start
        return (
            f"{start}; splits {_arrow(a.n_splits, b.n_splits)}, "
            f"copies {_arrow(copies, copies_after)}"
        )

    def _moves(self) -> str:
        """How much moved, and where to: the way of most nodes, or of the weights of no node."""
        ways: Counter[tuple[str, str]] = Counter()
        heavy: Counter[tuple[str, str]] = Counter()
        for c in self.changed:
            if c.moved and (c.is_computed or c.weight_bytes):
                way = (c.before.backend or "unknown", c.after.backend or "unknown")
                ways[way] += c.is_computed
                heavy[way] += c.weight_bytes
        text = f"{len(self.moved)} of {counted(self.before.n_nodes, 'node')}"
        if nbytes := heavy.total():
            text += f" and {format_bytes(nbytes)} of weights"
        if not ways:
            return f"{text} moved"
        (src, dst), _n = max(ways.items(), key=lambda item: (item[1], heavy[item[0]]))
        return f"{text} moved{', most' if len(ways) > 1 else ''} from {src} to {dst}"

    def made_with(self) -> list[tuple[str, str]]:
        """What differs in how both were made: its name, and both sides in words."""
        return [(name, _arrow(*sides)) for name, sides in self.context.items()]

    def _parts(self) -> list[tuple[str, str]]:
        return [(s, p) for s, p in zip(("before", "after"), self.parts, strict=True) if p]

    def sections(self) -> list[tuple[str, list[str]]]:
        """The report as titles and rows, without empty sections. Tensors with the same change whose
        names differ only in numbers share a row."""
        moved = [c for c in self.changed if c.moved]
        other = [c for c in self.changed if not c.moved]
        rows = {
            "made with": [": ".join(row) for row in self.made_with()],
            "on another backend": _grouped((_named(c), _sides(c)) for c in moved if c.is_computed),
            "held on another backend": _grouped(
                (_named(c), _sides(c)) for c in moved if not c.is_computed
            ),
            "for another reason": _grouped((_named(c), _sides(c)) for c in other),
            "only before": _one_side(self.removed),
            "only after": _one_side(self.added),
            "splits removed": _splits(self.splits_removed),
            "splits added": _splits(self.splits_added),
            "copies removed": _edges(self.copies_removed),
            "copies added": _edges(self.copies_added),
            "copies of another size": [
                f"{_edge(a)} → {format_bytes(b.nbytes)}" for a, b in self.copies_resized
            ],
        }
        notes = [
            f"{side} is {part}: what the other plan has outside this part is not compared"
            for side, part in self._parts()
        ]
        if self.n_reshaped:
            notes.append(f"{counted(self.n_reshaped, 'node')} with another shape or type")
        if not self.causes_compared:
            notes.append("causes are not compared: one of the plans has none")
        if len(self.unrecorded) == 1:
            notes.append(f"how the plan {self.unrecorded[0]} was made is not recorded")
        rows["notes"] = notes
        return [(title, lines) for title, lines in rows.items() if lines]

    def __str__(self) -> str:
        lines = [self.headline()]
        for title, rows in self.sections():
            lines.append(f"{title}:")
            lines += [f"  {row}" for row in rows[:_SHOWN]]
            if len(rows) > _SHOWN:
                lines.append(f"  … {len(rows) - _SHOWN} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The headline, and each kind of difference."""
        parts = [f"<b>{html(self.headline())}</b>"]
        for title, rows in self.sections():
            more = [f"… {len(rows) - MOST} more"] if len(rows) > MOST else []
            items = "".join(f"<li>{html(row)}</li>" for row in [*rows[:MOST], *more])
            parts.append(folded(f"{title} ({len(rows)})", f"<ul>{items}</ul>"))
        return f"<div>{''.join(parts)}</div>"

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write. For a log "nbytes" and "copy_bytes" are lower bounds, and
        "nbytes_at_most" and "copy_bytes_at_most" beside them are the upper ones (None: unknown)."""
        data = with_bounds(asdict(self))
        return {"same": self.same, "headline": self.headline(), **data}


def diff(before: Planned, after: Planned, backends: Mapping[str, str] | None = None) -> Diff:
    """What `after` does differently from `before`. `backends` renames backends of `before`, to
    compare the plan of a simulated device with that of a real one: {"gpu0": "CUDA0"}.

    Raises KeyError for a name that `before` does not have.
    """
    for plan in (before, after):
        if not isinstance(plan, Planned):
            raise TypeError(f"expected a Plan to compare with, got {type(plan).__name__}")
    if backends is not None and not isinstance(backends, Mapping):
        raise TypeError(f'backends: expected names like {{"gpu0": "CUDA0"}}, got {backends!r:.40}')
    return _Comparison(before, after, backends or {}).run()


class _Comparison:
    def __init__(self, before: Planned, after: Planned, backends: Mapping[str, str]) -> None:
        self.before, self.after = before, after
        names = [b.name for b in before.backends]
        self.renamed = {names[before.capture.backend_index(k)]: v for k, v in backends.items()}
        self.begins_late = before.capture.begins_late or after.capture.begins_late
        self.cut_names = _cut_names(before) | _cut_names(after)
        # Debug logs and snapshots name what is copied, but not where tensors are.
        self.sources = {before.capture.source, after.capture.source}
        self.partial = self.sources != {"scheduler"}
        self.memories = dict(self.renamed_memories())
        self.match = match_tensors(before.capture, after.capture)
        theirs = {j: i for i, j in self.match.pairs.items()}
        self.scopes = scope(before, after, self.match.pairs), scope(after, before, theirs)
        self.compared_a, self.compared_b = self.match.compared
        self.with_causes = before.has_causes and after.has_causes

    def run(self) -> Diff:
        a, b, pairs = self.before, self.after, self.match.pairs
        matched = set(pairs.values())
        both = [(a.tensor(i), b.tensor(j)) for i, j in sorted(pairs.items())]
        changes = [c for x, y in both if (c := self.change(x, y))]
        in_a, in_b = self.scopes
        removed = [a.tensor(i) for i in self.compared_a if i not in pairs and i in in_a.ids]
        added = [b.tensor(j) for j in self.compared_b if j not in matched and j in in_b.ids]
        edges = self.edges()
        return Diff(
            before=self.totals(a, self.renamed, in_a),
            after=self.totals(b, {}, in_b),
            changed=tuple(changes),
            added=tuple(map(_one_sided, added)),
            removed=tuple(map(_one_sided, removed)),
            splits_added=tuple(self.splits(b, a, {j: i for i, j in pairs.items()})),
            splits_removed=tuple(self.splits(a, b, pairs)),
            copies_added=edges[0],
            copies_removed=edges[1],
            copies_resized=edges[2],
            n_reshaped=sum(x.index is not None and _reshaped(x, y) for x, y in both),
            causes_compared=self.with_causes,
            context=self.context(),
            parts=(mark(a.capture), mark(b.capture)),
            unrecorded=tuple(
                side for side, plan in (("before", a), ("after", b))
                if plan.capture.source == "scheduler" and not plan.provenance.known
            ),
        )  # fmt: skip

    def scope_of(self, plan: Planned) -> Scope:
        return self.scopes[0] if plan is self.before else self.scopes[1]

    def name(self, backend: str | None) -> str | None:
        """The name that `after` has for a backend of `before`."""
        return self.renamed.get(backend, backend) if backend else backend

    def renamed_memories(self) -> Iterable[tuple[str, str]]:
        """The buffer types of renamed backends: "gpu0" in one plan is "CUDA0" in the other."""
        theirs = {b.name: b.buft for b in self.after.backends}
        for b in self.before.backends:
            buft = theirs.get(self.renamed[b.name], -1) if b.name in self.renamed else -1
            if b.buft >= 0 and buft >= 0:
                yield self.before.capture.bufts[b.buft].name, self.after.capture.bufts[buft].name

    def change(self, x: PlanTensor, y: PlanTensor) -> Difference | None:
        if self.partial and x.index is None:
            held = [
                (self.name(x.backend) or "")[:DUMPED_BACKEND],
                (y.backend or "")[:DUMPED_BACKEND],
            ]
            if "" in held or held[0] == held[1] or self.begins_late:
                # A dump omits some places and cuts the names of backends. A source of an excerpt
                # may be a node before it that has the same name as another tensor.
                return None
        # Memory counts if it is the tensor's own and both plans know it.
        bufts = [None if self.partial or t.buft is None else t.buft.name for t in (x, y)]
        bufts[0] = self.memories.get(bufts[0] or "", bufts[0])
        before = Side(x.index, self.name(x.backend), x.placement.cause, bufts[0])
        after = Side(y.index, y.backend, y.placement.cause, bufts[1])
        other_cause = self.with_causes and before.cause != after.cause
        other_memory = x.index is None and bufts[0] != bufts[1]
        same_place = before.backend == after.backend
        if {before.backend, after.backend} & self.cut_names:
            names = (dumped_name(s.backend or "", DUMPED_BACKEND) for s in (before, after))
            same_place = len(set(names)) == 1
        if same_place and not other_cause and not other_memory:
            return None
        op, kind = y.record.op_desc, y.record.kind
        is_known = y.is_weight and bufts[0] != bufts[1] and not (self.partial or same_place)
        weight_bytes = y.nbytes if is_known else 0
        return Difference(y.name, op, kind, y.is_computed, before, after, weight_bytes)

    def splits(self, of: Planned, other: Planned, pairs: Mapping[int, int]) -> Iterable[SplitStart]:
        """The splits of one plan that start where no split of the other does."""
        names = self.renamed if of is self.before else {}
        others = self.renamed if other is self.before else {}
        numbered = by_number(of, other)
        there = {
            (others.get(s.backend, s.backend), s.number if numbered else s.first and s.first.id)
            for s in other.splits
        }
        for split in self.scope_of(of).begun:
            first, backend = split.first, names.get(split.backend, split.backend)
            if self.partial and first is not None and first.is_view_op:
                continue  # it has views only, which the other plan leaves out
            key = split.number if numbered or first is None else pairs.get(first.id, -1)
            if (backend, key) not in there:
                n = sum(node.is_computed for node in split.nodes)
                yield SplitStart(
                    split.number,
                    backend,
                    first.name if first else "",
                    first.record.op_desc if first else "nodes not printed",
                    n,
                    len(split.inputs),
                    split.copy_bytes,
                )

    def edges(self) -> tuple[tuple[Edge, ...], tuple[Edge, ...], tuple[tuple[Edge, Edge], ...]]:
        """The copies added, removed, and of another size."""
        # A dump rounds sizes down, so only dumps can be compared with it. (A snapshot is compared
        # as it was written.)
        exact = len(self.sources - {"snapshot"}) < 2
        old = self.keyed(self.before, self.renamed, self.match.pairs)
        new = self.keyed(self.after, {}, None)
        both = [(old[key], new[key]) for key in old if key in new]
        return (
            tuple(edge for key, edge in new.items() if key not in old),
            tuple(edge for key, edge in old.items() if key not in new),
            tuple((a, b) for a, b in both if exact and a.nbytes != b.nbytes),
        )

    def keyed(
        self, plan: Planned, names: Mapping[str, str], pairs: Mapping[int, int] | None
    ) -> dict[tuple[int | str, str | None, str, int], Edge]:
        """What a plan copies, by tensor, source and destination. The tensor's key is its id in the
        other plan, or its name if one plan is from a debug log or a snapshot, which identify views
        by nothing else."""
        found: dict[tuple[int | str, str | None, str, int], Edge] = {}
        n_same: Counter[tuple[str, str]] = Counter()
        for i in (given for split in self.scope_of(plan).begun for given in split.inputs):
            src = names.get(i.src_backend, i.src_backend) if i.src_backend else None
            dst = names.get(i.dst_backend, i.dst_backend)
            edge = Edge(i.tensor.name, src, dst, i.nbytes)
            if self.partial:
                name = without_number(i.tensor.name).strip()
                found[name, None, dst, n_same[name, dst]] = edge
                n_same[name, dst] += 1
            else:
                id = i.tensor.id
                found[id if pairs is None else pairs.get(id, -1 - id), src, dst, 0] = edge
        return found

    def totals(self, plan: Planned, names: Mapping[str, str], own: Scope) -> Totals:
        counts = Counter(n.backend for n in plan.nodes if n.is_computed and n.id in own.ids)
        per_backend = {names.get(b.name, b.name): counts[b.name] for b in plan.backends}
        n_copies = sum(len(split.inputs) for split in own.splits)
        copied = sum(split.copy_bytes for split in own.splits)
        return Totals(sum(counts.values()), len(own.splits), n_copies, copied, per_backend)

    def context(self) -> dict[str, tuple[Any, Any]]:
        """The differences in what the plans were made with."""
        mine, theirs = self.before.provenance, self.after.provenance
        made: dict[str, tuple[Any, Any]] = dict(mine.differences(theirs, self.renamed))
        if "snapshot" in self.sources:
            return made  # a snapshot says nothing else
        sides = [_made_with(self.before, self.renamed), _made_with(self.after, {})]
        return {k: (v, sides[1][k]) for k, v in sides[0].items() if v != sides[1][k]} | made


def _cut_names(plan: Planned) -> set[str | None]:
    """The backend of an excerpt's first split, if only the beginning of its name is printed."""
    printed = plan.capture.printed
    if printed is None or not printed.begins_inside:
        return set()
    name = plan.splits[0].backend
    return {name} if len(name.encode()) == DUMPED_BACKEND else set()


def _made_with(plan: Planned, names: Mapping[str, str]) -> dict[str, Any]:
    settings, bufts = plan.settings, plan.capture.bufts
    made: dict[str, Any] = {
        "release": settings.release if plan.capture.source == "scheduler" else "not printed",
        "read from": plan.capture.source,
        "backends": [names.get(b.name, b.name) for b in plan.backends],
        "n_copies": settings.n_copies,
    }
    if plan.capture.source == "scheduler":
        made["op_offload"] = settings.op_offload
        made["devices"] = [f"{b.device} ({bufts[b.buft].name})" for b in plan.backends]
    else:
        made["op_offload"] = made["devices"] = "not known"
    return made


def _one_sided(t: PlanTensor) -> OneSided:
    return OneSided(t.name, t.record.op_desc, t.record.kind, t.index, t.backend)


def _reshaped(x: PlanTensor, y: PlanTensor) -> bool:
    known = x.plan.capture.source == y.plan.capture.source == "scheduler"
    return known and (x.ne, x.type) != (y.ne, y.type)


# --- in words


def _arrow(before: Any, after: Any) -> str:
    def shown(value: Any) -> str:
        return ", ".join(value) if isinstance(value, list) else str(value)

    return shown(before) if before == after else f"{shown(before)} → {shown(after)}"


def _named(t: Difference | OneSided) -> tuple[str, str]:
    return t.name or "(no name)", t.op if t.op != "NONE" else t.kind


def _sides(c: Difference) -> str:
    text = _arrow(str(c.before), str(c.after))
    if c.moved_memory:
        text += f" (in {c.before.buft or 'no buffer'} → {c.after.buft or 'no buffer'})"
    return text


def _one_side(tensors: Iterable[OneSided]) -> list[str]:
    return _grouped((_named(t), f"on {t.backend or 'an unknown backend'}") for t in tensors)


def _grouped(rows: Iterable[tuple[tuple[str, str], str]]) -> list[str]:
    counts: Counter[tuple[str, str, str]] = Counter()
    names: dict[tuple[str, str, str], str] = {}
    for (name, op), text in rows:
        key = _numberless(name), op, text
        names.setdefault(key, name)
        counts[key] += 1
    return [
        f"{names[key]} ({key[1]}): {key[2]}" if n == 1 else f"{n}× {key[0]} ({key[1]}): {key[2]}"
        for key, n in counts.items()
    ]


def _splits(splits: Iterable[SplitStart]) -> list[str]:
    return _alike(
        (f"#{s.index} {_split(s)}", _split(replace(s, name=_numberless(s.name)))) for s in splits
    )


def _edges(edges: Iterable[Edge]) -> list[str]:
    return _alike((_edge(e), _edge(replace(e, tensor=_numberless(e.tensor)))) for e in edges)


def _alike(rows: Iterable[tuple[str, str]]) -> list[str]:
    """The rows; those with the same second text become one."""
    groups: dict[str, list[str]] = {}
    for alone, together in rows:
        groups.setdefault(together, []).append(alone)
    return [same[0] if len(same) == 1 else f"{len(same)}× {text}" for text, same in groups.items()]


def _numberless(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _split(s: SplitStart) -> str:
    copied = f", {s.n_inputs} copied in ({format_bytes(s.nbytes)})" if s.n_inputs else ""
    return f"on {s.backend} from {s.name} ({s.op}): {counted(s.n_nodes, 'node')}{copied}"


def _edge(e: Edge) -> str:
    return f"{e.tensor}: {e.src_backend or 'unknown'} → {e.dst_backend}, {format_bytes(e.nbytes)}"

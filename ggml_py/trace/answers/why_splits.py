"""Reasons for the splits of a graph, with equal splits in groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import causes
from ..facts import Facts
from ..planning import reference_of
from ..units import with_bounds
from .explain import has_steps
from .reasons import AppliedRule, first_reason
from .shares import bytes_moved

if TYPE_CHECKING:
    from ..planned import Planned, PlanTensor
    from ..split import Split, SplitInput

_LEAST_SHARE = 10  # a device with less than a tenth of the nodes is not the main backend
# Reasons about the node itself. The others (a sweep, most sources, a view, ...) follow from where
# its neighbours are.
_OWN = ("pin", "op", "memory", "weight", "offload", "input")
_OWN_CODES = tuple(row.code for row in causes.CODES if row.pass_ <= causes.PASS_1.pass_)


@dataclass(frozen=True)
class SplitGroup:
    """Splits of one backend with the same ops in the same order and the same number of inputs."""

    backend: str
    splits: tuple[int, ...]  # their numbers
    ops: tuple[tuple[str, int], ...]  # each op and its count in one of the splits
    n_inputs: int  # of each
    copy_bytes: int  # copied into all of them


@dataclass(frozen=True)
class SplitReason:
    """Nodes of one op that are on `backend` and not on the main backend, for one reason.

    It can also be about nodes on the main backend that read a copy of a weight or cache; then it is
    the reason why they are not where the original is. `reason` is the id of the rule
    (docs/EXPLAIN.md), or the cause code if the plan was read from a log. `text` is about the first
    of `nodes`. `splits` are the splits of the nodes. `n_copies` and `copy_bytes` count the copies
    that these nodes read and the copies of their results; no copy is counted twice.
    """

    reason: str
    op: str
    backend: str
    nodes: tuple[int, ...]
    splits: tuple[int, ...]
    n_copies: int
    copy_bytes: int
    text: str
    bytes: int = 0  # that the nodes read and write, estimated; 0 if shapes are not known


@dataclass(frozen=True)
class WhySplits:
    """The answer. `main` is the backend that nodes are on unless something keeps them off it.
    `reasons` are sorted by bytes copied, largest first. `other_copies` and `other_bytes` count the
    copies that no reason explains, mostly those of graph inputs."""

    main: str
    groups: tuple[SplitGroup, ...]
    reasons: tuple[SplitReason, ...]
    other_copies: int
    other_bytes: int

    def __repr__(self) -> str:
        n, found = sum(len(group.splits) for group in self.groups), len(self.reasons)
        what = f"{n} split{'s' * (n != 1)}, {found} reason{'s' * (found != 1)}"
        return f"<WhySplits: {what}, main backend {self.main}>"

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        data = {
            "main": self.main,
            "groups": [
                {**vars(g), "splits": list(g.splits), "ops": [list(op) for op in g.ops]}
                for g in self.groups
            ],
            "reasons": [
                {**vars(r), "nodes": list(r.nodes), "splits": list(r.splits)} for r in self.reasons
            ],
            "other_copies": self.other_copies,
            "other_bytes": self.other_bytes,
        }
        bounded: dict[str, Any] = with_bounds(data)
        return bounded


def why_splits(plan: Planned) -> WhySplits:
    """Why the plan has its splits, cached."""
    return plan.derived(_why_splits)


def _why_splits(plan: Planned) -> WhySplits:
    asked = _Asked(plan)
    for split in plan.splits:
        if split.backend != asked.main:
            asked.add_split(split)
        for given in split.inputs:
            asked.add_copy(split, given)
    others = asked.count_copies()
    reasons = [
        SplitReason(
            *key, tuple(row.nodes), tuple(row.splits), len(row.copies),
            sum(given.nbytes for given in row.copies), row.reason.text, _moved(plan, row.nodes),
        )
        for key, row in asked.rows.items()
    ]  # fmt: skip
    reasons.sort(key=lambda r: (-r.copy_bytes, -len(r.splits), -r.bytes, r.nodes))
    return WhySplits(
        asked.main, tuple(split_groups(plan)), tuple(reasons), len(others),
        sum(given.nbytes for given in others),
    )  # fmt: skip


def _moved(plan: Planned, nodes: Iterable[int]) -> int:
    """Bytes that nodes read and write."""
    capture = plan.capture
    if capture.source != "scheduler":
        return 0
    records = (capture.tensors[i] for i in nodes)
    return sum(bytes_moved(t, [capture.tensors[i] for i in t.src if i >= 0]) for t in records)


def split_groups(plan: Planned) -> Iterable[SplitGroup]:
    """The splits in groups of equal ones, ordered by the first split of each group."""
    groups: dict[tuple[str, tuple[str, ...], int], list[int]] = {}
    for split in plan.splits:
        ops = tuple(node.record.op_desc for node in split.nodes if node.is_computed)
        groups.setdefault((split.backend, ops, len(split.inputs)), []).append(split.index)
    for (backend, ops, n_inputs), indices in groups.items():
        copied = sum(plan.splits[i].copy_bytes for i in indices)
        counts = tuple(Counter(ops).most_common())
        splits = tuple(plan.splits[i].number for i in indices)
        yield SplitGroup(backend, splits, counts, n_inputs, copied)


def planned(plan: Planned) -> Planned:
    """The plan that reasons are taken from: the reference scheduler's, because its steps are known.
    Raises ValueError if the reference cannot plan the graph."""
    return plan if plan == reference_of(plan) else reference_of(plan)


class _Row:
    """A reason while its nodes are collected."""

    def __init__(self, reason: AppliedRule) -> None:
        self.reason = reason
        self.nodes: dict[int, None] = {}
        self.splits: dict[int, None] = {}
        self.copies: list[SplitInput] = []


class _Asked:
    """The reasons of a plan while they are collected."""

    def __init__(self, plan: Planned) -> None:
        self.plan = plan
        self.reference = planned(plan) if has_steps(plan) else None
        self.facts = Facts(plan, 0)
        self.main = self._main()
        self.rows: dict[tuple[str, str, str], _Row] = {}
        self._row_of: dict[int, _Row] = {}  # by node
        self._first: dict[int, _Row] = {}  # by split: the row for its nodes without a row

    def _main(self) -> str:
        """The backend that nodes are on unless something keeps them off it. It is the device with
        its own memory that computes the most nodes. If none computes enough of them, it is the
        backend that computes the most."""
        counts = self.plan.nodes_per_backend()
        names = [self.facts.name(b) for b in self.facts.devices]
        least = sum(counts.values()) / _LEAST_SHARE
        return max(
            [n for n in names if counts[n] >= least] or counts, key=lambda name: counts[name]
        )

    def add_split(self, split: Split) -> None:
        """Adds a split that is not on the main backend, with the reasons of its nodes."""
        computed = [node for node in split.nodes if node.is_computed]
        known = [(n, reason) for n in computed if (reason := self._reason(n, self.main))]
        own = [(node, reason) for node, reason in known if _is_own(reason)]
        for node, reason in own or known[:1]:
            self._first.setdefault(split.index, self._add(split, node, reason))

    def add_copy(self, split: Split, given: SplitInput) -> None:
        """Adds a weight or cache that is copied to a split: why its readers are not where it is."""
        holder = self.facts.holder(given.tensor.record)
        if not (self.facts.is_weight(holder) or self.facts.is_state(holder)):
            return
        for node in split.nodes:
            if not node.is_computed or node.id in self._row_of or not _reads(node, given):
                continue
            home = given.src_backend or self.plan.backends[-1].name
            if (reason := self._reason(node, home)) is not None:
                self._add(split, node, reason)

    def _add(self, split: Split, node: PlanTensor, reason: AppliedRule) -> _Row:
        key = reason.id, node.record.op_desc, split.backend
        row = self.rows.setdefault(key, _Row(reason))
        row.nodes[node.id] = row.splits[split.number] = None
        self._row_of[node.id] = row
        return row

    def _reason(self, node: PlanTensor, backend: str) -> AppliedRule | None:
        """Why a node is not on a backend. A plan from a log has only the cause of the node."""
        if self.reference is None:
            return AppliedRule(node.cause.code or "unknown", node.cause.text)
        b = self.plan.capture.backend_index(backend)
        return first_reason(self.reference, self.reference.tensor(node.id), b)

    def count_copies(self) -> list[SplitInput]:
        """Adds each copy to the row of a node that reads or computes it; returns the others."""
        split_of = {node.id: split.index for split in self.plan.splits for node in split.nodes}
        others: list[SplitInput] = []
        for given in self.plan.copied:
            holder = self.facts.holder(given.tensor.record)
            near = [self._row_of.get(n.id) for n in given.split.nodes if _reads(n, given)]
            near += [self._row_of.get(given.tensor.id), self._row_of.get(holder.id)]
            near += [
                self._first.get(given.split.index),
                self._first.get(split_of.get(holder.id, -1)),
            ]
            row = next((row for row in near if row is not None), None)
            (others if row is None else row.copies).append(given)
        return others


def _reads(node: PlanTensor, given: SplitInput) -> bool:
    return given.copy.id in (node.placement.planned_src or node.record.src)


def _is_own(reason: AppliedRule) -> bool:
    return reason.id.partition(".")[0] in _OWN or reason.id.startswith(_OWN_CODES)

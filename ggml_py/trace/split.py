"""The splits of a plan, and the order in which backends compute their nodes: graph order, unless a
backend has a `graph_optimize`, which upstream calls once a graph is split."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .names import counted
from .plan_tensor import PlanTensor
from .record import OptimizedRecord, SplitRecord

if TYPE_CHECKING:
    from .planned import Planned


@dataclass(frozen=True, slots=True)
class SplitInput:
    """One tensor copied to the backend of `split` before it runs. From a log, `nbytes` is a lower
    bound (`PlanTensor.nbytes`)."""

    tensor: PlanTensor
    copy: PlanTensor
    src_backend: str | None
    dst_backend: str
    nbytes: int
    split: Split = field(repr=False, compare=False)


class Split:
    """A run of nodes [start, end) that one backend computes."""

    __slots__ = ("_order", "backend", "end", "index", "inputs", "plan", "start")

    def __init__(self, plan: Planned, index: int, record: SplitRecord) -> None:
        self.plan = plan
        self.index = index
        self.backend = plan.backends[record.backend].name
        self.start, self.end = record.start, record.end
        self.inputs = tuple(self._input(source, copy) for source, copy in record.inputs)
        self._order: list[tuple[PlanTensor, ...] | None] = []  # one entry, once it was asked for

    def _input(self, source: int, copy: int) -> SplitInput:
        tensor = self.plan.tensor(source)
        copied = self.plan.tensor(copy)
        return SplitInput(tensor, copied, tensor.backend, self.backend, tensor.nbytes, self)

    def __repr__(self) -> str:
        return (
            f"<Split {self.index} on {self.backend}: nodes {self.start}..{self.end - 1}, "
            f"{counted(len(self.inputs), 'input')}>"
        )

    @property
    def copy_bytes(self) -> int:
        """Bytes copied before it runs; from a log a lower bound, as in `Plan.copy_bytes`."""
        return sum(given.nbytes for given in self.inputs)

    @property
    def nodes(self) -> tuple[PlanTensor, ...]:
        return self.plan.nodes[self.start : self.end]

    @property
    def order(self) -> tuple[PlanTensor, ...] | None:
        """Its nodes in the order they are computed, after the backend's `graph_optimize` if it has
        one; None if that is not known (`unknown`, `what_if`). C: ggml_backend_graph_optimize"""
        if not self._order:  # cached: a run asks for each of its events
            order = order_of(self)
            self._order = [None if order is None else tuple(map(self.plan.tensor, order))]
        return self._order[0]

    @property
    def moved(self) -> tuple[PlanTensor, ...] | None:
        """The smallest set of nodes to take out of graph order to get `order`, in that order; None
        if `order` is not known."""
        order = order_of(self)
        return None if order is None else tuple(map(self.plan.tensor, moved(order)))

    @property
    def alloc_deps(self) -> tuple[AllocDep, ...] | None:
        """Tensors that its backend keeps allocated longer than their readers need; None if `order`
        is not known."""
        answer = answer_of(self)
        if answer is None:
            return None
        tensor = self.plan.tensor
        return tuple(AllocDep(tensor(t), tensor(u)) for t, u in answer.alloc_deps)

    @property
    def number(self) -> int:
        """Its number in the plan: the index, unless the plan is an excerpt of a log."""
        return self.index + max(0, self.plan.capture.first_split)

    @property
    def first(self) -> PlanTensor | None:
        """The node that it begins with: the first that is not a view, if there is one; None if its
        nodes are not printed."""
        nodes = self.nodes
        return next((n for n in nodes if not n.is_view_op), nodes[0] if nodes else None)


# Upstream's backends without a graph_optimize, for files and logs that do not say which backends
# have one. No other backend can have these names; any other name may be a simulated device's.
_IN_ORDER = ("CPU", "BLAS")


class AllocDep(NamedTuple):
    """The memory of `tensor` is kept until node `until` is computed. C: add_alloc_dep"""

    tensor: PlanTensor
    until: PlanTensor


def possible_optimizers(names: Sequence[str]) -> int:
    """The backends that may reorder nodes, judging by their names, as a bit mask."""
    return sum(1 << b for b, name in enumerate(names) if name not in _IN_ORDER)


def answer_of(split: Split) -> OptimizedRecord | None:
    """The split's nodes as its backend optimized them; None if that is not known."""
    capture = split.plan.capture
    backend = split.plan.split_records[split.index].backend
    if not capture.optimizers >> backend & 1:
        return OptimizedRecord(backend, split.start, split.end, (), ())
    return split.plan.derived(_answers).get((backend, split.start, split.end))


def _answers(plan: Planned) -> dict[tuple[int, int, int], OptimizedRecord]:
    """The nodes as backends optimized them, by (backend, start, end)."""
    return {(a.backend, a.start, a.end): a for a in reversed(plan.capture.optimized)}


def order_of(split: Split) -> tuple[int, ...] | None:
    """The ids of its nodes in the order they are computed; None if that is not known."""
    answer = answer_of(split)
    if answer is None:
        return None
    return answer.order or tuple(range(split.start, split.end))


def order_of_plan(plan: Planned) -> tuple[int, ...] | None:
    """The ids of all nodes in the order they are computed; None if that of a split is not known."""
    found: list[int] = []
    for split in plan.splits:
        order = order_of(split)
        if order is None:
            return None
        found += order
    return tuple(found)


def moved(order: Sequence[int]) -> tuple[int, ...]:
    """The smallest set of ids to take out of graph order and put elsewhere to get `order`: those
    outside a longest increasing subsequence."""
    ends: list[int] = []  # the smallest last id of the increasing subsequences of each length
    at: list[int] = []  # its index in `order`
    before: list[int] = []
    for i, id in enumerate(order):
        n = bisect_left(ends, id)
        before.append(at[n - 1] if n else -1)
        ends[n : n + 1], at[n : n + 1] = [id], [i]
    stays = set()
    i = at[-1] if at else -1
    while i >= 0:
        stays.add(order[i])
        i = before[i]
    return tuple(id for id in order if id not in stays)

"""The splits of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .order import AllocDep, answer_of, moved, order_of
from .plan_tensor import PlanTensor
from .record import SplitRecord

if TYPE_CHECKING:
    from .plan import Plan


@dataclass(frozen=True, slots=True)
class SplitInput:
    """One tensor copied to a split's backend before the split runs. `nbytes` is the least where it
    is from a log (`PlanTensor.nbytes`)."""

    tensor: PlanTensor
    copy: PlanTensor
    src_backend: str | None
    dst_backend: str
    nbytes: int


class Split:
    """A run of nodes [start, end) that one backend computes."""

    __slots__ = ("_order", "backend", "end", "index", "inputs", "plan", "start")

    def __init__(self, plan: Plan, index: int, record: SplitRecord) -> None:
        self.plan = plan
        self.index = index
        self.backend = plan.backends[record.backend].name
        self.start, self.end = record.start, record.end
        self.inputs = tuple(self._input(source, copy) for source, copy in record.inputs)
        self._order: list[tuple[PlanTensor, ...] | None] = []  # one, once it was asked for

    def _input(self, source: int, copy: int) -> SplitInput:
        tensor = self.plan.tensor(source)
        copied = self.plan.tensor(copy)
        return SplitInput(tensor, copied, tensor.backend, self.backend, tensor.nbytes)

    def __repr__(self) -> str:
        return (
            f"<Split {self.index} on {self.backend}: nodes {self.start}..{self.end - 1}, "
            f"{len(self.inputs)} inputs>"
        )

    @property
    def nodes(self) -> tuple[PlanTensor, ...]:
        return self.plan.nodes[self.start : self.end]

    @property
    def order(self) -> tuple[PlanTensor, ...] | None:
        """Its nodes as they are computed, after the backend's `graph_optimize`, if it has one; None
        where that is not known (`unknown`, `what_if`). C: ggml_backend_graph_optimize"""
        if not self._order:  # a run asks for each of its events
            order = order_of(self)
            self._order = [None if order is None else tuple(map(self.plan.tensor, order))]
        return self._order[0]

    @property
    def moved(self) -> tuple[PlanTensor, ...] | None:
        """The fewest nodes that were taken out of the graph's order to give `order`, in that; None
        where that is not known."""
        order = order_of(self)
        return None if order is None else tuple(map(self.plan.tensor, moved(order)))

    @property
    def alloc_deps(self) -> tuple[AllocDep, ...] | None:
        """What its backend keeps allocated for longer than its readers need it; None where `order`
        is not known."""
        answer = answer_of(self)
        if answer is None:
            return None
        tensor = self.plan.tensor
        return tuple(AllocDep(tensor(t), tensor(u)) for t, u in answer.alloc_deps)

    @property
    def first(self) -> PlanTensor:
        """The node that it begins with: the first that is no view, where it has one."""
        return next((node for node in self.nodes if not node.is_view_op), self.nodes[0])

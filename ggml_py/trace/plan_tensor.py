"""One tensor of a plan."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from .cause import Cause, cause_of
from .record import NODE, BufferRecord, BuftRecord, CpuRecord, Placement, TensorRecord

if TYPE_CHECKING:
    from .planned import Planned


class PlanTensor:
    """A node, leaf or copy of a plan. Equal if they are the same tensor of the same plan."""

    __slots__ = ("id", "placement", "plan", "record")

    def __init__(self, plan: Planned, id: int) -> None:
        self.plan = plan
        self.id = id
        self.record: TensorRecord = plan.tensors[id]
        self.placement: Placement = plan.outcome.placements[id]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanTensor) and self.plan is other.plan and self.id == other.id

    def __hash__(self) -> int:
        return hash((id(self.plan), self.id))

    def __repr__(self) -> str:
        cause = f" {self.placement.cause}" if self.placement.cause else ""
        return f"<{self.record.kind} {self.id} '{self.name}' {self.op} on {self.backend}{cause}>"

    @property
    def index(self) -> int | None:
        """Index in the graph's nodes; None for leafs and copies."""
        return self.id if self.record.kind == NODE else None

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def op(self) -> str:
        """ggml's op name; "NONE" for leafs and copies."""
        return self.record.op

    @property
    def type(self) -> str:
        return self.record.type

    @property
    def ne(self) -> tuple[int, ...]:
        return self.record.ne

    @property
    def nbytes(self) -> int:
        """Its size in bytes. A log has only whole KiB or MiB, so from a log this is a lower bound
        (0: less than 1 KiB), an `int` whose `most` is the upper bound."""
        return self.record.nbytes

    @property
    def flags(self) -> tuple[str, ...]:
        return self.record.flags

    @property
    def is_view_op(self) -> bool:
        """Whether it is a VIEW, RESHAPE, PERMUTE or TRANSPOSE, which compute nothing."""
        return self.record.is_view_op

    @property
    def is_computed(self) -> bool:
        """Whether a backend computes it: a node that is not a view or in an unselected branch."""
        if self.record.kind != NODE or self.is_view_op:
            return False
        return "compute" in self.flags or not self.plan.has_compute_flags

    @property
    def is_weight(self) -> bool:
        """Whether it is in a buffer that is marked as weights."""
        return self.plan.capture.is_weight(self.record)

    @property
    def flops(self) -> int | None:
        """Estimated floating-point operations; None if shapes are not known."""
        from .flops import flops

        if self.plan.capture.source != "scheduler":
            return None
        return flops(self.record, [s.record for s in self.srcs]) if self.is_computed else 0

    @property
    def buffer(self) -> BufferRecord | None:
        """The buffer it was in before planning: its own, not its view source's."""
        return self.plan.buffers[self.record.buffer] if self.record.buffer >= 0 else None

    @property
    def buft(self) -> BuftRecord | None:
        """The type of the buffer that it, or its view source, was in before planning."""
        buft = self.plan.capture.buft_of(self.record)
        return self.plan.capture.bufts[buft] if buft >= 0 else None

    @property
    def cpu(self) -> CpuRecord | None:
        """How the CPU backend computes it: threads, scratch memory, kernel, layout of its weight,
        nodes fused with it. None if another backend computes it or it was not asked (logs, older
        files, `what_if`). C: ggml_graph_plan"""
        return self.plan.on_cpu.get(self.id)

    @property
    def backend(self) -> str | None:
        """Name of the backend that runs or holds it."""
        backend = self.placement.backend
        return self.plan.backends[backend].name if backend >= 0 else None

    @property
    def cause(self) -> Cause:
        """Why it is on its backend."""
        return cause_of(self.plan, self)

    @property
    def split(self) -> int | None:
        """Index of the split that it is in; None if it is not a node."""
        if self.record.kind != NODE:
            return None
        return bisect_right(self.plan.split_records, self.id, key=attrgetter("start")) - 1

    @property
    def srcs(self) -> tuple[PlanTensor, ...]:
        """Its sources in the graph as it was built."""
        return tuple(self.plan.tensor(i) for i in self.record.src if i >= 0)

    @property
    def view_src(self) -> PlanTensor | None:
        return self.plan.tensor(self.record.view_src) if self.record.view_src >= 0 else None

"""Why a backend does not support a node: the op, the memory that a source is in, or not known.

A device that answers from a file of op tests (`sim.profile`) supports nothing that is not in it.

Upstream's `supports_op` gives one answer for both: CUDA's, for one, refuses an op with a source in
another card's memory. A plan is read from backends that were asked once more, about the op with
sources in no memory, so it knows which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .names import memory, quoted, shape, signature
from .record import NOT_ON_RECORD

if TYPE_CHECKING:
    from .plan_tensor import PlanTensor
    from .planned import Planned

OP, MEMORY, UNKNOWN, RECORD = "op", "memory", "unknown", "record"


class Refused(NamedTuple):
    """Why a backend does not support a node."""

    kind: str  # OP, MEMORY, UNKNOWN or RECORD: nobody knows whether the device supports it
    backend: str
    source: PlanTensor | None  # whose memory it is about, or may be

    def clause(self, t: PlanTensor) -> str:
        """The reason, about node `t`: "its weight 'blk.3.ffn_up.weight' is in gpu1 memory, …"."""
        if self.source is None:
            what = signature(t) + (f" -> {shape(t)}" if t.op != "NONE" else "")
            if self.kind == RECORD:
                return f"{what} is not on record for {self.backend}, which counts as not supported"
            several = " with its sources in the memory that they are in" * (self.kind == MEMORY)
            return f"{self.backend} does not support {what}{several}"
        whose = "weight" if self.source.is_weight else "source"
        lies = f"its {whose} {quoted(self.source)} is in {memory(self.source)}"
        if self.kind == MEMORY:
            how = f"which {self.backend} cannot read"
            if self._reads():
                how = f"from which {self.backend} does not compute {t.record.op_desc}"
            return f"{lies}, {how} ({self.backend} supports the op itself)"
        return (
            f"{self.backend} does not support {signature(t)} -> {shape(t)}, or only not because "
            f"{lies}: this plan does not say which"
        )

    def _reads(self) -> bool:
        assert self.source is not None
        plan, buft = self.source.plan, self.source.buft
        return buft is not None and bool(
            buft.readers >> plan.capture.backend_index(self.backend) & 1
        )


class Refusals:
    """The answers of a plan by node and backend, cached."""

    def __init__(self, plan: Planned) -> None:
        self.plan = plan
        self.known = plan.capture.refusals is not None
        self.srcs = {(r.tensor, r.backend): r.srcs for r in plan.capture.refusals or ()}


def refused(t: PlanTensor, b: int) -> Refused | None:
    """Why backend `b` does not support node `t`; None if it does."""
    if t.record.supports >> b & 1:
        return None
    plan = t.plan
    told, name = plan.derived(Refusals), plan.backends[b].name
    if (srcs := told.srcs.get((t.id, b))) == NOT_ON_RECORD:
        return Refused(RECORD, name, None)
    if srcs is not None:
        at = next((i for j, i in enumerate(t.record.src) if srcs >> j & 1 and i >= 0), None)
        return Refused(MEMORY, name, None if at is None else plan.tensor(at))
    if not told.known:
        own = plan.backends[b].buft
        elsewhere = [s for s in t.srcs if plan.capture.buft_of(s.record) not in (-1, own)]
        if elsewhere:
            unread = [s for s in elsewhere if s.buft and not s.buft.readers >> b & 1]
            return Refused(UNKNOWN, name, (unread or elsewhere)[0])
    return Refused(OP, name, None)


def about_memory(t: PlanTensor, b: int) -> bool:
    """Whether backend `b` refuses node `t`, or may refuse it, only because of memory."""
    found = refused(t, b)
    return found is not None and found.kind != OP

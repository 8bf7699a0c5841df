"""The memory of a plan: the buffers that its graph is computed in, tensor by tensor, and what its
tensors were in before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ..trace.html import table, text_html
from ..trace.layout import EARLIER, OWN, GraphLayout
from ..trace.names import counted
from ..trace.plan_tensor import PlanTensor
from ..trace.planned import Planned, format_bytes
from ..trace.promise import MemoryRow
from ..trace.record import COPY, ComputeBufferRecord
from ..typed import typed
from .allocator import lay_out, layout_unknown
from .compute_buffer import ComputeBuffer


class HeldTensors(NamedTuple):
    """Tensors of the graph that had memory before it was planned, of one buffer type and kind."""

    buft: str
    what: str  # "weights", "KV cache", "recurrent states" (by libllama's names), or "others"
    tensors: tuple[PlanTensor, ...]  # the largest first

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, without alignment."""
        return sum(t.nbytes for t in self.tensors)


class PlanMemory:
    """The memory of a plan. `buffers` are the compute buffers; () if they are not known, and
    `unknown` says why. `held` are the tensors that were in memory before. `breakdown` has the sizes
    of all buffers of a model's context, if the plan is a model's."""

    def __init__(self, plan: Planned) -> None:
        self.plan = plan
        self.breakdown: tuple[MemoryRow, ...] = plan.breakdown

    def __repr__(self) -> str:
        sizes = ", ".join(f"{b.name} {b.size:,}" for b in self.buffers) or self.unknown
        return f"<PlanMemory {sizes}>"

    def _repr_html_(self) -> str:
        """A row for each compute buffer, and for the tensors that the graph uses besides."""
        rows = [[b.name, "compute", format_bytes(b.size), f"at most {format_bytes(b.peak)} alive"]
                for b in self.buffers if b.size]  # fmt: skip
        rows += [[h.buft, h.what, format_bytes(h.nbytes), counted(len(h.tensors), "tensor")]
                 for h in self.held]  # fmt: skip
        return text_html(self.unknown or self.note or repr(self)) + table(
            ["buffer type", "of", "size", ""], rows
        )

    @cached_property
    def layout(self) -> GraphLayout | None:
        """The places of the graph's tensors: ggml's own layout, or a layout by its rules for a plan
        that no ggml laid out. None if it is not known."""
        if self.plan.layout is not None:
            return self.plan.layout
        return None if layout_unknown(self.plan) else lay_out(self.plan)

    @property
    def unknown(self) -> str:
        """Why `buffers` are not known, in a sentence; "" if they are."""
        return "" if self.layout is not None else layout_unknown(self.plan)

    @property
    def note(self) -> str:
        """The origin of the layout, in a sentence; "" if ggml made it for this very graph."""
        layout = self.layout
        if layout is None or layout.laid_out == OWN:
            return ""
        if layout.laid_out == EARLIER:
            return (
                "the graph has its places in a layout that was made for a larger graph before: "
                "tensors have at least the room that they need"
            )
        devices = {b.device_type for b in self.plan.backends} - {"CPU", "ACCEL"}
        guess = (
            "; a tensor on another device than before is taken to need its nbytes, and its backend"
            " may ask for more"
        )
        return "computed from ggml's rules, not by ggml" + (guess if devices else "")

    @cached_property
    def steps(self) -> tuple[PlanTensor | None, ...]:
        """The tensor of each step: a node that is computed, or the source of the copy in the next
        step, which is kept. None: it is in the layout's own graph only."""
        order = () if self.layout is None else self.layout.order
        ids = (id if id >= 0 else -2 - id for id in order)
        return tuple(self.plan.tensor(id) if id >= 0 else None for id in ids)

    @cached_property
    def buffers(self) -> tuple[ComputeBuffer, ...]:
        """The compute buffers, in the order of the backends."""
        if (layout := self.layout) is None:
            return ()
        return tuple(self._buffer(record, layout) for record in self.plan.capture.compute_buffers)

    def _buffer(self, record: ComputeBufferRecord, layout: GraphLayout) -> ComputeBuffer:
        of, plan = self.plan.backends[record.backend], self.plan
        return ComputeBuffer(
            record, layout, plan.capture.bufts[of.buft].name,
            tuple(b.name for b in plan.backends if b.buft == of.buft), of.device,
            lambda id: plan.tensors[id].name,
        )  # fmt: skip

    @cached_property
    def live(self) -> tuple[Mapping[str, int], ...]:
        """Bytes alive in each compute buffer, by its name, while each node of `plan.order` is
        computed; () if the layout is not known."""
        if (layout := self.layout) is None:
            return ()
        at = {id: step for step, id in enumerate(layout.order)}
        return tuple(
            {buffer.name: buffer.live[at[node.id]] for buffer in self.buffers}
            for node in self.plan.order or ()
        )

    @typed
    def buffer(self, name: str) -> ComputeBuffer:
        """A compute buffer by its buffer type, backend or device. Raises KeyError with the
        names."""
        for found in self.buffers:
            if name in (found.name, found.device, *found.backends):
                return found
        names = ", ".join(b.name for b in self.buffers) or "none are known"
        raise KeyError(f"no compute buffer {name!r}: {names}")

    @cached_property
    def held(self) -> tuple[HeldTensors, ...]:
        """The graph's tensors that had memory before it was planned, by buffer type and content."""
        groups: dict[tuple[str, str], list[PlanTensor]] = {}
        for record in self.plan.capture.tensors:
            if record.buffer >= 0 and record.view_src < 0:
                buffer = self.plan.buffers[record.buffer]
                what = "weights" if buffer.usage == "weights" else _what(record.name)
                key = (self.plan.capture.bufts[buffer.buft].name, what)
                groups.setdefault(key, []).append(self.plan.tensor(record.id))
        return tuple(
            HeldTensors(*key, tuple(sorted(tensors, key=lambda t: (-t.nbytes, t.id))))
            for key, tensors in groups.items()
        )

    @typed
    def what(self, step: int) -> str:
        """What happens at a step, in a few words: "MUL_MAT 'Qcur-0'", "copy of 'inp'"."""
        if self.layout is None or not 0 <= step < len(self.layout.order):
            return "nothing"
        t = self.steps[step]
        if t is None:
            return "a node of the graph that the layout was made for"
        if self.layout.order[step] < 0 or t.record.kind == COPY:
            source = self.plan.tensor(t.placement.copy_of) if t.record.kind == COPY else t
            return f"copy of '{source.name}'"
        return f"{t.record.op_desc} '{t.name}'"

    def to_dict(self) -> dict[str, Any]:
        """All of it as data that `json` can write."""
        return {
            "unknown": self.unknown or None,
            "note": self.note or None,
            "breakdown": [row._asdict() for row in self.breakdown],
            "steps": [self.what(i) for i in range(len(self.steps))],
            "buffers": [buffer.to_dict() for buffer in self.buffers],
            "held": [
                {"buft": h.buft, "what": h.what, "nbytes": h.nbytes, "tensors": _sizes(h.tensors)}
                for h in self.held
            ],
        }


def _sizes(tensors: Sequence[PlanTensor]) -> list[dict[str, Any]]:
    return [{"name": t.name, "type": t.type, "ne": list(t.ne), "nbytes": t.nbytes} for t in tensors]


# C++: llama_kv_cache (with a tag for each cache of a model that has several),
# llama_memory_recurrent
_NAMES = {
    "KV cache": re.compile(r"cache_\w*[kv]_l\d+"),
    "recurrent states": re.compile(r"cache_[rs]_l\d+"),
}


def _what(name: str) -> str:
    return next((what for what, names in _NAMES.items() if names.fullmatch(name)), "others")


def memory_of(plan: Planned) -> PlanMemory:
    """The memory of a plan, made once."""
    found: PlanMemory = plan.derived(PlanMemory)
    return found

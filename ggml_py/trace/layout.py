"""The decisions of ggml's graph allocator about the memory of a planned graph: plain data.

The allocator goes through the graph once. Each tensor gets the first free place that fits best, or
the place of an operand that no later node reads. After the last node that reads a tensor its place
is free. C: ggml_gallocr_reserve_n
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from .fields import About, BackendIndex, PlannedId, PlannedIdOrNone

ALLOC, REUSE, TRIM, FREE = KINDS = ("alloc", "reuse", "trim", "free")
OWN, EARLIER, REFERENCE = LAID_OUT = ("own", "earlier", "reference")
DeviceBytes = Annotated[int, About(low=0, end=1 << 52)]


class LayoutEvent(NamedTuple):
    """One decision about a tensor's place. "alloc" gives it a place, and "reuse" the place of `of`.
    "trim" frees the end of that place, because the tensor is smaller. "free" ends its use."""

    kind: Annotated[str, About(one_of=KINDS)]
    step: int  # index into `GraphLayout.order`; -1: before all nodes
    tensor: PlannedId
    of: PlannedIdOrNone  # id of the operand; -1: none
    backend: BackendIndex  # index into Capture.backends: the first one with this buffer type
    # Of the buffer: a buffer type with a largest size may need several (GGML_VBUFFER_MAX_CHUNKS).
    chunk: Annotated[int, About(low=0, end=16)]
    offset: DeviceBytes  # in the chunk
    size: DeviceBytes  # before they are rounded up to the alignment


class GraphLayout(NamedTuple):
    """The layout of one graph.

    `order` has the ids of the nodes of the graph that is allocated, copies among them, as they are
    computed. -2 - id stands for upstream's marks that keep a tensor until then.
    """

    # "own"; "earlier": for a larger graph before; "reference": computed by us
    laid_out: Annotated[str, About(one_of=LAID_OUT)]
    order: tuple[int, ...]
    events: tuple[LayoutEvent, ...]

"""What ggml's graph allocator decided about the memory of a planned graph: plain data.

It goes through the graph once. Each tensor gets the first free place that fits best, or the place
of an operand that no later node reads; after the last node that reads a tensor its place is free.
C: ggml_gallocr_reserve_n
"""

from __future__ import annotations

from typing import NamedTuple

ALLOC, REUSE, TRIM, FREE = KINDS = ("alloc", "reuse", "trim", "free")
OWN, EARLIER, REFERENCE = LAID_OUT = ("own", "earlier", "reference")


class LayoutEvent(NamedTuple):
    """One decision. The tensor gets a place ("alloc"), gets the place of `of` ("reuse"), leaves the
    end of that place free because it is smaller ("trim"), or is not needed any more ("free")."""

    kind: str
    step: int  # index into `GraphLayout.order`; -1: before all nodes
    tensor: int  # id
    of: int  # id of the operand; -1: none
    backend: int  # index into Capture.backends: the first one with this buffer type
    chunk: int  # of the buffer: a buffer type with a largest size may need several
    offset: int  # bytes in the chunk
    size: int  # bytes, before they are rounded up to the alignment


class GraphLayout(NamedTuple):
    """The layout of one graph.

    `order` has the ids of the nodes of the graph that is allocated, copies among them, as they are
    computed. -2 - id stands for upstream's marks that keep a tensor until then.
    """

    laid_out: str  # "own"; "earlier": for a larger graph before; "reference": computed by us
    order: tuple[int, ...]
    events: tuple[LayoutEvent, ...]

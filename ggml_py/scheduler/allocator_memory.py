"""What a `GraphAllocator` did with its memory, tensor by tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..backends.buffer import BufferType
from ..boundary.arguments import ptr_of
from ..boundary.ffi import NULL, ffi, lib
from ..boundary.uses import reading
from ..errors import ArgumentError
from ..graphs.alloc import GraphAllocator
from ..graphs.graph import Graph
from ..memory import ComputeBuffer
from ..tensors.tensor import Tensor
from ..trace.layout import KINDS, OWN, GraphLayout, LayoutEvent
from ..trace.record import ComputeBufferRecord
from ..typed import typed


class AllocatorMemory(NamedTuple):
    """The last layout that a `GraphAllocator` made. Ids of tensors are their places in the graph:
    nodes, then leafs."""

    buffers: tuple[ComputeBuffer, ...]  # one for each different buffer type
    tensors: tuple[str, ...]  # names, by id

    @typed
    def buffer(self, name: str) -> ComputeBuffer:
        """A compute buffer by its buffer type. Raises KeyError with the names."""
        for found in self.buffers:
            if found.name == name:
                return found
        raise KeyError(f"no compute buffer {name!r}: {', '.join(b.name for b in self.buffers)}")

    def to_dict(self) -> dict[str, Any]:
        """All of it as data that `json` can write."""
        return {
            "tensors": list(self.tensors),
            "buffers": [buffer.to_dict() for buffer in self.buffers],
        }


def allocator_memory(allocator: GraphAllocator, graph: Graph) -> AllocatorMemory:
    """The place and lifetime of each tensor in the layout that `allocator` made last, which was for
    `graph`: by `reserve`, or by `alloc_graph`.

    Raises `ArgumentError` if it has made none, or one for a graph with other counts.
    C: ggml_gallocr_reserve_n
    """
    raw, _graph = ptr_of(GraphAllocator, allocator), ptr_of(Graph, graph)
    counts = ffi.new("int32_t[2]")
    with reading(allocator):
        n = lib.gp_layout_read(raw, NULL, 0, counts, counts + 1)
        if n < 0:
            raise ArgumentError(
                f"{allocator!r} has laid nothing out: first reserve() or alloc_graph()"
            )
        rows = ffi.new("struct gp_layout_record[]", max(n, 1))
        lib.gp_layout_read(raw, rows, n, counts, counts + 1)
    if (counts[0], counts[1]) != (graph.n_nodes, graph.n_leafs):
        raise ArgumentError(
            f"the layout is for {counts[0]} nodes and {counts[1]} leafs, and the graph has "
            f"{graph.n_nodes} and {graph.n_leafs}: give the graph that was laid out last"
        )
    tensors = (*graph.nodes, *graph.leafs)
    for row in rows[0:n]:
        buft = allocator.buffer_types[row.backend]
        if row.kind == lib.GP_LAYOUT_ALLOC and _alloc_size(buft, tensors[row.tensor]) != row.size:
            raise ArgumentError(
                f"the layout is for another graph: it has {row.size:,} bytes for "
                f"'{tensors[row.tensor].name}'; give the graph that was laid out last"
            )
    bufts = allocator.buffer_types
    first = [bufts.index(buft) for buft in bufts]
    events = tuple(
        LayoutEvent(
            KINDS[row.kind], row.step, row.tensor, row.of, first[row.backend], row.chunk,
            row.offset, row.size,
        )
        for row in rows[0:n]
    )  # fmt: skip
    names = tuple(tensor.name for tensor in tensors)
    layout = GraphLayout(OWN, tuple(range(graph.n_nodes)), events)
    return AllocatorMemory(
        tuple(
            ComputeBuffer(
                ComputeBufferRecord(i, buft.alignment, buft.max_size), layout, buft.name,
                (buft.name,), "" if buft.device is None else buft.device.name, names.__getitem__,
            )
            for i, buft in enumerate(bufts)
            if first[i] == i
        ),
        names,
    )  # fmt: skip


def _alloc_size(buft: BufferType, tensor: Tensor) -> int:
    return int(lib.ggml_backend_buft_get_alloc_size(buft.ptr, tensor.ptr))

"""The graph allocator's rules in Python: the specification, and the layout of plans that no ggml
laid out, such as those of `Plan.what_if`. C: ggml_gallocr_alloc_graph_impl
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..trace.layout import ALLOC, FREE, REFERENCE, REUSE, TRIM, GraphLayout, LayoutEvent
from ..trace.planned import Planned
from ..trace.record import COPY, TensorRecord
from ..trace.rules import parse_version, rules_of
from .tensor_bytes import padded

MAX_CHUNKS = 16  # GGML_VBUFFER_MAX_CHUNKS
_ENDLESS = (1 << 63) - 1  # SIZE_MAX / 2
_MAX_SRC = 10  # GGML_MAX_SRC

# C: ggml_op_can_inplace. Unary ops that have an op of their own count as UNARY.
_IN_PLACE = frozenset({
    "SCALE", "DIAG_MASK_ZERO", "DIAG_MASK_INF", "ADD", "ADD_ID", "ADD1", "SUB", "MUL", "DIV", "SQR",
    "SQRT", "LOG", "UNARY", "ROPE", "ROPE_BACK", "SILU_BACK", "RMS_NORM", "RMS_NORM_BACK",
    "SOFT_MAX", "SOFT_MAX_BACK",
})  # fmt: skip
_IN_PLACE_SINCE = {"FILL": (0, 9, 5), "CLAMP": (0, 22)}


class CannotLayOutError(ValueError):
    """Upstream's allocator would abort, or something that it looks at is not known."""


def lay_out(plan: Planned) -> GraphLayout:
    """The layout that ggml's graph allocator makes for a planned graph.

    A tensor takes its `nbytes`, unless the plan says that its backend asks for more. Raises
    `CannotLayOutError` for a plan of which too little is known (`layout_unknown`).
    """
    if why := layout_unknown(plan):
        raise CannotLayOutError(why)
    return _Allocator(plan).run()


def layout_unknown(plan: Planned) -> str:
    """Why `lay_out` cannot be answered, in a sentence; "" if it can."""
    if plan.capture.source != "scheduler":
        return f"a {plan.capture.source} does not say what the graph allocator looks at"
    if not plan.capture.compute_buffers:
        return "the plan was saved by a version that did not record the backends' alignment"
    first = {backend.buft: b for b, backend in reversed([*enumerate(plan.backends)])}
    known = {record.backend for record in plan.capture.compute_buffers}
    if lacking := [plan.backends[b].name for b in first.values() if b not in known]:
        return f"the alignment of the memory of {', '.join(lacking)} is not known"
    if plan.order is None:
        return "a backend changes the order of its nodes, and that order is not known"
    for t in (*plan.leafs, *plan.nodes):
        if t.placement.backend < 0 and t.record.buffer < 0 and t.record.view_src < 0:
            return f"'{t.name}' has no backend, so ggml's allocator aborts"
    return ""


class AllocStep(NamedTuple):
    """A node of the graph that is allocated."""

    id: int  # -2 - id: a mark, which keeps its sources until then
    src: tuple[int, ...]
    backend: int


def steps(plan: Planned) -> Iterator[AllocStep]:
    """The graph that is allocated: each split's copies, then its nodes as they are computed, with
    marks. C: the end of ggml_backend_sched_split_graph"""
    placed = plan.outcome.placements
    for split in plan.splits:
        backend = plan.split_records[split.index].backend
        kept: dict[int, list[int]] = {}
        for dep in split.alloc_deps or ():
            kept.setdefault(dep.until.id, []).append(dep.tensor.id)
        for source, copy in plan.split_records[split.index].inputs:
            yield AllocStep(-2 - source, (source,), placed[source].backend)
            yield AllocStep(copy, (), backend)
        for node in split.order or ():
            yield AllocStep(node.id, placed[node.id].planned_src, placed[node.id].backend)
            keep = kept.get(node.id, [])
            for i in range(0, len(keep), _MAX_SRC):
                yield AllocStep(-2 - keep[i], tuple(keep[i : i + _MAX_SRC]), backend)


class _Chunk:
    """A stretch of memory: its free blocks, by offset."""

    def __init__(self, size: int) -> None:
        self.free = [(0, size)]  # offset, size
        self.max_size = 0


class _Memory:
    """One compute buffer while it is laid out. C: struct ggml_dyn_tallocr"""

    def __init__(self, alignment: int, max_size: int) -> None:
        self.alignment = alignment
        self._max = min(max_size, _ENDLESS)
        self._chunks: list[_Chunk] = []

    def take(self, size: int) -> tuple[int, int]:
        """The chunk and the offset of the smallest free block that has room. The last block of a
        chunk, which may make it grow, is used only if no other has room."""
        size = padded(size, self.alignment)
        found = (-1, -1)
        for c, chunk in enumerate(self._chunks):
            best_here = -1  # upstream starts again in each chunk
            for i, (_offset, room) in enumerate(chunk.free[:-1]):
                if room >= size and (best_here < 0 or room <= best_here):
                    found, best_here = (c, i), room
        if found[1] < 0:
            best_reuse: int | None = None
            for c, chunk in enumerate(self._chunks):
                if not chunk.free:
                    continue
                offset, room = chunk.free[-1]
                reuse = chunk.max_size - offset - size  # < 0: bytes that it grows by
                better = best_reuse is None or (
                    reuse > best_reuse if best_reuse < 0 else 0 <= reuse < best_reuse
                )
                if room >= size and better:
                    found, best_reuse = (c, len(chunk.free) - 1), reuse
        if found[1] < 0:
            found = (self._grow(size), 0)
        return self._cut(*found, size)

    def _grow(self, size: int) -> int:
        n = len(self._chunks)
        if n >= MAX_CHUNKS:
            raise CannotLayOutError(f"a tensor of {size:,} bytes has no room in {n} chunks")
        self._chunks.append(_Chunk(_ENDLESS if n == MAX_CHUNKS - 1 else max(size, self._max)))
        return n

    def _cut(self, c: int, i: int, size: int) -> tuple[int, int]:
        chunk = self._chunks[c]
        offset, room = chunk.free[i]
        chunk.free[i : i + 1] = [(offset + size, room - size)] if room != size else []
        chunk.max_size = max(chunk.max_size, offset + size)
        return c, offset

    def give_back(self, c: int, offset: int, size: int) -> None:
        """Frees bytes. They join the first free block that they touch, and this block the one
        behind or before it. Places of 0 bytes may leave blocks that touch and stay apart."""
        free, size = self._chunks[c].free, padded(size, self.alignment)
        for i, (at, room) in enumerate(free):
            if at + room == offset:
                free[i] = at, room + size
                if i + 1 < len(free) and sum(free[i]) == free[i + 1][0]:
                    free[i : i + 2] = [(at, room + size + free[i + 1][1])]
                return
            if offset + size == at:
                free[i] = offset, room + size
                if i and sum(free[i - 1]) == offset:
                    free[i - 1 : i + 1] = [(free[i - 1][0], free[i - 1][1] + room + size)]
                return
        free.insert(sum(at < offset for at, _room in free), (offset, size))


class _Allocator:
    """C: struct ggml_gallocr"""

    def __init__(self, plan: Planned) -> None:
        self.plan = plan
        self.records: tuple[TensorRecord, ...] = plan.tensors
        self.steps = tuple(steps(plan))
        bufts = [backend.buft for backend in plan.backends]
        self.first = [bufts.index(buft) for buft in bufts]  # backends that share a buffer type
        self.memory = {
            b.backend: _Memory(b.alignment, b.max_size) for b in plan.capture.compute_buffers
        }
        self.sizes = {(s.tensor, s.backend): s.size for s in plan.capture.alloc_sizes}
        self.n_children = [0] * len(self.records)
        self.n_views = [0] * len(self.records)
        self.places: dict[int, tuple[int, int, int]] = {}  # backend, chunk, offset
        self.allocated: set[int] = set()  # and not freed or handed on
        self.events: list[LayoutEvent] = []
        self.step = -1
        version = parse_version(plan.settings.upstream)
        self.in_place = _IN_PLACE | {op for op, v in _IN_PLACE_SINCE.items() if version >= v}
        self.inputs = _graph_inputs(plan)
        # Each is the current one of its copies, which upstream marks as outputs.
        outputs = (t.id for t in plan.tensors if "output" in t.flags)
        self.is_output = {*outputs, *self.inputs}
        # ggml_py's own builds never write the result of ADD_ID over its second operand.
        self.upstream = plan.settings.build.endswith(("-record", "-pristine"))

    def run(self) -> GraphLayout:
        for id, backend in _leafs(self.plan, self.inputs):
            self._allocate(id, backend)
        for step in self.steps:
            is_mark = step.id < 0
            record = None if is_mark else self.records[step.id]
            if record is not None and record.view_src >= 0 and record.op != "NONE":
                self.n_views[record.view_src] += 1
            if record is not None and "input" in record.flags:
                self._allocate(step.id, step.backend)
            for source in step.src:
                if source >= 0:
                    self.n_children[source] += 1
                    if "input" in self.records[source].flags:
                        self._allocate(source, step.backend)
        for i, step in enumerate(self.steps):
            self.step = i
            sources = [source for source in step.src if source >= 0]
            for source in sources:
                self._allocate(source, step.backend)
            if step.id >= 0:
                self._allocate(step.id, step.backend, step.src)
            for source in sources:
                self._read(source)
        order = tuple(step.id for step in self.steps)
        return GraphLayout(REFERENCE, order, tuple(self.events))

    def _size(self, id: int, backend: int) -> int:
        record = self.records[id]
        of = self.plan.outcome.placements[id].copy_of if record.kind == COPY else id
        return self.sizes.get((of, backend), record.nbytes)

    def _note(self, kind: str, id: int, of: int, place: tuple[int, int, int], size: int) -> None:
        self.events.append(LayoutEvent(kind, self.step, id, of, *place, size))

    def _allocate(self, id: int, backend: int, src: tuple[int, ...] = ()) -> None:
        record = self.records[id]
        if record.view_src >= 0 or record.buffer >= 0 or id in self.allocated or id in self.places:
            return
        self.allocated.add(id)
        if record.op in self.in_place and self._reuse(id, src):
            return
        b = self.first[backend]
        size = self._size(id, b)
        self.places[id] = (b, *self.memory[b].take(size))
        self._note(ALLOC, id, -1, self.places[id], size)

    def _reuse(self, id: int, src: tuple[int, ...]) -> bool:
        record = self.records[id]
        for i, source in enumerate(src):
            if source not in self.allocated or source in self.is_output:
                continue
            if record.op == "ADD_ID" and i > 0 and not self.upstream:
                continue
            other = self.records[source]
            if (record.type, record.ne, record.nb) != (other.type, other.ne, other.nb):
                continue
            if self.n_children[source] == 1 and self.n_views[source] == 0:
                self._hand_on(source, id)
                return True
        return False

    def _hand_on(self, source: int, id: int) -> None:
        b, chunk, offset = self.places[id] = self.places[source]
        self.allocated.discard(source)
        size, room = self._size(id, b), self._size(source, b)
        self._note(REUSE, id, source, self.places[id], size)
        alignment = self.memory[b].alignment
        size, room = padded(size, alignment), padded(room, alignment)
        if room > size:
            self.memory[b].give_back(chunk, offset + size, room - size)
            self._note(TRIM, id, source, (b, chunk, offset + size), room - size)

    def _read(self, source: int) -> None:
        """The current node was the last reader of `source`, if no other is left."""
        self.n_children[source] -= 1
        if self.n_children[source] or self.n_views[source]:
            return
        root = self.records[source].view_src
        if root < 0:
            self._free(source)
        else:
            self.n_views[root] -= 1
            if not self.n_views[root] and not self.n_children[root]:
                self._free(root)

    def _free(self, id: int) -> None:
        if id not in self.allocated or id in self.is_output:
            return
        self.allocated.discard(id)
        b, chunk, offset = self.places[id]
        size = self._size(id, b)
        self.memory[b].give_back(chunk, offset, size)
        self._note(FREE, id, -1, self.places[id], size)


def _graph_inputs(plan: Planned) -> tuple[int, ...]:
    """Inputs that have a copy for each graph in the pipeline, in the order of sched->graph_inputs.
    Empty without pipeline parallelism."""
    if plan.settings.n_copies == 1:
        return ()
    if rules_of(plan.settings).graph_inputs_pass == 6:
        read: Iterator[int] = iter(plan.capture.leaf_ids)
    else:
        nodes = (t.record for t in plan.nodes if not t.is_view_op)
        read = (source for record in nodes for source in record.src if source >= 0)
    return tuple(dict.fromkeys(id for id in read if "input" in plan.tensors[id].flags))


def _leafs(plan: Planned, inputs: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The leafs of the graph that is allocated, each with its backend. With pipeline parallelism
    all copies come first."""
    placed, n_copies = plan.outcome.placements, plan.settings.n_copies
    if n_copies > 1:
        copies = {
            (place.copy_of, place.backend, place.copy_index): id
            for id, place in enumerate(placed)
            if place.copy_of >= 0
        }
        needed = [(id, placed[id].backend) for id in inputs]
        needed += [(source, s.backend) for s in plan.split_records for source, _copy in s.inputs]
        for id, backend in needed:
            for c in range(n_copies):
                yield copies.get((id, backend, c), id), backend
    for id in plan.capture.leaf_ids:
        yield id, placed[id].backend

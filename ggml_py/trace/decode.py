"""Turns what native code says about a plan, arrays of records, into the data of `record`.

The arrays are those of ggml_py/native/sched_trace.h. They come from the native library of this
process, or from a file that another process wrote (`ggml_py.record`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .layout import ALLOC, EARLIER, KINDS, OWN, REUSE, GraphLayout, LayoutEvent
from .pins import llama_pins
from .record import (
    COPY,
    LEAF,
    NODE,
    OTHER,
    AllocSizeRecord,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Capture,
    ComputeBufferRecord,
    CpuRecord,
    OptimizedRecord,
    Outcome,
    PinRecord,
    Placement,
    RefusalRecord,
    Settings,
    SplitRecord,
    TensorRecord,
)

if TYPE_CHECKING:
    import numpy.typing as npt

_KINDS = (NODE, LEAF, OTHER, COPY)
_PLACED = (_KINDS.index(NODE), _KINDS.index(LEAF))  # the kinds that the passes place

Layouts = Mapping[str, "np.dtype[Any]"]  # of each struct of sched_trace.h, by its name


class Meaning(NamedTuple):
    """The meaning of numbers in records, in their release of ggml."""

    op: Callable[[int], str]
    type: Callable[[int], str]
    max_src: int  # GGML_MAX_SRC
    flags: Mapping[str, int]  # "input": the bit
    usages: Mapping[int, str]  # of buffers
    device_types: Mapping[int, str]


def columns(rows: bytes, dtype: np.dtype[Any], max_src: int = 0) -> dict[str, list[Any]]:
    """The fields of an array of records, each as a list."""
    array = np.frombuffer(rows, dtype)
    return {name: _values(array[name], max_src) for name in dtype.names or ()}


def _values(column: npt.NDArray[Any], max_src: int) -> list[Any]:
    """The column as Python values. Source ids lose the empty places at the end, but not those in
    between, so each id keeps its index."""
    values: list[Any] = column.tolist()
    if not max_src or column.shape[1:] != (max_src,):
        return values
    used = max_src - (column[:, ::-1] >= 0).argmax(1)
    used[(column < 0).all(1)] = 0
    return [tuple(ids[:n]) for ids, n in zip(values, used.tolist(), strict=True)]


def _words(values: list[bytes]) -> list[str]:
    return [v.decode("utf-8", "replace") for v in values]


class _Flags(dict[int, tuple[str, ...]]):
    """The names of each set of flags, made when it is first needed."""

    def __init__(self, meaning: Meaning) -> None:
        super().__init__()
        self._known = meaning.flags

    def __missing__(self, bits: int) -> tuple[str, ...]:
        found = tuple(name for name, bit in self._known.items() if bit & bits)
        self[bits] = found
        return found


_NO_PARAMS = [0] * 16


def _tensors(c: dict[str, list[Any]], meaning: Meaning) -> list[TensorRecord]:
    fields = (
        range(len(c["kind"])),
        [_KINDS[k] for k in c["kind"]],
        _words(c["name"]),
        map(meaning.op, c["op"]),
        _words(c["op_desc"]),
        map(meaning.type, c["type"]),
        map(tuple, c["ne"]),
        map(tuple, c["nb"]),
        c["nbytes"],
        map(_Flags(meaning).__getitem__, c["flags"]),
        [() if p == _NO_PARAMS else tuple(p) for p in c["op_params"]],
        c["src"],
        *(c[name] for name in TensorRecord._fields[TensorRecord._fields.index("view_src") :]),
    )
    return list(map(TensorRecord._make, zip(*fields, strict=True)))


def _placements(c: dict[str, list[Any]]) -> list[Placement]:
    fields = (
        c["backend"],
        _words(c["cause"]),
        c["stage"],
        [tuple(p) if k in _PLACED else () for k, p in zip(c["kind"], c["passes"], strict=True)],
        c["planned_src"],
        c["copy_of"],
        c["copy_index"],
    )
    return list(map(Placement._make, zip(*fields, strict=True)))


class Records(NamedTuple):
    """What native code says about a plan. Fields of type bytes hold arrays of records."""

    tensors: bytes
    splits: bytes
    inputs: bytes
    bufts: bytes
    buffers: bytes
    backends: bytes
    leaf_ids: tuple[int, ...]
    capacities: tuple[int, ...]
    order: tuple[int, ...]
    alloc_deps: bytes
    optimizers: int
    cpu_nodes: tuple[int, ...]
    cpu: bytes
    left_backend: int
    hash_set_used: int
    settings: Settings
    reasons: dict[int, tuple[str, str]]  # of pins, by the tensor's address
    layout: bytes = b""
    layout_order: tuple[int, ...] = ()
    layout_buffers: bytes = b""
    layout_of: int = 0  # enum gp_layout_of
    norms: str | None = None  # of a graph of libllama's: why it pins norms
    all_pins_known: bool = False  # whether a pin without a known reason is one of libllama's
    refusals: bytes | None = None  # None: a record of an older version


def _splits(rows: bytes, inputs: bytes, layouts: Layouts) -> tuple[SplitRecord, ...]:
    of = columns(inputs, layouts["gp_input_record"])
    pairs = list(zip(of["tensor"], of["copy"], strict=True))
    c = columns(rows, layouts["gp_split_record"])
    each = zip(c["backend"], c["start"], c["end"], c["first_input"], c["n_inputs"], strict=True)
    return tuple(
        SplitRecord(b, i, j, tuple(pairs[first : first + n])) for b, i, j, first, n in each
    )


def _named(names: Mapping[int, str]) -> Callable[[int], str]:
    """The name of a number; the number itself for one that has none."""
    return lambda number: names.get(number, str(number))


def _bufts(rows: bytes, layouts: Layouts) -> tuple[BuftRecord, ...]:
    c = columns(rows, layouts["gp_buft_record"])
    return tuple(map(BuftRecord, _words(c["name"]), map(bool, c["is_host"]), c["readers"]))


def _buffers(rows: bytes, layouts: Layouts, meaning: Meaning) -> tuple[BufferRecord, ...]:
    c = columns(rows, layouts["gp_buffer_record"])
    return tuple(map(BufferRecord, c["buft"], map(_named(meaning.usages), c["usage"]), c["size"]))


def _backends(rows: bytes, layouts: Layouts, meaning: Meaning) -> tuple[BackendRecord, ...]:
    c = columns(rows, layouts["gp_backend_record"])
    types = map(_named(meaning.device_types), c["device_type"])
    return tuple(map(BackendRecord, _words(c["name"]), _words(c["device"]), types, c["buft"]))


def _optimized(
    records: Records, splits: tuple[SplitRecord, ...], layouts: Layouts
) -> tuple[OptimizedRecord, ...]:
    """What backends that have a graph_optimize made of their splits."""
    if not records.optimizers:
        return ()
    c = columns(records.alloc_deps, layouts["gp_dep_record"])
    deps = list(zip(c["tensor"], c["until"], strict=True))
    found = []
    for split in splits:
        if records.optimizers >> split.backend & 1:
            order = records.order[split.start : split.end]
            kept = tuple(dep for dep in deps if split.start <= dep[1] < split.end)
            same = order == tuple(range(split.start, split.end))
            found.append(OptimizedRecord(*split[:3], () if same else order, kept))
    return tuple(found)


def _cpu(records: Records, layouts: Layouts) -> tuple[CpuRecord, ...]:
    """How nodes on CPU backends are computed."""
    c = columns(records.cpu, layouts["gp_cpu_record"])
    fused = _groups(records.cpu_nodes, c["n_fused"])
    names = [_words(c[name]) for name in ("buft", "kernel", "layout")]
    numbers = [c[name] for name in ("n_threads", "n_tasks", "work_size")]
    return tuple(map(CpuRecord, records.cpu_nodes, *numbers, *names, fused))


def _groups(nodes: tuple[int, ...], n_fused: list[int]) -> list[tuple[int, ...]]:
    """For each node the group that it is fused into; () for a node that is computed alone."""
    found: list[tuple[int, ...]] = [()] * len(nodes)
    for i, n in enumerate(n_fused):
        if n:
            found[i : i + n + 1] = [nodes[i : i + n + 1]] * (n + 1)
    return found


def read(
    records: Records, layouts: Layouts, meaning: Meaning
) -> tuple[Capture, Outcome, GraphLayout | None]:
    """The graph, its plan, and what the graph allocator decided (None: not known), as Python
    objects."""
    c = columns(records.tensors, layouts["gp_tensor_record"], meaning.max_src)
    tensors = _tensors(c, meaning)
    n = c["kind"].index(_KINDS.index(COPY)) if tensors[-1].kind == COPY else len(tensors)
    splits = _splits(records.splits, records.inputs, layouts)
    layout = _layout(records, layouts)
    backends = _backends(records.backends, layouts, meaning)
    capture = Capture(
        records.settings,
        backends,
        _bufts(records.bufts, layouts),
        _buffers(records.buffers, layouts, meaning),
        tuple(tensors[:n]),
        records.leaf_ids,
        tuple((i, pin) for i, pin in enumerate(c["dropped_pin"]) if pin >= 0),
        records.capacities,
        records.left_backend,
        records.optimizers,
        _optimized(records, splits, layouts),
        _cpu(records, layouts),
        _pins(records, c, tensors[:n], len(backends) - 1),
        _compute_buffers(records, layouts),
        _alloc_sizes(tensors[:n], layout),
        _refusals(records, layouts),
    )
    placements = tuple(_placements(c))
    return capture, Outcome(placements, tuple(tensors[n:]), splits, records.hash_set_used), layout


def _pins(
    records: Records, c: dict[str, list[Any]], tensors: list[TensorRecord], last: int
) -> tuple[PinRecord, ...]:
    """The pins whose reasons are known."""
    if records.norms is not None:
        return llama_pins(tensors, last, records.norms, records.all_pins_known)
    return tuple(
        PinRecord(i, *records.reasons[address])
        for i, (address, pin) in enumerate(zip(c["addr"], c["pin"], strict=True))
        if pin >= 0 and address in records.reasons
    )


def _refusals(records: Records, layouts: Layouts) -> tuple[RefusalRecord, ...] | None:
    if records.refusals is None:
        return None
    if not records.refusals:
        return ()
    c = columns(records.refusals, layouts["gp_refusal_record"])
    return tuple(map(RefusalRecord, c["tensor"], c["backend"], c["srcs"]))


_LAID_OUT = (None, OWN, EARLIER)  # enum gp_layout_of


def _layout(records: Records, layouts: Layouts) -> GraphLayout | None:
    if (laid_out := _LAID_OUT[records.layout_of]) is None:
        return None
    c = columns(records.layout, layouts["gp_layout_record"])
    fields = ("step", "tensor", "of", "backend", "chunk", "offset", "size")
    events = map(LayoutEvent, [KINDS[k] for k in c["kind"]], *(c[name] for name in fields))
    return GraphLayout(laid_out, records.layout_order, tuple(events))


def _compute_buffers(records: Records, layouts: Layouts) -> tuple[ComputeBufferRecord, ...]:
    if not records.layout_buffers:
        return ()
    c = columns(records.layout_buffers, layouts["gp_layout_buffer_record"])
    return tuple(map(ComputeBufferRecord, c["backend"], c["alignment"], c["max_size"]))


def _alloc_sizes(
    tensors: list[TensorRecord], layout: GraphLayout | None
) -> tuple[AllocSizeRecord, ...]:
    """Of a layout made for an earlier graph the sizes are that graph's, so they say nothing."""
    if layout is None or layout.laid_out != OWN:
        return ()
    return tuple(
        AllocSizeRecord(event.tensor, event.backend, event.size)
        for event in layout.events
        if event.kind in (ALLOC, REUSE)
        and event.tensor < len(tensors)
        and event.size != tensors[event.tensor].nbytes
    )

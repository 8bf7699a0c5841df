"""Turns native code's arrays of records about a plan into the data of `record`.

The arrays are those of ggml_py/native/sched_trace.h. They come from the native library of this
process, or from a file that another process wrote (`ggml_py.record`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .fields import RecordField, fields_of, plain, record_in
from .layout import ALLOC, EARLIER, OWN, REUSE, GraphLayout, LayoutEvent
from .pins import llama_pins
from .record import (
    COPY,
    LEAF,
    NODE,
    TENSOR_KINDS,
    AllocSizeRecord,
    Capture,
    CpuRecord,
    OptimizedRecord,
    Outcome,
    PinRecord,
    Placement,
    Settings,
    SplitRecord,
    TensorRecord,
)
from .structs import Columns, Rows, StructLayout, numbers

if TYPE_CHECKING:
    from .recorded import RunEvent

_PLACED = (TENSOR_KINDS.index(NODE), TENSOR_KINDS.index(LEAF))  # the kinds that the passes place

Layouts = Mapping[str, StructLayout]  # of each struct of sched_trace.h, by its name

# The struct of each array of struct gp_plan; the others are numbers.
_STRUCTS = {
    "tensors": "gp_tensor_record", "splits": "gp_split_record", "inputs": "gp_input_record",
    "bufts": "gp_buft_record", "buffers": "gp_buffer_record", "backends": "gp_backend_record",
    "alloc_deps": "gp_dep_record", "cpu": "gp_cpu_record", "refusals": "gp_refusal_record",
    "layout": "gp_layout_record", "layout_buffers": "gp_layout_buffer_record",
}  # fmt: skip


class Meaning(NamedTuple):
    """The meaning of numbers in records, in their release of ggml."""

    op: Callable[[int], str]
    type: Callable[[int], str]
    max_src: int  # GGML_MAX_SRC
    flags: Mapping[str, int]  # "input": the bit
    usages: Mapping[int, str]  # of buffers
    device_types: Mapping[int, str]

    @property
    def names(self) -> dict[str, Callable[[int], Any]]:
        """The name of a number, by the field that has it."""
        return {
            "op": self.op, "type": self.type, "flags": _Flags(self.flags).__getitem__,
            "usage": _named(self.usages), "device_type": _named(self.device_types),
        }  # fmt: skip


class _Flags(dict[int, tuple[str, ...]]):
    """The names of each set of flags, made when it is first needed."""

    def __init__(self, known: Mapping[str, int]) -> None:
        super().__init__()
        self._known = known

    def __missing__(self, bits: int) -> tuple[str, ...]:
        found = tuple(name for name, bit in self._known.items() if bit & bits)
        self[bits] = found
        return found


def _named(names: Mapping[int, str]) -> Callable[[int], str]:
    """The name of a number; the number itself for one that has none."""
    return lambda number: names.get(number, str(number))


class Records(NamedTuple):
    """What native code says about a plan: the numbers and arrays of struct gp_plan, by name."""

    numbers: Mapping[str, int]
    arrays: Mapping[str, bytes]
    upstream: str  # ggml version
    build: str
    reasons: Mapping[int, tuple[str, str]]  # of pins, by the tensor's address
    norms: str | None = None  # of a graph of libllama's: why it pins norms
    all_pins_known: bool = False  # whether a pin without a known reason is one of libllama's


def _sources(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Source ids without the empty places at the end. Those in between stay, so each id keeps its
    index."""
    n = len(ids)
    while n and ids[n - 1] < 0:
        n -= 1
    return ids[:n]


def rows_of(
    record: Any,
    columns: Columns,
    names: Mapping[str, Callable[[int], Any]] | None = None,
    **given: Iterable[Any],
) -> tuple[Any, ...]:
    """The rows of the C structs with these columns as records. `given` has columns that no C member
    has as it is. A field with `About.since` has its default if the C struct, of an older record,
    lacks the member. Raises KeyError for other members that are missing.
    """
    n = len(next(iter(columns.values()), ()))
    found: list[Iterable[Any]] = []
    for field in fields_of(record):
        if field.name in given:
            found.append(given[field.name])
        elif field.c in columns or not field.about.since:
            found.append(_column(field, columns[field.c], names or {}))
        else:
            found.append([field.default] * n)
    return tuple(map(record._make, zip(*found, strict=True)))


def _column(
    field: RecordField, values: list[Any], names: Mapping[str, Callable[[int], Any]]
) -> Iterable[Any]:
    """Values of a C member as the field has them."""
    one_of = field.about.one_of
    if values and type(values[0]) is bytes:
        return [v.decode("utf-8", "replace") for v in values]
    if one_of:
        return [one_of[v] for v in values]
    if field.name in names:
        return map(names[field.name], values)
    if plain(field.hint) is bool:
        return map(bool, values)
    return values


def read(
    records: Records, layouts: Layouts, meaning: Meaning
) -> tuple[Capture, Outcome, GraphLayout | None]:
    """The graph, its plan, and what the graph allocator decided (None: not known), as Python
    objects."""
    return _Reading(records, layouts, meaning).result()


_NO_PARAMS = (0,) * 16
_LAID_OUT = (None, OWN, EARLIER)  # enum gp_layout_of


class _Reading:
    """Turns the records of one plan into Python objects."""

    def __init__(self, records: Records, layouts: Layouts, meaning: Meaning) -> None:
        self._records, self._layouts = records, layouts
        self._numbers, self._arrays = records.numbers, records.arrays
        self._names, self._max_src = meaning.names, meaning.max_src

    def result(self) -> tuple[Capture, Outcome, GraphLayout | None]:
        c = self._columns("tensors", self._max_src)
        every = self._tensors(c)
        n = c["kind"].index(TENSOR_KINDS.index(COPY)) if every[-1].kind == COPY else len(every)
        tensors, splits, layout = every[:n], self._splits(), self._layout()
        (settings,) = self._rows_of(
            Settings, {name: [number] for name, number in self._numbers.items()},
            upstream=[self._records.upstream], build=[self._records.build],
        )  # fmt: skip
        capture = self._capture(
            settings=settings,
            tensors=tensors,
            dropped_pins=tuple((i, pin) for i, pin in enumerate(c["dropped_pin"]) if pin >= 0),
            optimized=self._optimized(splits),
            cpu=self._cpu(),
            pins=self._pins(c, tensors),
            alloc_sizes=_alloc_sizes(tensors, layout),
        )
        outcome = Outcome(self._placements(c), every[n:], splits, self._numbers["hash_set_used"])
        return capture, outcome, layout

    def _capture(self, **values: Any) -> Capture:
        """The capture; what is not among `values` is as native code has it."""
        for field in fields_of(Capture):
            if field.name in values:
                continue
            if field.c in self._numbers:
                values[field.name] = self._numbers[field.c]
            elif field.c in self._arrays:
                record = record_in(field.hint)
                values[field.name] = self._rows(record, field.c) if record else self._ids(field.c)
        return Capture(**values)

    # --- arrays

    def _columns(self, name: str, max_src: int = 0) -> Columns:
        rows = Rows(self._layouts[_STRUCTS[name]], self._arrays[name])
        columns = rows.columns()
        for member in rows.layout.members if max_src else ():
            if member.values == max_src:
                columns[member.name] = [*map(_sources, columns[member.name])]
        return columns

    def _ids(self, name: str) -> tuple[int, ...]:
        return numbers(self._arrays[name])

    def _rows_of(self, record: Any, columns: Columns, **given: Iterable[Any]) -> tuple[Any, ...]:
        return rows_of(record, columns, self._names, **given)

    def _rows(self, record: Any, name: str, **given: Iterable[Any]) -> tuple[Any, ...]:
        if not self._arrays[name]:  # an older record may lack the struct, too
            return ()
        return self._rows_of(record, self._columns(name), **given)

    # --- tables that have more than one array, or need a second look

    def _tensors(self, c: Columns) -> tuple[TensorRecord, ...]:
        params = [() if p == _NO_PARAMS else p for p in c["op_params"]]
        return self._rows_of(TensorRecord, c, id=range(len(params)), op_params=params)

    def _placements(self, c: Columns) -> tuple[Placement, ...]:
        pairs = zip(c["kind"], c["passes"], strict=True)
        passes = [p if kind in _PLACED else () for kind, p in pairs]
        return self._rows_of(Placement, c, passes=passes)

    def _splits(self) -> tuple[SplitRecord, ...]:
        of, c = self._columns("inputs"), self._columns("splits")
        pairs = list(zip(of["tensor"], of["copy"], strict=True))
        ranges = zip(c["first_input"], c["n_inputs"], strict=True)
        inputs = [tuple(pairs[first : first + n]) for first, n in ranges]
        return self._rows_of(SplitRecord, c, inputs=inputs)

    def _optimized(self, splits: tuple[SplitRecord, ...]) -> tuple[OptimizedRecord, ...]:
        """What backends that have a graph_optimize made of their splits."""
        if not self._numbers["optimizers"]:
            return ()
        c, whole = self._columns("alloc_deps"), self._ids("order")
        deps = list(zip(c["tensor"], c["until"], strict=True))
        found = []
        for split in splits:
            if self._numbers["optimizers"] >> split.backend & 1:
                order = whole[split.start : split.end]
                kept = tuple(dep for dep in deps if split.start <= dep[1] < split.end)
                same = order == tuple(range(split.start, split.end))
                found.append(OptimizedRecord(*split[:3], () if same else order, kept))
        return tuple(found)

    def _cpu(self) -> tuple[CpuRecord, ...]:
        """How nodes on CPU backends are computed."""
        nodes, c = self._ids("cpu_nodes"), self._columns("cpu")
        fused: list[tuple[int, ...]] = [()] * len(nodes)
        for i, n in enumerate(c["n_fused"]):
            if n:
                fused[i : i + n + 1] = [nodes[i : i + n + 1]] * (n + 1)
        return self._rows_of(CpuRecord, c, node=nodes, fused=fused)

    def _pins(self, c: Columns, tensors: tuple[TensorRecord, ...]) -> tuple[PinRecord, ...]:
        """The pins whose reasons are known."""
        told = self._records
        if told.norms is not None:
            last = len(self._columns("backends")["name"]) - 1
            return llama_pins(tensors, last, told.norms, told.all_pins_known)
        return tuple(
            PinRecord(i, *told.reasons[address])
            for i, (address, pin) in enumerate(zip(c["addr"], c["pin"], strict=True))
            if pin >= 0 and address in told.reasons
        )

    def _layout(self) -> GraphLayout | None:
        if (laid_out := _LAID_OUT[self._numbers["layout_of"]]) is None:
            return None
        return GraphLayout(laid_out, self._ids("layout_order"), self._rows(LayoutEvent, "layout"))


def _alloc_sizes(
    tensors: tuple[TensorRecord, ...], layout: GraphLayout | None
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


def run_events(rows: Rows, scheduler: int, began: int, base: int) -> tuple[RunEvent, ...]:
    """The events of an array of struct gp_run_event. Their times begin at `began`, and `base`
    events are before them."""
    from .recorded import RunEvent

    c = rows.columns()
    return rows_of(
        RunEvent, c, scheduler=[scheduler] * len(rows),
        start=[t - began for t in c["start"]], end=[t - began for t in c["end"]],
        inside=[base + i if i >= 0 else -1 for i in c["inside"]],
    )  # fmt: skip

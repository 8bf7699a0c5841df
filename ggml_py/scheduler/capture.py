"""Reads a plan out of the native scheduler, as the plain data of `trace`."""

from __future__ import annotations

import threading
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from .. import enums
from ..boundary.ffi import BUILD, NULL, ffi, lib, text
from ..errors import MissingFunctionError
from ..plan import Plan
from ..trace.record import (
    COPY,
    LEAF,
    NODE,
    OTHER,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Capture,
    CpuRecord,
    OptimizedRecord,
    Outcome,
    PinRecord,
    Placement,
    Settings,
    SplitRecord,
    TensorRecord,
    collection_paused,
)  # fmt: skip

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graphs.graph import Graph

_KINDS = (NODE, LEAF, OTHER, COPY)
_PLACED = (_KINDS.index(NODE), _KINDS.index(LEAF))  # the kinds that the passes place


@cache
def _dtype(struct: str) -> np.dtype[Any]:
    """The numpy dtype of one of our C records, laid out as the compiler told cffi."""
    names, formats, offsets = [], [], []
    ctype = ffi.typeof(f"struct {struct}")
    for name, item in ctype.fields:
        names.append(name)
        offsets.append(item.offset)
        formats.append(_format(item.type))
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(ctype)}
    )


def _format(ctype: Any) -> Any:
    if ctype.kind == "array":
        if ctype.item.cname == "char":
            return f"S{ctype.length}"
        return (_format(ctype.item), (ctype.length,))
    kind = "u" if ctype.cname.startswith("u") else "i"
    return f"{kind}{ffi.sizeof(ctype)}"


def _columns(rows: bytes, struct: str) -> dict[str, list[Any]]:
    """The fields of an array of records, each as a list."""
    dtype = _dtype(struct)
    array = np.frombuffer(rows, dtype)
    return {name: _values(array[name]) for name in dtype.names or ()}


def _values(column: npt.NDArray[Any]) -> list[Any]:
    """The column as Python values. Source ids lose the empty places at the end, but not those in
    between, so each id keeps its index."""
    values: list[Any] = column.tolist()
    if column.shape[1:] != (_MAX_SRC,):
        return values
    used = _MAX_SRC - (column[:, ::-1] >= 0).argmax(1)
    used[(column < 0).all(1)] = 0
    return [tuple(ids[:n]) for ids, n in zip(values, used.tolist(), strict=True)]


def _words(values: list[bytes]) -> list[str]:
    return [v.decode("utf-8", "replace") for v in values]


@cache
def _op_name(op: int) -> str:
    return text(lib.ggml_op_name(op))


@cache
def _type_name(type_: int) -> str:
    return text(lib.ggml_type_name(type_))


@cache
def _flags(flags: int) -> tuple[str, ...]:
    return tuple(f.name.lower() for f in enums.TensorFlag if f.value & flags and f.name)


@cache
def _usage(usage: int) -> str:
    return enums.BackendBufferUsage(usage).name.lower()


_NO_PARAMS = [0] * 16
_MAX_SRC = lib.GGML_MAX_SRC


def _tensors(c: dict[str, list[Any]]) -> list[TensorRecord]:
    columns = (
        range(len(c["kind"])),
        [_KINDS[k] for k in c["kind"]],
        _words(c["name"]),
        map(_op_name, c["op"]),
        _words(c["op_desc"]),
        map(_type_name, c["type"]),
        map(tuple, c["ne"]),
        map(tuple, c["nb"]),
        c["nbytes"],
        map(_flags, c["flags"]),
        [() if p == _NO_PARAMS else tuple(p) for p in c["op_params"]],
        c["src"],
        *(c[name] for name in TensorRecord._fields[TensorRecord._fields.index("view_src") :]),
    )
    return list(map(TensorRecord._make, zip(*columns, strict=True)))


def _placements(c: dict[str, list[Any]]) -> list[Placement]:
    columns = (
        c["backend"],
        _words(c["cause"]),
        c["stage"],
        [tuple(p) if k in _PLACED else () for k, p in zip(c["kind"], c["passes"], strict=True)],
        c["planned_src"],
        c["copy_of"],
        c["copy_index"],
    )
    return list(map(Placement._make, zip(*columns, strict=True)))


class _Records(NamedTuple):
    """A copy of what native code says about a plan. Fields of type bytes hold arrays of records."""

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


def _copied(plan: Any, reasons: dict[int, tuple[str, str]]) -> _Records:
    settings = Settings(
        upstream=BUILD["ggml_version"],
        build=BUILD["key"],
        op_offload=bool(plan.op_offload),
        n_copies=plan.n_copies,
        cur_copy=plan.cur_copy,
        hash_set_size=plan.hash_set_size,
        pins_elsewhere=plan.n_pins_elsewhere,
    )
    return _Records(
        _rows(plan.tensors, plan.n_tensors, "gp_tensor_record"),
        _rows(plan.splits, plan.n_splits, "gp_split_record"),
        _rows(plan.inputs, plan.n_inputs, "gp_input_record"),
        _rows(plan.bufts, plan.n_bufts, "gp_buft_record"),
        _rows(plan.buffers, plan.n_buffers, "gp_buffer_record"),
        _rows(plan.backends, plan.n_backends, "gp_backend_record"),
        _numbers(plan.leafs, plan.n_leafs),
        _numbers(plan.capacities, plan.n_capacities),
        _numbers(plan.order, plan.n_order),
        _rows(plan.alloc_deps, plan.n_alloc_deps, "gp_dep_record"),
        plan.optimizers,
        _numbers(plan.cpu_nodes, plan.n_cpu),
        _rows(plan.cpu, plan.n_cpu, "gp_cpu_record"),
        plan.left_backend,
        plan.hash_set_used,
        settings,
        reasons,
    )


def _rows(pointer: Any, n: int, struct: str) -> bytes:
    return bytes(ffi.buffer(pointer, n * ffi.sizeof(f"struct {struct}"))) if n else b""


def _numbers(pointer: Any, n: int) -> tuple[int, ...]:
    return tuple(ffi.unpack(pointer, n)) if n else ()


def _splits(rows: bytes, inputs: bytes) -> tuple[SplitRecord, ...]:
    of = _columns(inputs, "gp_input_record")
    pairs = list(zip(of["tensor"], of["copy"], strict=True))
    c = _columns(rows, "gp_split_record")
    each = zip(c["backend"], c["start"], c["end"], c["first_input"], c["n_inputs"], strict=True)
    return tuple(
        SplitRecord(b, i, j, tuple(pairs[first : first + n])) for b, i, j, first, n in each
    )


def _bufts(rows: bytes) -> tuple[BuftRecord, ...]:
    c = _columns(rows, "gp_buft_record")
    return tuple(map(BuftRecord, _words(c["name"]), map(bool, c["is_host"]), c["readers"]))


def _buffers(rows: bytes) -> tuple[BufferRecord, ...]:
    c = _columns(rows, "gp_buffer_record")
    return tuple(map(BufferRecord, c["buft"], map(_usage, c["usage"]), c["size"]))


def _backends(rows: bytes) -> tuple[BackendRecord, ...]:
    c = _columns(rows, "gp_backend_record")
    types = [enums.BackendDevType(t).name for t in c["device_type"]]
    return tuple(map(BackendRecord, _words(c["name"]), _words(c["device"]), types, c["buft"]))


def _optimized(records: _Records, splits: tuple[SplitRecord, ...]) -> tuple[OptimizedRecord, ...]:
    """What backends that have a graph_optimize made of their splits."""
    if not records.optimizers:
        return ()
    c = _columns(records.alloc_deps, "gp_dep_record")
    deps = list(zip(c["tensor"], c["until"], strict=True))
    found = []
    for split in splits:
        if records.optimizers >> split.backend & 1:
            order = records.order[split.start : split.end]
            kept = tuple(dep for dep in deps if split.start <= dep[1] < split.end)
            same = order == tuple(range(split.start, split.end))
            found.append(OptimizedRecord(*split[:3], () if same else order, kept))
    return tuple(found)


def _cpu(records: _Records) -> tuple[CpuRecord, ...]:
    """How nodes on CPU backends are computed."""
    c = _columns(records.cpu, "gp_cpu_record")
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


def _read(records: _Records) -> tuple[Capture, Outcome]:
    columns = _columns(records.tensors, "gp_tensor_record")
    tensors = _tensors(columns)
    n = columns["kind"].index(_KINDS.index(COPY)) if tensors[-1].kind == COPY else len(tensors)
    splits = _splits(records.splits, records.inputs)
    capture = Capture(
        records.settings,
        _backends(records.backends),
        _bufts(records.bufts),
        _buffers(records.buffers),
        tuple(tensors[:n]),
        records.leaf_ids,
        tuple((i, pin) for i, pin in enumerate(columns["dropped_pin"]) if pin >= 0),
        records.capacities,
        records.left_backend,
        records.optimizers,
        _optimized(records, splits),
        _cpu(records),
        tuple(
            PinRecord(i, *records.reasons[address])
            for i, (address, pin) in enumerate(zip(columns["addr"], columns["pin"], strict=True))
            if pin >= 0 and address in records.reasons
        ),
    )
    placements = tuple(_placements(columns))
    return capture, Outcome(placements, tuple(tensors[n:]), splits, records.hash_set_used)


class _NativePlan(Plan):
    """A plan that converts its records to Python objects on first access. Converting takes several
    times as long as planning."""

    @classmethod
    def of(cls, records: _Records) -> Plan:
        """The plan that the records describe."""
        plan = cls.__new__(cls)
        vars(plan).update(planner="native", _records=records)  # a frozen dataclass
        return plan

    def _look(self) -> None:
        with _lock:
            records = vars(self).pop("_records", None)
            if records is not None:
                with collection_paused():
                    capture, outcome = _read(records)
                vars(self).update(capture=capture, outcome=outcome)

    @cached_property
    def capture(self) -> Capture:
        """See `Plan`."""
        self._look()
        found: Capture = vars(self)["capture"]
        return found

    @cached_property
    def outcome(self) -> Outcome:
        """See `Plan`."""
        self._look()
        found: Outcome = vars(self)["outcome"]
        return found

    def __reduce__(self) -> tuple[type[Plan], tuple[Any, ...]]:
        return Plan, (self.capture, self.outcome, self.planner, self.promise, self.memory)


_lock = threading.Lock()  # one for all plans


def read_plan(ask: Any, scheduler: Any, graph: Any, pins: dict[Any, tuple[Any, str, str]]) -> Plan:
    """Returns the Plan that the native function `ask` gives. `pins` says who pinned tensors, and
    why. C: gp_sched_plan, gp_sched_read"""
    reasons = {
        int(ffi.cast("uintptr_t", raw)): (by, why) for raw, (_t, by, why) in pins.items() if by
    }
    found = ffi.new("struct gp_plan **")
    try:
        ask(scheduler, graph, found)  # gives a plan even when a Python predicate raised
        if found[0] == NULL:
            raise MissingFunctionError("the scheduler holds no plan: give it a graph first")
        return _NativePlan.of(_copied(found[0], reasons))
    finally:
        if found[0] != NULL:
            lib.gp_plan_free(found[0])


class Planner(Protocol):
    """What `capture` needs of a `Scheduler`."""

    def plan(self, graph: Graph) -> Plan:
        """Plans a graph."""


def capture(scheduler: Planner, graph: Graph) -> Capture:
    """Returns everything that `scheduler` would look at to plan `graph`, including what each of its
    backends answers about each node. Changes neither of them.

    Raises what `Scheduler.plan` raises. C: gp_sched_plan
    """
    return scheduler.plan(graph).capture

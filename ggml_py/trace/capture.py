"""Reads a plan out of the scheduler: the one file of `trace` that touches the native library."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import enums
from .._ffi import BUILD, NULL, ffi, lib, text
from ..errors import MissingFunctionError
from .pause import collection_paused
from .plan import Plan
from .record import (
    COPY,
    LEAF,
    NODE,
    OTHER,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Capture,
    Outcome,
    Placement,
    Settings,
    SplitRecord,
    TensorRecord,
)  # fmt: skip

if TYPE_CHECKING:
    from ..graph import Graph
    from ..scheduler import Scheduler

_KINDS = (NODE, LEAF, OTHER, COPY)


@cache
def _dtype(struct: str) -> np.dtype[Any]:
    """numpy's view of one of our C records, from what the compiler told cffi."""
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


def _columns(pointer: Any, n: int, struct: str) -> dict[str, list[Any]]:
    """The fields of n records, each as a list."""
    dtype = _dtype(struct)
    names = dtype.names or ()
    if n == 0:
        return {name: [] for name in names}
    array = np.frombuffer(ffi.buffer(pointer, n * dtype.itemsize), dtype)
    return {name: array[name].tolist() for name in names}


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


def _ids(values: list[int]) -> tuple[int, ...]:
    """Source ids without the empty places at the end; those in between keep the others' index."""
    n = len(values)
    while n and values[n - 1] < 0:
        n -= 1
    return tuple(values[:n])


_NO_PARAMS = [0] * 16


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
        map(_ids, c["src"]),
        *(c[name] for name in TensorRecord._fields[TensorRecord._fields.index("view_src") :]),
    )
    return list(map(TensorRecord._make, zip(*columns, strict=True)))


def _placements(c: dict[str, list[Any]]) -> list[Placement]:
    columns = (
        c["backend"],
        _words(c["cause"]),
        c["stage"],
        [tuple(p) if k == 0 else () for k, p in zip(c["kind"], c["passes"], strict=True)],
        map(_ids, c["planned_src"]),
        c["copy_of"],
        c["copy_index"],
    )
    return list(map(Placement._make, zip(*columns, strict=True)))


def _splits(plan: Any) -> list[SplitRecord]:
    inputs = _columns(plan.inputs, plan.n_inputs, "gp_input_record")
    pairs = list(zip(inputs["tensor"], inputs["copy"], strict=True))
    c = _columns(plan.splits, plan.n_splits, "gp_split_record")
    rows = zip(c["backend"], c["start"], c["end"], c["first_input"], c["n_inputs"], strict=True)
    return [SplitRecord(b, i, j, tuple(pairs[first : first + n])) for b, i, j, first, n in rows]


def _bufts(plan: Any) -> tuple[BuftRecord, ...]:
    c = _columns(plan.bufts, plan.n_bufts, "gp_buft_record")
    return tuple(map(BuftRecord, _words(c["name"]), map(bool, c["is_host"]), c["readers"]))


def _buffers(plan: Any) -> tuple[BufferRecord, ...]:
    c = _columns(plan.buffers, plan.n_buffers, "gp_buffer_record")
    return tuple(map(BufferRecord, c["buft"], map(_usage, c["usage"]), c["size"]))


def _backends(plan: Any) -> tuple[BackendRecord, ...]:
    c = _columns(plan.backends, plan.n_backends, "gp_backend_record")
    types = [enums.BackendDevType(t).name for t in c["device_type"]]
    return tuple(map(BackendRecord, _words(c["name"]), _words(c["device"]), types, c["buft"]))


def _read(plan: Any) -> Plan:
    columns = _columns(plan.tensors, plan.n_tensors, "gp_tensor_record")
    tensors = _tensors(columns)
    n = columns["kind"].index(_KINDS.index(COPY)) if tensors[-1].kind == COPY else len(tensors)
    settings = Settings(
        upstream=BUILD["ggml_version"],
        build=BUILD["key"],
        op_offload=bool(plan.op_offload),
        n_copies=plan.n_copies,
        cur_copy=plan.cur_copy,
        hash_set_size=plan.hash_set_size,
        pins_elsewhere=plan.n_pins_elsewhere,
    )
    capture = Capture(
        settings,
        _backends(plan),
        _bufts(plan),
        _buffers(plan),
        tuple(tensors[:n]),
        _numbers(plan.leafs, plan.n_leafs),
        tuple((i, pin) for i, pin in enumerate(columns["dropped_pin"]) if pin >= 0),
        _numbers(plan.capacities, plan.n_capacities),
        plan.left_backend,
    )
    splits = tuple(_splits(plan))
    placements = tuple(_placements(columns))
    return Plan(capture, Outcome(placements, tuple(tensors[n:]), splits, plan.hash_set_used))


def _numbers(pointer: Any, n: int) -> tuple[int, ...]:
    return tuple(ffi.unpack(pointer, n)) if n else ()


def read_plan(ask: Any, scheduler: Any, graph: Any) -> Plan:
    """The Plan that `ask` gives of native objects. C: gp_sched_plan, gp_sched_read"""
    found = ffi.new("struct gp_plan **")
    try:
        ask(scheduler, graph, found)  # there is a plan, too, when a predicate of Python's raised
        if found[0] == NULL:
            raise MissingFunctionError("the scheduler holds no plan: give it a graph first")
        with collection_paused():
            return _read(found[0])
    finally:
        if found[0] != NULL:
            lib.gp_plan_free(found[0])


def capture(scheduler: Scheduler, graph: Graph) -> Capture:
    """Everything that `scheduler` would look at to plan `graph`, what all of its backends answer
    about all of the nodes included. Both stay as they are.

    Raises what `Scheduler.plan` raises. C: gp_sched_plan
    """
    return scheduler.plan(graph).capture

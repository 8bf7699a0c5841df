"""Reads a plan out of the scheduler: the one file of `trace` that touches the native library."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .. import enums
from .._ffi import BUILD, NULL, ffi, lib, text
from ..errors import MissingFunctionError
from .plan import (
    COPY,
    LEAF,
    NODE,
    OTHER,
    BackendRecord,
    BufferRecord,
    Plan,
    Settings,
    SplitRecord,
    TensorRecord,
)  # fmt: skip

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


def _rows(pointer: Any, n: int, struct: str) -> list[dict[str, Any]]:
    if n == 0:
        return []
    dtype = _dtype(struct)
    array = np.frombuffer(ffi.buffer(pointer, n * dtype.itemsize), dtype)
    columns = [array[name].tolist() for name in dtype.names or ()]
    return [dict(zip(dtype.names or (), row, strict=True)) for row in zip(*columns, strict=True)]


@cache
def _op_name(op: int) -> str:
    return text(lib.ggml_op_name(op))


@cache
def _type_name(type_: int) -> str:
    return text(lib.ggml_type_name(type_))


@cache
def _flags(flags: int) -> tuple[str, ...]:
    return tuple(f.name.lower() for f in enums.TensorFlag if f.value & flags and f.name)


def _ids(values: list[int]) -> tuple[int, ...]:
    """Source ids without the empty places at the end; those in between keep the others' index."""
    n = len(values)
    while n and values[n - 1] < 0:
        n -= 1
    return tuple(values[:n])


def _tensor(id: int, r: dict[str, Any]) -> TensorRecord:
    kind = _KINDS[r["kind"]]
    return TensorRecord(
        id=id,
        kind=kind,
        name=r["name"].decode("utf-8", "replace"),
        op=_op_name(r["op"]),
        op_desc=r["op_desc"].decode(),
        type=_type_name(r["type"]),
        ne=tuple(r["ne"]),
        nb=tuple(r["nb"]),
        nbytes=r["nbytes"],
        flags=_flags(r["flags"]),
        op_params=tuple(r["op_params"]) if any(r["op_params"]) else (),
        src=_ids(r["src"]),
        planned_src=_ids(r["planned_src"]),
        view_src=r["view_src"],
        view_offs=r["view_offs"],
        buffer=r["buffer"],
        use_count=r["use_count"],
        pin=r["pin"],
        backend=r["backend"],
        cause=r["cause"].decode(),
        stage=r["stage"],
        passes=tuple(r["passes"]) if kind == NODE else (),
        copy_of=r["copy_of"],
        copy_index=r["copy_index"],
    )


def _read(plan: Any) -> Plan:
    bufts: dict[int, int] = {}
    backends = [
        BackendRecord(
            name=r["name"].decode("utf-8", "replace"),
            device=r["device"].decode("utf-8", "replace"),
            device_type=enums.BackendDevType(r["device_type"]).name,
            buft=r["buft"].decode("utf-8", "replace"),
            buft_is_host=bool(r["buft_is_host"]),
            buft_id=bufts.setdefault(r["buft_addr"], len(bufts)),
        )
        for r in _rows(plan.backends, plan.n_backends, "gp_backend_record")
    ]
    buffers = [
        BufferRecord(
            buft=r["buft"].decode("utf-8", "replace"),
            usage=enums.BackendBufferUsage(r["usage"]).name.lower(),
            is_host=bool(r["is_host"]),
            size=r["size"],
        )
        for r in _rows(plan.buffers, plan.n_buffers, "gp_buffer_record")
    ]
    inputs = _rows(plan.inputs, plan.n_inputs, "gp_input_record")
    splits = []
    for r in _rows(plan.splits, plan.n_splits, "gp_split_record"):
        own = inputs[r["first_input"] : r["first_input"] + r["n_inputs"]]
        pairs = tuple((i["tensor"], i["copy"]) for i in own)
        splits.append(SplitRecord(r["backend"], r["start"], r["end"], pairs))
    tensors = _rows(plan.tensors, plan.n_tensors, "gp_tensor_record")
    return Plan(
        Settings(
            upstream=BUILD["ggml_version"],
            build=BUILD["key"],
            op_offload=bool(plan.op_offload),
            n_copies=plan.n_copies,
            cur_copy=plan.cur_copy,
        ),
        tuple(backends),
        tuple(buffers),
        tuple(_tensor(i, r) for i, r in enumerate(tensors)),
        tuple(ffi.unpack(plan.leafs, plan.n_leafs)) if plan.n_leafs else (),
        tuple(splits),
    )


def read_plan(native: Any) -> Plan:
    """The Plan for a `struct gp_plan *`, which is freed. C: gp_sched_plan, gp_sched_read"""
    if native == NULL:
        raise MissingFunctionError("the scheduler holds no plan: give it a graph first")
    try:
        return _read(native)
    finally:
        lib.gp_plan_free(native)

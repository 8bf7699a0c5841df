"""How a recorded plan differs from another, in a clause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .session import RecordedPlan

_NODES, _LEAFS, _NODE, _SRC, _BACKEND, _EDGES = 1, 2, 3, 4, 5, 6  # enum gp_realloc_kind


def difference(old: RecordedPlan, new: RecordedPlan) -> str:
    """What is different in `new`: what the program gave, its inputs, before what follows from
    it."""
    if old.n_nodes != new.n_nodes:
        return f"{new.n_nodes} nodes, not {old.n_nodes}"
    a, b = old.tensors, new.tensors
    n = min(len(a), len(b))
    order = np.r_[old.n_nodes : n, 0 : old.n_nodes]  # leafs and inputs first
    a, b = a[:n][order], b[:n][order]

    def name(i: int) -> str:
        return f"'{b['name'][i].decode('utf-8', 'replace')}'"

    for what, said in (
        ("pin", lambda i: f"pin of {name(i)}"),
        ("ne", lambda i: f"{name(i)} is {_shape(b['ne'][i])}, not {_shape(a['ne'][i])}"),
        (
            "op_desc",
            lambda i: f"{name(i)} is {_text(b['op_desc'][i])}, not {_text(a['op_desc'][i])}",
        ),
        ("backend", lambda i: f"{name(i)} is on another backend"),
        ("buffer", lambda i: f"{name(i)} is in other memory"),
        ("op_params", lambda i: f"parameters of {name(i)}"),
        ("name", lambda i: f"{name(i)} was called '{_text(a['name'][i])}'"),
    ):
        unequal = a[what] != b[what]
        found = np.flatnonzero(unequal.any(1) if unequal.ndim > 1 else unequal)
        if len(found):
            return str(said(int(found[0])))
    return "memory"


def realloc_reason(reason: Any) -> str:
    """Why memory was laid out again: a `gp_realloc_record`."""
    kind, need, have = int(reason["kind"]), int(reason["need"]), int(reason["have"])
    tensor, node = _text(reason["tensor"]), _text(reason["node"])
    if kind in (_NODES, _LEAFS):
        return f"{need} {'nodes' if kind == _NODES else 'leafs'}, not {have}"
    if kind == _NODE:
        return f"'{tensor}' needs {need:,} bytes and had room for {have:,}"
    if kind == _SRC:
        return f"'{tensor}', read by '{node}', needs {need:,} bytes and had room for {have:,}"
    if kind == _BACKEND:
        return f"'{tensor}' moved to another backend's memory"
    return "other edges between as many nodes" if kind == _EDGES else "unknown"


def _shape(ne: Any) -> str:
    sizes = [int(n) for n in ne]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return str(sizes)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _op(rows: Any, i: int) -> str:
    return _text(rows["op_desc"][i])

"""How a recorded plan differs from another, in a clause."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .session import RecordedPlan

_FIELDS: tuple[tuple[str, Callable[[str, Any, Any], str]], ...] = (
    ("ne", lambda name, was, now: f"{name} is {_shape(now['ne'])}, not {_shape(was['ne'])}"),
    ("op_desc", lambda name, was, now: f"{name} is {_op(now)}, not {_op(was)}"),
    ("pin", lambda name, _was, _now: f"pin of {name}"),
    ("backend", lambda name, _was, _now: f"{name} is on another backend"),
    ("buffer", lambda name, _was, _now: f"{name} is in other memory"),
    ("op_params", lambda name, _was, _now: f"parameters of {name}"),
    ("name", lambda name, was, _now: f"{name} was called '{_text(was['name'])}'"),
)
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

    for field, said in _FIELDS:
        unequal = a[field] != b[field]
        found = np.flatnonzero(unequal.any(1) if unequal.ndim > 1 else unequal)
        if len(found):
            was, now = a[found[0]], b[found[0]]
            return said(f"'{_text(now['name'])}'", was, now)
    return "memory"


def realloc_reason(reason: Any) -> str:
    """Why memory was laid out again: a `gp_realloc_record`."""
    kind, need, have = int(reason["kind"]), int(reason["need"]), int(reason["have"])
    tensor, node = _text(reason["tensor"]), _text(reason["node"])
    if kind in (_NODES, _LEAFS) and not have:
        return "for the first time"
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


def _text(value: Any) -> str:
    return bytes(value).decode("utf-8", "replace")


def _op(row: Any) -> str:
    return _text(row["op_desc"])

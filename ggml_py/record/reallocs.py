"""Why a scheduler's memory was laid out again, in a clause."""

from __future__ import annotations

from typing import Any

_NODES, _LEAFS, _NODE, _SRC, _BACKEND, _EDGES = 1, 2, 3, 4, 5, 6  # enum gp_realloc_kind


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


def _text(value: Any) -> str:
    return bytes(value).decode("utf-8", "replace")

"""Plans as JSON: everything that was recorded, under a schema number."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from ..trace.plan import BackendRecord, BufferRecord, Plan, Settings, SplitRecord, TensorRecord

SCHEMA = 1


def render(plan: Plan) -> dict[str, Any]:
    """The plan as data that `json` can write."""
    return {
        "schema": SCHEMA,
        "kind": "ggml_py plan",
        "headline": plan.headline(),
        "n_splits": plan.n_splits,
        "copy_bytes": plan.copy_bytes,
        "settings": dataclasses.asdict(plan.settings),
        "backends": [dataclasses.asdict(b) for b in plan.backends],
        "buffers": [dataclasses.asdict(b) for b in plan.buffers],
        "leafs": list(plan.leaf_ids),
        "splits": [dataclasses.asdict(s) for s in plan.split_records],
        "tensors": [dataclasses.asdict(t) for t in plan.tensors],
    }


def write(plan: Plan, path: str | Path) -> dict[str, Any]:
    """Writes the plan to `path`: to a file beside it first, so that it is whole or not there."""
    data = render(plan)
    part = Path(f"{path}.part{os.getpid()}")
    try:
        part.write_text(json.dumps(data, separators=(",", ":")), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return data


def read(path: str | Path) -> Plan:
    """The plan in a file that `write` made. Raises ValueError that says what is wrong with it."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no plan: not valid JSON ({error})") from None
    if not isinstance(data, dict) or data.get("kind") != "ggml_py plan":
        raise ValueError(f"{path} is no plan: it was not written by Plan.to_json")
    if data["schema"] != SCHEMA:
        raise ValueError(f"{path} has schema {data['schema']}; this ggml_py reads {SCHEMA}")
    try:
        return Plan(
            Settings(**data["settings"]),
            tuple(BackendRecord(**b) for b in data["backends"]),
            tuple(BufferRecord(**b) for b in data["buffers"]),
            tuple(_build(TensorRecord, t) for t in data["tensors"]),
            tuple(data["leafs"]),
            tuple(_build(SplitRecord, s) for s in data["splits"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is a damaged plan: {error}") from None


def _build(record: Any, data: dict[str, Any]) -> Any:
    return record(**{k: _tuples(v) for k, v in data.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

"""Plans as JSON: everything that was recorded, under a schema number.

A row of "tensors" combines a `TensorRecord` and its `Placement`. The copies come last. The format
is published as docs/plan.schema.json, which `schema` makes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from ...files.damage import INTERNAL, said
from ...files.reading import parse_json, read_file
from ...files.writing import write_whole
from ...trace.fields import fields_of
from ...trace.planned import Planned
from ...trace.record import COPY, Capture, Outcome, Placement, TensorRecord, collection_paused
from ...trace.split import possible_optimizers
from ...trace.units import AtLeast, with_bounds
from ..debug_log_plan import SOURCE as LOG
from .checked import check
from .keys import KEYS, LATER, OLDEST, PARTS, PLANNERS, SCHEMA
from .schema import DRAFT, definitions_of, object_of, ref, type_of
from .values import from_json, to_json

KIND = "ggml_py plan"
_N_RECORD = len(TensorRecord._fields)
_ROW = (*fields_of(TensorRecord), *fields_of(Placement))
_NAMES = tuple(field.name for field in _ROW)


def render(plan: Planned) -> dict[str, Any]:
    """The plan as data that `json` can write."""
    rows = zip(plan.tensors, plan.outcome.placements, strict=True)
    data = {
        "schema": SCHEMA,
        "kind": KIND,
        **{key.name: to_json(key.of(plan)) for key in KEYS},
        "tensors": [dict(zip(_NAMES, (*record, *place), strict=True)) for record, place in rows],
    }
    if plan.capture.source == LOG:
        data = with_bounds(data)
    return data


def write(plan: Planned, path: str | Path) -> dict[str, Any]:
    """Writes the plan to `path`, completely or not at all; compressed if that ends with ".gz"."""
    return write_data(render(plan), path)


def write_data(data: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Writes the data that `render` returned."""
    write_whole(path, json.dumps(data, separators=(",", ":")).encode())
    return data


def read(path: str | Path) -> Planned:
    """Reads the plan from a file that `write` made. Raises ValueError that says what is wrong."""
    return parse(read_file(path), path)


def parse(content: bytes, path: str | Path) -> Planned:
    """Like `read`, but takes the file's content. `path` is its name in errors."""
    with collection_paused():  # until the data is no longer there
        return plan_of(loaded(content, path, KIND, SCHEMA, OLDEST), str(path))


def loaded(
    content: bytes, path: str | Path, kind: str, schema: int, oldest: int | None = None
) -> dict[str, Any]:
    """Returns the data of a file of this kind ("ggml_py plan") and schema, or of a schema from
    `oldest` on. Raises ValueError."""
    what = f"not a {kind.rpartition(' ')[2]}"
    try:
        with collection_paused():
            data = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{path} is {what}: {error}") from None
    if not isinstance(data, dict) or data.get("kind") != kind:
        found = f"; it is a {data['kind']}" if isinstance(data, dict) and "kind" in data else ""
        raise ValueError(f"{path} is {what}: it was not written by its to_json{found}")
    written = data.get("schema")
    oldest = schema if oldest is None else oldest
    if type(written) is not int or not oldest <= written <= schema:
        newer = type(written) is int and written > schema
        hint = ": a newer ggml_py wrote it, so update ggml_py" if newer else ""
        reads = f"{schema}" if oldest == schema else f"{oldest} to {schema}"
        raise ValueError(f"{path} has schema {written}; this ggml_py reads {reads}{hint}")
    return data


def plan_of(data: dict[str, Any], path: str) -> Planned:
    """Returns the plan in data that `render` made. Raises ValueError."""
    try:
        with collection_paused():
            plan = _plan(data)
            check(plan)
    except INTERNAL as error:
        raise ValueError(f"{path} is a damaged plan: {said(error)}") from None
    return _with_bounds(plan) if plan.capture.source == LOG else plan


def _with_bounds(plan: Planned) -> Planned:
    """Marks the sizes of a plan from a log as lower bounds."""
    tensors, copies = (
        tuple(t._replace(nbytes=AtLeast(t.nbytes)) for t in records)
        for records in (plan.capture.tensors, plan.outcome.copies)
    )
    capture, outcome = plan.capture, plan.outcome
    return replace(
        plan, capture=replace(capture, tensors=tensors), outcome=replace(outcome, copies=copies)
    )


def _plan(data: dict[str, Any]) -> Planned:
    parts: dict[str, dict[str, Any]] = {"": {}, "capture": {}, "outcome": {}}
    for key in PARTS:
        if key.is_in(data):
            parts[key.owner][key.field.name] = from_json(key.type, data[key.name])
    if data["schema"] < 4 or data["source"] != "scheduler":
        names = [backend["device"] or backend["name"] for backend in data["backends"]]
        parts["capture"]["optimizers"] = possible_optimizers(names)
    records, placements = _tensors(data)
    n = next((i for i, r in enumerate(records) if r.kind == COPY), len(records))
    capture = Capture(tensors=records[:n], **parts["capture"])
    outcome = Outcome(placements=placements, copies=records[n:], **parts["outcome"])
    return Planned(capture, outcome, **parts[""])


def _tensors(data: dict[str, Any]) -> tuple[tuple[TensorRecord, ...], tuple[Placement, ...]]:
    """The records and placements in the file's rows."""
    rows = data["tensors"]
    if not rows:
        return (), ()
    names = [field.name for field in _ROW if field.about.since <= data["schema"]]
    found = dict(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
    columns: list[Any] = []
    for field in _ROW:
        column: Any = found.get(field.name) or [field.default] * len(rows)
        if list in set(map(type, column)):
            column = [tuple(v) if type(v) is list else v for v in column]
        columns.append(column)
    records = tuple(map(TensorRecord, *columns[:_N_RECORD]))
    return records, tuple(map(Placement, *columns[_N_RECORD:]))


# --- the published schema


def schema() -> dict[str, Any]:
    """The JSON Schema of the files that `write` makes."""
    definitions = definitions_of(key.type for key in KEYS)
    at_most = {
        "type": ["integer", "null"],
        "description": "Only in a plan from a log, which has sizes in whole KiB or MiB. The number"
        " without _at_most is then a lower bound, and this an upper bound, null if not known.",
    }
    row, placed = object_of(TensorRecord), object_of(Placement)
    row["properties"] |= placed["properties"]
    row["properties"]["nbytes_at_most"] = at_most
    row["required"] += placed["required"]
    row["description"] += " In the same row: " + placed["description"]
    properties: dict[str, Any] = {
        "schema": {"const": SCHEMA},
        "kind": {"const": KIND},
        **{key.name: _described(type_of(key.type), key.said) for key in KEYS},
        "copy_bytes_at_most": at_most,
        "planner": {"enum": list(PLANNERS)},
        "tensors": {"type": "array", "items": ref("Tensor")},
    }
    return {
        "$schema": DRAFT,
        "title": "A plan of ggml's scheduler, with the graph and the backends' answers",
        "type": "object",
        "properties": properties,
        "required": ["schema", "kind", *(k.name for k in KEYS if k.since != LATER), "tensors"],
        "$defs": definitions | {"Tensor": row},
    }


def _described(data: dict[str, Any], said: str) -> dict[str, Any]:
    return data | {"description": said} if said else data

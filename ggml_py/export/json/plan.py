"""Plans as JSON: everything that was recorded, under a schema number.

A row of "tensors" combines a `TensorRecord` and its `Placement`. The copies come last. The format
is published as docs/plan.schema.json, which `schema` makes.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from ...files.reading import MOST, read_file
from ...files.writing import write_whole
from ...trace.answers.excerpt import mark
from ...trace.answers.shares import DeviceShare, headline, shares
from ...trace.choice import Choice
from ...trace.expert_cache import ExpertCache, expert_cache
from ...trace.planned import Planned
from ...trace.promise import MemoryRow, Promise
from ...trace.record import (
    COPY,
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
    PrintRecord,
    RefusalRecord,
    Settings,
    SplitRecord,
    TensorRecord,
    collection_paused,
)  # fmt: skip
from ...trace.split import possible_optimizers
from ...trace.units import AtLeast, with_bounds
from ..debug_log_plan import SOURCE as LOG
from ..snapshot_plan import unknown
from . import layout as layouts
from . import provenance as provenances
from .check import PLANNERS, SOURCES, check
from .schema import DRAFT, object_of, ref, type_of

SCHEMA = 6
# Schema 2 lacks the passes of leafs. 2 and 3 lack what backends made of the order of nodes. 2 to 4
# lack how the CPU computes. 2 to 5 lack how the plan was made.
OLDEST = 2
KIND = "ggml_py plan"

_TABLES = {
    "backends": BackendRecord, "bufts": BuftRecord, "buffers": BufferRecord, "splits": SplitRecord,
    "optimized": OptimizedRecord, "cpu": CpuRecord, "pins": PinRecord,
    "compute_buffers": ComputeBufferRecord, "alloc_sizes": AllocSizeRecord,
    "refusals": RefusalRecord,
}  # fmt: skip
_N_RECORD = len(TensorRecord._fields)
# Keys that files of this schema may lack.
_LATER = (
    "unknown", "may_be_cut", "copy_bytes_at_most", "promise", "memory", "pins", "layout",
    "compute_buffers", "alloc_sizes", "partial", "printed", "refusals", "choices",
    "expert_cache",
)  # fmt: skip
_AT_MOST = {
    "type": ["integer", "null"],
    "description": "Only in a plan from a log, which has sizes in whole KiB or MiB. The number"
    " without _at_most is then a lower bound, and this an upper bound, null if not known.",
}
_ROW = (*TensorRecord._fields, *Placement._fields)


def render(plan: Planned) -> dict[str, Any]:
    """The plan as data that `json` can write."""
    capture, outcome = plan.capture, plan.outcome
    rows = zip(plan.tensors, outcome.placements, strict=True)
    parts = shares(plan)
    data = {
        "schema": SCHEMA,
        "kind": KIND,
        "planner": plan.planner,
        "source": capture.source,
        "partial": mark(capture),
        "may_be_cut": capture.may_be_cut,
        "printed": None if capture.printed is None else capture.printed._asdict(),
        "headline": headline(plan),
        "unknown": list(unknown(plan)),
        "promise": _promise(plan.promise),
        "provenance": provenances.render(plan.provenance),
        "memory": [row._asdict() for row in plan.breakdown],
        "choices": [choice._asdict() for choice in plan.choices],
        "expert_cache": [cache.to_dict() for cache in expert_cache(plan)],
        "layout": layouts.render(plan.layout),
        "n_splits": plan.n_splits,
        "copy_bytes": plan.copy_bytes,
        "shares": None if parts is None else [s._asdict() for s in parts],
        "hash_set_used": outcome.hash_set_used,
        "settings": capture.settings._asdict(),
        "backends": [b._asdict() for b in capture.backends],
        "bufts": [b._asdict() for b in capture.bufts],
        "buffers": [b._asdict() for b in capture.buffers],
        "leafs": list(capture.leaf_ids),
        "pins": [pin._asdict() for pin in capture.pins],
        "dropped_pins": [list(pin) for pin in capture.dropped_pins],
        "split_capacities": list(capture.split_capacities),
        "left_backend": capture.left_backend,
        "optimizers": capture.optimizers,
        "optimized": [o._asdict() for o in capture.optimized],
        "cpu": [c._asdict() for c in capture.cpu],
        "compute_buffers": [b._asdict() for b in capture.compute_buffers],
        "alloc_sizes": [s._asdict() for s in capture.alloc_sizes],
        "refusals": _refusals(capture),
        "splits": [s._asdict() for s in outcome.splits],
        "tensors": [dict(zip(_ROW, (*record, *place), strict=True)) for record, place in rows],
    }
    if capture.source == LOG:
        data = with_bounds(data)
    return data


def _refusals(capture: Capture) -> list[dict[str, Any]] | None:
    found = capture.refusals
    return None if found is None else [refusal._asdict() for refusal in found]


def _promise(promise: Promise) -> dict[str, Any]:
    data = {name: list(v) if isinstance(v, tuple) else v for name, v in promise._asdict().items()}
    return {**data, "whose": promise.whose, "text": promise.text}


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
            data = json.loads(decompressed(content))
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is {what}: not valid JSON ({error})") from None
    except RecursionError:
        raise ValueError(f"{path} is {what}: its lists are nested too deeply") from None
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
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"{path} is a damaged plan: {error!r}") from None
    except ValueError as error:
        raise ValueError(f"{path} is a damaged plan: {error}") from None
    return _with_bounds(plan) if plan.capture.source == LOG else plan


def _with_bounds(plan: Planned) -> Planned:
    """Marks the sizes of a plan from a log as lower bounds."""
    tensors, copies = (
        tuple(t._replace(nbytes=AtLeast(t.nbytes)) for t in records)
        for records in (plan.capture.tensors, plan.outcome.copies)
    )
    outcome = replace(plan.outcome, copies=copies)
    return Planned(
        replace(plan.capture, tensors=tensors), outcome, plan.planner, promise=plan.promise,
        breakdown=plan.breakdown, layout=plan.layout, choices=plan.choices,
        provenance=plan.provenance,
    )  # fmt: skip


def decompressed(content: bytes) -> bytes:
    """The content of a file, decompressed if it was compressed with gzip.

    Raises ValueError if it would be larger than any plan, which even a small file can cause.
    """
    if not content.startswith(b"\x1f\x8b"):
        return content
    whole = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MOST + 1)
    if len(whole) > MOST:
        raise ValueError(f"more than {MOST >> 20} MiB when decompressed")
    return whole


def _plan(data: dict[str, Any]) -> Planned:
    if data["schema"] < 4:
        data = data | {"optimized": []}
    if data["schema"] < 5:
        data = data | {"cpu": []}
    if data["schema"] < 4 or data["source"] != "scheduler":
        names = [backend["device"] or backend["name"] for backend in data["backends"]]
        data = data | {"optimizers": possible_optimizers(names)}
    columns: list[Any] = list(zip(*map(itemgetter(*_ROW), data["tensors"]), strict=True))
    for i, column in enumerate(columns):
        if list in set(map(type, column)):
            columns[i] = [tuple(v) if type(v) is list else v for v in column]
    records = list(map(TensorRecord, *columns[:_N_RECORD])) if columns else []
    n = next((i for i, r in enumerate(records) if r.kind == COPY), len(records))
    tables = {
        name: tuple(
            record(**{k: _tuples(v) for k, v in row.items()}) for row in data.get(name) or ()
        )
        for name, record in _TABLES.items()
    }
    settings = Settings(**{k: _tuples(v) for k, v in data["settings"].items()})
    capture = Capture(
        settings,
        tables["backends"],
        tables["bufts"],
        tables["buffers"],
        tuple(records[:n]),
        tuple(data["leafs"]),
        _tuples(data["dropped_pins"]),
        tuple(data["split_capacities"]),
        data["left_backend"],
        data["optimizers"],
        tables["optimized"],
        tables["cpu"],
        tables["pins"],
        tables["compute_buffers"],
        tables["alloc_sizes"],
        None if data.get("refusals") is None else tables["refusals"],
        data["source"],
        data.get("may_be_cut", False) is True,
        PrintRecord(**data["printed"]) if data.get("printed") else None,
    )
    placements = tuple(map(Placement, *columns[_N_RECORD:])) if columns else ()
    outcome = Outcome(placements, tuple(records[n:]), tables["splits"], data["hash_set_used"])
    told = data.get("promise", {})
    promise = Promise(**{k: _tuples(told[k]) for k in Promise._fields if k in told})
    memory = tuple(MemoryRow(**row) for row in data.get("memory", ()))
    choices = tuple(
        Choice(**{k: _tuples(v) for k, v in row.items()}) for row in data.get("choices", ())
    )
    return Planned(
        capture, outcome, data["planner"], promise=promise, breakdown=memory,
        layout=layouts.parse(data.get("layout")), choices=choices,
        provenance=provenances.parse(None if data["schema"] < 6 else data["provenance"]),
    )  # fmt: skip


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# --- the published schema


def schema() -> dict[str, Any]:
    """The JSON Schema of the files that `write` makes."""
    records = (
        *_TABLES.values(), Settings, DeviceShare, MemoryRow, Promise, PrintRecord, Choice,
        ExpertCache,
    )  # fmt: skip
    definitions = {r.__name__: object_of(r) for r in records}
    definitions["Promise"]["properties"] |= {
        "whose": {"type": "string"},
        "text": {"type": "string", "description": "The same in a sentence; empty without changes."},
    }
    definitions["ExpertCache"]["properties"]["upload_at_most"] = {
        "type": "integer",
        "description": "Bytes that an evaluation uploads if the cache has none of the experts.",
    }
    row = object_of(TensorRecord)
    placed = object_of(Placement)
    row["properties"] |= placed["properties"]
    row["properties"]["nbytes_at_most"] = _AT_MOST
    row["required"] += placed["required"]
    row["description"] += " In the same row: " + placed["description"]
    definitions["Tensor"] = row
    definitions |= layouts.definitions() | provenances.definitions()
    arrays = {name: r.__name__ for name, r in _TABLES.items()} | {"tensors": "Tensor"}
    properties: dict[str, Any] = {
        "schema": {"const": SCHEMA},
        "kind": {"const": KIND},
        "planner": {"enum": list(PLANNERS)},
        "source": {"enum": list(SOURCES)},
        "partial": {
            "type": "string",
            "description": "The part of the plan that a log shows; empty for a whole plan.",
        },
        "printed": {
            "anyOf": [ref("PrintRecord"), {"type": "null"}],
            "description": "Of a log: the part of the plan that it shows.",
        },
        "may_be_cut": {
            "type": "boolean",
            "description": "Whether the last line of the log may be cut off.",
        },
        "headline": {"type": "string"},
        "unknown": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What a plan from a log or a snapshot does not contain, and what is"
            " assumed instead. A file without this key is older than the key.",
        },
        "promise": ref("Promise"),
        "provenance": ref("Provenance"),
        "memory": {
            "type": "array",
            "items": ref("MemoryRow"),
            "description": "Of the context that the plan was made for, if it is a model's.",
        },
        "choices": {
            "type": "array",
            "items": ref("Choice"),
            "description": "What llama.cpp decided before it planned.",
        },
        "expert_cache": {
            "type": "array",
            "items": ref("ExpertCache"),
            "description": "What llama.cpp's expert cache holds and may upload in an evaluation.",
        },
        "layout": {
            "anyOf": [ref("GraphLayout"), {"type": "null"}],
            "description": "What the graph allocator decided; null if it is not known.",
        },
        "n_splits": {"type": "integer"},
        "copy_bytes": {"type": "integer"},
        "copy_bytes_at_most": _AT_MOST,
        "shares": {"anyOf": [{"type": "array", "items": ref("DeviceShare")}, {"type": "null"}]},
        "hash_set_used": {"type": "integer"},
        "settings": ref("Settings"),
        "leafs": type_of(tuple[int, ...]),
        "dropped_pins": type_of(tuple[tuple[int, int], ...]),
        "split_capacities": type_of(tuple[int, ...]),
        "left_backend": type_of(int),
        "optimizers": type_of(int),
    }
    for name, definition in arrays.items():
        properties[name] = {"type": "array", "items": ref(definition)}
    properties["refusals"] = {
        "anyOf": [properties["refusals"], {"type": "null"}],
        "description": 'Each "no" in supports that is not about the op: it is about the memory of '
        "sources (srcs: their bits), or not on record (-1); null if it is not known which.",
    }
    return {
        "$schema": DRAFT,
        "title": "A plan of ggml's scheduler, with the graph and the backends' answers",
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in _LATER],
        "$defs": definitions,
    }

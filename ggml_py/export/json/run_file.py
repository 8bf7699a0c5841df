"""Runs as JSON: the events as columns, and the complete plans that they belong to.

The format is published as docs/run.schema.json, which `schema` makes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

from ...files.damage import INTERNAL, said
from ...files.reading import read_file
from ...trace.answers.run_summary import Gap, RunSummary, Spent, Synced, summarize
from ...trace.fields import fields_of
from ...trace.recorded import (
    COPY,
    EVENT_KINDS,
    HOWS,
    NODES,
    Recorded,
    RunEvent,
    SchedulerRecord,
)
from . import plan_file as to_json
from .schema import DRAFT, object_of, ref, type_of

SCHEMA = 2
OLDEST = 1  # without `how`, `by` and ggml's events
KIND = "ggml_py run"


def render(run: Recorded) -> dict[str, Any]:
    """The run as data that `json` can write."""
    columns = zip(*run.events, strict=True) if run.events else ((),) * len(RunEvent._fields)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "summary": summarize(run).as_dict(),
        "per_op": run.per_op,
        "memcpy": run.memcpy,
        "schedulers": [s._asdict() for s in run.schedulers],
        "events": {name: list(c) for name, c in zip(RunEvent._fields, columns, strict=True)},
        "plans": [to_json.render(plan) for plan in run.plans],
    }


def write(run: Recorded, path: str | Path) -> dict[str, Any]:
    """Writes the run to `path`, completely or not at all; compressed if that ends with ".gz"."""
    return to_json.write_data(render(run), path)


def read(path: str | Path) -> Recorded:
    """Reads the run from a file that `write` made. Raises ValueError that says what is wrong."""
    return parse(read_file(path), path)


def parse(content: bytes, path: str | Path) -> Recorded:
    """Like `read`, but takes the file's content. `path` is its name in errors."""
    data = to_json.loaded(content, path, KIND, SCHEMA, OLDEST)
    try:
        plans = tuple(to_json.plan_of(plan, f"a plan of {path}") for plan in data["plans"])
        schedulers = tuple(_record(row) for row in data["schedulers"])
        columns = [
            data["events"][field.name]
            for field in fields_of(RunEvent)
            if field.about.since <= data["schema"]
        ]
        events = tuple(RunEvent(*row) for row in zip(*columns, strict=True))
        run = Recorded(plans, schedulers, events, bool(data["per_op"]), float(data["memcpy"]))
        check(run)
    except INTERNAL as error:
        raise ValueError(f"{path} is a damaged run: {said(error)}") from None
    return run


def _record(row: dict[str, Any]) -> SchedulerRecord:
    backends, asynchronous, plans = (tuple(row[name]) for name in SchedulerRecord._fields[:3])
    record = SchedulerRecord(backends, asynchronous, plans, int(row["lost"]))
    if not all(isinstance(name, str) for name in record.backends):
        raise ValueError(f"backends are {record.backends}, expected names")
    answers = record.asynchronous
    if len(answers) != len(record.backends) or not all(isinstance(a, bool) for a in answers):
        raise ValueError("not every backend says whether it is asynchronous")
    return record


def check(run: Recorded) -> None:
    """Raises ValueError for events that refer to something that does not exist."""
    for i, event in enumerate(run.events):
        if event.kind not in EVENT_KINDS:
            raise ValueError(
                f"event {i} is a {event.kind!r}, expected one of {', '.join(EVENT_KINDS)}"
            )
        if event.how not in ("", *HOWS):
            raise ValueError(f"event {i} has how={event.how!r}, expected one of {', '.join(HOWS)}")
        numbers = event._replace(kind="", how="")
        if not all(type(n) is int for n in numbers if n != ""):
            raise ValueError(f"event {i} has {event}, expected whole numbers")
        if not 0 <= event.scheduler < len(run.schedulers):
            raise ValueError(f"event {i} is of scheduler {event.scheduler}, which does not exist")
        scheduler = run.schedulers[event.scheduler]
        if not -1 <= event.compute < len(scheduler.plans):
            raise ValueError(f"event {i} is of compute {event.compute}, which does not exist")
        for b in (event.backend, event.by):
            if not -1 <= b < len(scheduler.backends):
                raise ValueError(f"event {i} is on backend {b}, which does not exist")
        if event.end < event.start or event.nbytes < 0 or not -1 <= event.inside < len(run.events):
            raise ValueError(f"event {i} is not possible: {event}")
        _check_in_plan(run, scheduler, i, event)


def _check_in_plan(run: Recorded, scheduler: SchedulerRecord, i: int, event: RunEvent) -> None:
    index = scheduler.plans[event.compute] if event.compute >= 0 else -1
    if not -1 <= index < len(run.plans):
        raise ValueError(f"compute {event.compute} has plan {index}, which does not exist")
    if event.kind not in (COPY, NODES):
        return
    if event.backend < 0 or event.split < 0:
        raise ValueError(f"event {i} has no backend or no split")
    if index < 0:
        return
    splits = run.plans[index].splits
    if event.split >= len(splits):
        raise ValueError(f"event {i} is of split {event.split} of {len(splits)}")
    split = splits[event.split]
    n_inputs = len(split.inputs)
    if event.kind == COPY and not 0 <= event.input < n_inputs:
        raise ValueError(f"event {i} is of input {event.input} of {n_inputs}")
    if event.kind == NODES and not split.start <= event.first < event.last <= split.end:
        raise ValueError(
            f"event {i} is of nodes {event.first} to {event.last}, and its split has "
            f"{split.start} to {split.end}"
        )


# --- the published schema


def schema() -> dict[str, Any]:
    """The JSON Schema of the files that `write` makes. Plans in them are like plan files."""
    plan = to_json.schema()
    definitions = plan.pop("$defs")
    del plan["$schema"]
    definitions["Plan"] = plan
    definitions |= {r.__name__: object_of(r) for r in (SchedulerRecord, Spent, Gap, Synced)}
    definitions["RunSummary"] = _described(
        {name: type_of(hint) for name, hint in get_type_hints(RunSummary).items()}, RunSummary
    )
    columns = {
        field.name: {"type": "array", "items": type_of(field.hint)} for field in fields_of(RunEvent)
    }
    definitions["Events"] = _described(columns, RunEvent)
    definitions["Events"]["description"] += (
        " Each of these is a list, and all are of the same length."
    )
    properties: dict[str, Any] = {
        "schema": {"const": SCHEMA},
        "kind": {"const": KIND},
        "summary": ref("RunSummary"),
        "per_op": {"type": "boolean"},
        "memcpy": {"type": "number"},
        "schedulers": type_of(tuple[SchedulerRecord, ...]),
        "events": ref("Events"),
        "plans": {"type": "array", "items": ref("Plan")},
    }
    return {
        "$schema": DRAFT,
        "title": "What ggml's schedulers did while they computed, with their plans",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "$defs": definitions,
    }


def _described(properties: dict[str, Any], record: type) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False, "description": " ".join((record.__doc__ or "").split()),
    }  # fmt: skip

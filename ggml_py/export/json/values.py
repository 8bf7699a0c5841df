"""Records as JSON objects, and back."""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

from ...trace.expert_cache import ExpertCache
from ...trace.fields import fields_of, optional, plain, record_in
from ...trace.promise import Promise
from ...trace.provenance import FACTS, Provenance

# Properties that are written behind the fields of a record, with descriptions.
PROPERTIES: dict[Any, dict[str, str]] = {
    Promise: {"whose": "", "text": "The same in a sentence; empty without changes."},
    ExpertCache: {
        "upload_at_most": "Bytes that an evaluation uploads if the cache has none of the experts."
    },
}


def type_of_property(record: Any, name: str) -> Any:
    """The type of such a property."""
    return get_type_hints(getattr(record, name).fget)["return"]


def to_json(value: Any) -> Any:
    """The value as data that `json` can write."""
    if hasattr(value, "_asdict"):
        data = {name: to_json(v) for name, v in value._asdict().items()}
        return data | {name: getattr(value, name) for name in PROPERTIES.get(type(value), ())}
    if isinstance(value, Provenance):
        return {fact.name: to_json(getattr(value, fact.name)) for fact in FACTS}
    if not isinstance(value, tuple | list):
        return value
    record: Any = type(value[0]) if value else int
    if hasattr(record, "_fields") and record not in PROPERTIES and not _nested(record):
        return [row._asdict() for row in value]  # in half the time
    return [to_json(v) for v in value] if record not in (int, str) else list(value)


def from_json(hint: Any, value: Any) -> Any:
    """The value of this type in data that `to_json` made. Numbers and texts are as they are there,
    whatever the type says. Raises KeyError and TypeError for records with other fields."""
    if value is None and optional(hint):
        return None
    record = record_in(hint)
    if record is None:
        return tuples(value)
    if plain(optional(hint) or hint) is record:
        return _record(record, value)
    if not isinstance(value, list):
        raise TypeError(f"expected a list of {record.__name__}, got {type(value).__name__}")
    return tuple(_record(record, row) for row in value)


def _record(record: Any, row: dict[str, Any]) -> Any:
    if record is Provenance:
        row = {f.name: row[f.name] for f in FACTS if f.name in row or not f.later}
    if _is_flat(record):
        return record(**row)
    nested, more = _nested(record), PROPERTIES.get(record, {})
    return record(**{
        name: from_json(nested[name], value) if name in nested else tuples(value)
        for name, value in row.items() if name not in more
    })  # fmt: skip


@cache
def _nested(record: Any) -> dict[str, Any]:
    """The fields of a record that have records, with their types."""
    return {f.name: f.hint for f in fields_of(record) if record_in(f.hint)}


@cache
def _is_flat(record: Any) -> bool:
    """Whether all fields of a record are numbers and texts."""
    return record not in PROPERTIES and all(
        plain(f.hint) in (int, str, bool) for f in fields_of(record)
    )


def tuples(value: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value

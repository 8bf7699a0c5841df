"""JSON Schema of records as they are written to files."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

from ...trace.fields import about, fields_of, plain, record_in
from ...trace.provenance import FACTS, Provenance
from .values import PROPERTIES, type_of_property

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NAMES = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null",
}  # fmt: skip


def ref(name: str) -> dict[str, str]:
    """A reference to the definition of that name."""
    return {"$ref": f"#/$defs/{name}"}


def object_of(record: Any) -> dict[str, Any]:
    """The schema of a record: an object with all of its fields and no others."""
    properties = {field.name: type_of(field.hint) for field in fields_of(record)}
    required = list(properties)
    if record is Provenance:
        for fact in FACTS:
            properties[fact.name]["description"] = fact.said
        required = [fact.name for fact in FACTS if not fact.later]
    for name, said in PROPERTIES.get(record, {}).items():
        described = {"description": said} if said else {}
        properties[name] = type_of(type_of_property(record, name)) | described
    doc = record.__doc__ or ""
    described = {} if doc.startswith(record.__name__) else {"description": " ".join(doc.split())}
    return {
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": False, **described,
    }  # fmt: skip


def definitions_of(hints: Iterable[Any]) -> dict[str, Any]:
    """The definitions of the records that types refer to, and of the records in these."""
    found: dict[str, Any] = {}
    for hint in hints:
        record = record_in(hint)
        if record is not None and record.__name__ not in found:
            found[record.__name__] = object_of(record)
            found |= definitions_of(field.hint for field in fields_of(record))
    return found


def type_of(hint: Any) -> dict[str, Any]:
    """The schema of a type. A record becomes a reference to its definition."""
    if one_of := about(hint).one_of:
        return {"enum": list(one_of)}
    hint = plain(hint)
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    if hasattr(hint, "_fields") or is_dataclass(hint):
        return dict(ref(hint.__name__))
    if get_origin(hint) in (typing.Union, types.UnionType):
        return {"anyOf": [type_of(h) for h in get_args(hint)]}
    items = get_args(hint)
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": type_of(items[1])}
    if items[-1] is Ellipsis:
        return {"type": "array", "items": type_of(items[0])}
    fixed = [type_of(i) for i in items]
    return {"type": "array", "prefixItems": fixed, "minItems": len(fixed), "maxItems": len(fixed)}

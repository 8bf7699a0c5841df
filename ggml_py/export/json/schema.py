"""JSON Schema of records as they are written to files."""

from __future__ import annotations

import types
import typing
from typing import Any, get_args, get_origin, get_type_hints

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NAMES = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null",
}  # fmt: skip


def ref(name: str) -> dict[str, str]:
    """A reference to the definition of that name."""
    return {"$ref": f"#/$defs/{name}"}


def object_of(record: Any) -> dict[str, Any]:
    """The schema of a NamedTuple: an object with all of its fields and no others."""
    hints = get_type_hints(record)
    properties = {name: type_of(hints[name]) for name in record._fields}
    doc = record.__doc__ or ""
    described = {} if doc.startswith(record.__name__) else {"description": " ".join(doc.split())}
    return {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False, **described,
    }  # fmt: skip


def type_of(hint: Any) -> dict[str, Any]:
    """The schema of a type. A NamedTuple becomes a reference to its definition."""
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    if hasattr(hint, "_fields"):
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

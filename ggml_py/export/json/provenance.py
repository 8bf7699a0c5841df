"""How a plan was made, as a part of its JSON: loops over `trace.provenance.FACTS`."""

from __future__ import annotations

from typing import Any

from ...trace.provenance import FACTS, UNKNOWN, DeviceMade, Provenance
from .schema import object_of, type_of

_LATER = ("inferred",)  # facts that files of this schema may lack


def render(made: Provenance) -> dict[str, Any]:
    """The facts as data that `json` can write."""
    return {fact.name: _data(getattr(made, fact.name)) for fact in FACTS}


def _data(value: Any) -> Any:
    if isinstance(value, DeviceMade):
        return {name: _data(v) for name, v in value._asdict().items()}
    return [_data(v) for v in value] if isinstance(value, tuple) else value


def parse(data: dict[str, Any] | None) -> Provenance:
    """The facts in data that `render` made; `UNKNOWN` for a file that has none. Raises KeyError and
    TypeError for other data."""
    if data is None:
        return UNKNOWN
    facts = {
        fact.name: _tuples(data.get(fact.name) if fact.name in _LATER else data[fact.name])
        for fact in FACTS
    }
    if data["devices"] is not None:
        facts["devices"] = tuple(
            DeviceMade(**{name: _tuples(value) for name, value in row.items()})
            for row in data["devices"]
        )
    return Provenance(**facts)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def definitions() -> dict[str, Any]:
    """The definitions that the published schema needs."""
    return {
        "DeviceMade": object_of(DeviceMade),
        "Provenance": {
            "type": "object",
            "description": " ".join((Provenance.__doc__ or "").split()),
            "properties": {
                fact.name: {**type_of(fact.kind | None), "description": fact.said}
                for fact in FACTS
            },
            "required": [fact.name for fact in FACTS if fact.name not in _LATER],
            "additionalProperties": False,
        },
    }  # fmt: skip

"""Bytes that one evaluation of a plan moves, by the memory that they pass through."""

from __future__ import annotations

from typing import NamedTuple

from ..facts import Facts
from ..planned import Planned
from .shares import shares


class Passing(NamedTuple):
    """Bytes of one evaluation, estimated from shapes."""

    host: int  # read and written by backends that compute in the host's memory
    device: int  # read and written by backends with memory of their own
    link: int  # copied between backends


def passing(plan: Planned) -> Passing | None:
    """The bytes that a plan moves; None for a plan without shapes (`Plan.unknown`)."""
    parts = shares(plan)
    if parts is None:
        return None
    devices = {plan.backends[b].name for b in Facts(plan, 0).devices}
    inside = sum(part.bytes for part in parts if part.backend in devices)
    return Passing(sum(part.bytes for part in parts) - inside, inside, int(plan.copy_bytes))

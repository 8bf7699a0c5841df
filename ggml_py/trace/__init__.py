"""Plans as plain data: what the scheduler decided, and why."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answers.sweep import Sweep as Sweep
    from .answers.sweep import sweep as sweep

# Public name -> the module that defines it.
_PUBLIC = {"Sweep": "answers.sweep", "sweep": "answers.sweep"}


def __getattr__(name: str) -> Any:
    if name in ("capture", "reference"):
        return importlib.import_module(f".{name}", __name__)
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)

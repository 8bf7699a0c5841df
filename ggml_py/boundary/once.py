"""Refuses a second `__init__` of an object that owns a native one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

Init = Callable[..., None]


def once(init: Init) -> Init:
    """Wraps `init`: raises TypeError if the object already has its native one."""

    @wraps(init)
    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(self, "_native"):
            raise TypeError(f"this {type(self).__name__} is already made: make another")
        init(self, *args, **kwargs)

    return first


def each_once(cls: type) -> None:
    """Does the same for a subclass of Handle whose own `__init__` begins before Handle's."""
    if "__init__" in vars(cls):
        cls.__init__ = once(vars(cls)["__init__"])  # type: ignore[misc]

"""Objects that own something native are made once: a second `__init__` is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

Init = Callable[..., None]


def once(init: Init) -> Init:
    """`init`, which raises TypeError for an object that has its native one already."""

    @wraps(init)
    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(self, "_native"):
            raise TypeError(f"this {type(self).__name__} is made already: make another")
        init(self, *args, **kwargs)

    return first


def each_once(cls: type) -> None:
    """The same for a subclass of Handle, whose own `__init__` begins before Handle's."""
    if "__init__" in vars(cls):
        cls.__init__ = once(vars(cls)["__init__"])  # type: ignore[misc]

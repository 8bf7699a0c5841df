"""Lets one call at a time use a model: a second one would change the first one's cells and inputs.
Taking the handles below is not enough, because that lasts for a single C call only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from ..boundary.uses import COMPUTING as COMPUTING
from ..boundary.uses import GENERATING as GENERATING
from ..boundary.uses import in_use

P = ParamSpec("P")
M = TypeVar("M", bound="Alone")
R = TypeVar("R")
CHANGING, PLANNING, CLOSING = "being changed", "planning", "being closed"


class Alone:
    """An object that one call at a time may use."""

    ptr = None
    _for_each_thread = "load one for each thread"

    def _lose(self) -> None:
        """Nothing: in the child of a fork its handles are lost one by one."""


def alone(
    doing: str,
) -> Callable[[Callable[Concatenate[M, P], R]], Callable[Concatenate[M, P], R]]:
    """Decorates a method of a model: until it returns, other decorated methods raise `BusyError`,
    even on the same thread (in a callback). Only calls inside a `GENERATING` one are let in."""

    def decorate(function: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
        @wraps(function)
        def call(model: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with in_use(doing, model):
                return function(model, *args, **kwargs)

        return call

    return decorate

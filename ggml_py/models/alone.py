"""Lets one call at a time use a model: a second one would change the first one's cells and inputs.
Taking the handles below is not enough, because that lasts for a single C call only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Concatenate, ParamSpec, TypeVar

from ..boundary.uses import COMPUTING as COMPUTING
from ..boundary.uses import locked
from ..errors import BusyError

P = ParamSpec("P")
M = TypeVar("M", bound="Alone")
R = TypeVar("R")
User = tuple[str, int, object]  # what it does, its thread, its process
GENERATING = "generating"  # runs a sampler, which may itself use the model
CHANGING, PLANNING, CLOSING = "being changed", "planning", "being closed"
_process = object()


class Alone:
    """An object that one call at a time may use."""

    _in_use_by: User | None = None


def alone(
    doing: str,
) -> Callable[[Callable[Concatenate[M, P], R]], Callable[Concatenate[M, P], R]]:
    """Decorates a method of a model: until it returns, other decorated methods raise `BusyError`,
    even on the same thread (in a callback). Only calls inside a `GENERATING` one are let in."""

    def decorate(function: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
        @wraps(function)
        def call(model: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
            user, before = (doing, get_ident(), _process), None
            try:
                with locked():
                    before = model._in_use_by
                    if before is None or _lets_in(before, user):
                        model._in_use_by = user
                if model._in_use_by is not user:
                    raise BusyError(_busy(before, user))
                return function(model, *args, **kwargs)
            finally:  # calls nothing: a signal handler might raise in a call
                if model._in_use_by is user:
                    model._in_use_by = before

        return call

    return decorate


def _lets_in(before: User, user: User) -> bool:
    """Whether `user` may run beside `before`: a sampler on the same thread may, and so may any call
    after a fork, because the thread of `before` does not exist in this process."""
    return before[2] is not user[2] or (before[0] is GENERATING and before[1] == user[1])


def _busy(before: User | None, user: User) -> str:
    assert before is not None
    where = "further up on this thread" if before[1] == user[1] else "on another thread"
    return (
        f"this Model is {before[0]} {where}: wait until that call returns, or load one for each "
        "thread"
    )


def _after_fork_in_child() -> None:
    global _process
    _process = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

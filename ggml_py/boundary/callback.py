"""Python functions that ggml calls.

No exception can pass through C. So the first one is stored, later calls do nothing, and whoever
waits for the native call raises it when that returns (computing.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from .ffi import ffi

STORED: set[int] = set()  # the Callbacks, by id, whose exception nobody has raised yet


class Callback:
    """What native code has as its user data. A subclass says what a call does in `_run`."""

    __slots__ = ("_stored", "handle")

    def __init__(self) -> None:
        self._stored: BaseException | None = None
        self.handle = ffi.new_handle(self)  # lives as long as this object: hold it

    def __call__(self, *args: Any) -> Any:
        """The result of `_run`; None when it raised, now or before."""
        if self._stored is None:
            try:
                return self._run(*args)
            except BaseException as error:  # KeyboardInterrupt too
                self._store(error)
        return None

    def _run(self, *args: Any) -> Any:
        raise NotImplementedError

    def _store(self, error: BaseException) -> None:
        if self._stored is None:  # another thread may have been first
            self._stored = error
        STORED.add(id(self))

    def take_stored(self) -> BaseException | None:
        """What it raised, once; it can be called again from now on."""
        STORED.discard(id(self))
        error, self._stored = self._stored, None
        return error


@contextlib.contextmanager
def raising_stored(callbacks: Sequence[Callback]) -> Iterator[None]:
    """Around a call that waits for native code: what the callbacks raised in it is raised, in
    place of what the call itself says of being stopped."""
    try:
        yield
    finally:
        stored = [error for c in callbacks if (error := c.take_stored()) is not None]
        if stored:
            try:
                raise stored[0]
            finally:
                stored.clear()  # as in `raise_stored`


class AbortCallback(Callback):
    """Asked between the nodes of a compute whether it shall stop.

    Native code has the address of `cell`, which is empty without a predicate: so setting one counts
    for plans that were made before, and without one no Python is called."""

    __slots__ = ("_predicate", "cell")

    def __init__(self, predicate: Callable[[], bool] | None = None) -> None:
        super().__init__()
        self.cell = ffi.new("void *[1]")
        self.predicate = predicate

    @property
    def predicate(self) -> Callable[[], bool] | None:
        """What is asked."""
        return self._predicate

    @predicate.setter
    def predicate(self, predicate: Callable[[], bool] | None) -> None:
        self._predicate = predicate
        self.cell[0] = ffi.NULL if predicate is None else self.handle

    def _run(self) -> bool:
        return self.predicate is not None and bool(self.predicate())


def called_from_c(name: str, failed: int | None = None) -> Callable[..., Any]:
    """Makes the decorated function the C function `name`; its last argument is `user_data`, the
    handle of a `Callback`.

    A signal's handler may raise before `Callback.__call__` is there to store it: that is stored
    too, and C gets `failed`.
    """

    def store(
        _type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> int | None:
        if error is not None and traceback is not None:
            ffi.from_handle(traceback.tb_frame.f_locals["user_data"])._store(error)
        return failed

    decorator: Callable[..., Any] = ffi.def_extern(name=name, onerror=store)
    return decorator


def raise_stored(address: int) -> None:
    """Raises what the Callback with that handle stored. Called by the native module (module.h)."""
    error = ffi.from_handle(ffi.cast("void *", address)).take_stored()
    if error is not None:
        try:
            raise error
        finally:
            del error  # a cycle with its traceback would keep the handles of the call open


@called_from_c("gp_on_abort", failed=True)
def _on_abort(user_data: Any) -> bool:
    answer = ffi.from_handle(user_data)()
    return True if answer is None else answer  # None: it raised

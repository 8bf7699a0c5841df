"""The calls in progress, and the handles that each uses: rules 7 to 12 of docs/HANDLES.md.

A call enters itself in `USES` under one lock, which is held briefly and never while C runs. It is
refused (`BusyError`) or waits if it meets another call there. The lock is re-entrant because
garbage collection may run a finalizer, and a signal its handler, while the same thread holds it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from ..errors import BusyError
from .arguments import shown

CLOSING = "being closed"
COMPUTING = "computing"
GENERATING = "generating"  # a model runs a sampler, which may itself use the model
LOCK = threading.RLock()  # around a change of `USES` that depends on what is in it
LATER: list[Callable[[], None]] = []  # work of finalizers that met a call, for the end of a call


class in_use:
    """Around a call that changes `handles` or takes long. Meanwhile other calls that use one of
    them, or close it, raise `BusyError`; it waits for calls that read them (`reading`)."""

    __slots__ = ("doing", "handles", "thread")
    reads: tuple[Any, ...] = ()
    graph: Any = None  # a Graph of `handles` whose tensors it uses
    changes = False  # whether it changes tensors that graphs may share: backends/sharing.py
    allocates = False  # whether it gives memory to tensors of a context

    def __init__(self, doing: str, *handles: Any) -> None:
        self.doing, self.handles, self.thread = doing, handles, get_ident()

    def begin(self) -> None:
        """Enters it. Raises `BusyError` or `ClosedError`."""
        if self._enter():
            wait_while(self._enter)
        if len(USES) > 1 and self.doing != COMPUTING:
            wait_while(self._is_read)

    def _enter(self) -> bool:
        """Enters it, or returns True: it has to wait."""
        with LOCK:
            if USES and self._check(self.handles):
                return True
            if self.doing != CLOSING:
                for handle in self.handles:
                    handle.ptr  # noqa: B018  raises when closed, maybe just now by another thread
                for handle in self.reads:
                    handle.ptr  # noqa: B018
            USES.add(self)
        return False

    def _check(self, handles: Sequence[Any]) -> bool:
        """Raises for calls that it meets. Returns whether one has to end first."""
        wait = False
        for use in [*USES]:
            mine = use.thread == self.thread
            wait |= self.allocates and use.changes and not mine
            for handle in handles if not mine or use.doing not in _LET_IN else ():
                if handle in use.handles:
                    raise use.refuses(handle)
            for handle in self.reads if not mine and use.doing != COMPUTING else ():
                if handle in use.handles:
                    raise use.refuses(handle)
        return wait

    def also(self, handle: Any) -> None:
        """Uses another handle until it ends. Raises like `begin`."""
        with LOCK:
            self._check((handle,))
            handle.ptr  # noqa: B018
            self.handles = (*self.handles, handle)

    def _is_read(self) -> bool:
        """Whether other threads read one of the handles. New readers are refused by now. A read is
        short and runs no Python except signal handlers."""
        for use in [*USES]:
            for handle in use.reads:
                if handle in self.handles:
                    if use.thread == self.thread:
                        raise use.refuses(handle)
                    return True
        return False

    def end(self) -> None:
        """Leaves, if it has entered."""
        USES.discard(self)
        if LATER and (self.handles or self.reads):  # otherwise it is such work itself
            do_later()

    def refuses(self, handle: Any) -> BusyError:
        """The error of another call that needs `handle`."""
        each = getattr(handle, "_for_each_thread", "make one for each thread")
        return BusyError(
            f"this {shown(type(handle))} is {self.where()}: wait until that returns, or {each}"
        )

    def where(self) -> str:
        """What it does, and whether on this thread."""
        here = self.thread == get_ident()
        return f"{self.doing} {'further up on this thread' if here else 'on another thread'}"

    def __enter__(self) -> None:
        try:
            self.begin()
        except BaseException:
            self.end()
            raise

    def __exit__(self, *_raised: object) -> None:
        self.end()


USES: set[in_use] = set()
_LET_IN = (CLOSING, GENERATING)  # what these do, they do by other calls on the same thread


class reading(in_use):
    """Around a call that reads what others change. Several threads may read at a time, also while
    it computes, and so may the thread that changes it. Raises `BusyError` while another thread
    changes it."""

    __slots__ = ("reads",)

    def __init__(self, *handles: Any) -> None:
        super().__init__("being read")
        self.reads = handles


def users_of(handle: Any) -> list[in_use]:
    """The calls that use a handle now, without those that only read it."""
    return [use for use in [*USES] if handle in use.handles]


def closed_elsewhere(handle: Any) -> in_use | None:
    """The call of another thread that closes a handle now."""
    for use in users_of(handle):
        if use.doing == CLOSING and use.thread != get_ident():
            return use
    return None


def wait_while(busy: Callable[[], bool]) -> None:
    """Waits until `busy()` is False."""
    pause = 1e-5
    while busy():
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def do_later() -> None:
    """Does the work that finalizers left, unless it still meets a call; the end of that does it."""
    for work in [*LATER]:
        with contextlib.suppress(BusyError):
            work()


def left_in_use() -> list[Any]:
    """In the child of a fork: forgets the calls of other threads, which it does not have. Returns
    the handles that they used: nobody finishes what they were doing."""
    global LOCK
    LOCK = threading.RLock()  # a thread that is gone may hold the old one
    lost = [use for use in [*USES] if use.thread != get_ident()]
    USES.difference_update(lost)
    return [handle for use in lost for handle in use.handles]

"""The calls in progress, and the handles that each uses. docs/HANDLES.md has the rules.

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
_lock = threading.RLock()  # held while a call looks at `USES` and enters it
LATER: list[Callable[[], None]] = []  # work of finalizers that met a call, for the end of a call


class in_use:
    """Around a call that changes `handles` or takes long, and only reads `reads`. Other calls with
    the same handles raise `BusyError` until it ends. It waits for calls that read them."""

    __slots__ = ("doing", "handles", "reads", "thread")
    graph: Any = None  # a Graph of `handles` whose tensors it uses
    changes = False  # whether it changes tensors that graphs may share: backends/sharing.py
    allocates = False  # whether it gives memory to tensors of a context

    def __init__(self, doing: str, *handles: Any, reads: Sequence[Any] = ()) -> None:
        self.doing, self.handles, self.reads, self.thread = doing, handles, reads, get_ident()

    def __enter__(self) -> None:
        try:
            if self.enter():
                wait_while(self.enter)
            if len(USES) > 1:
                self.meet()
        except BaseException:
            self.end()
            raise

    def enter(self) -> bool:
        """Enters `USES`, or returns True: it has to wait. Raises `BusyError` or `ClosedError`."""
        with _lock:
            if USES and self._check(self.handles):
                return True
            if self.doing != CLOSING:
                for handle in self.handles:
                    handle.ptr  # noqa: B018  raises when closed, maybe just now by another thread
                for handle in self.reads:
                    handle.ptr  # noqa: B018
            USES.add(self)
        return False

    def meet(self) -> None:
        """Waits for calls that it meets and that began earlier, or raises `BusyError`."""
        if self.doing != COMPUTING:
            wait_while(self._is_read)

    def end(self, *_raised: object) -> None:
        """Leaves `USES`, if it has entered."""
        USES.discard(self)
        if LATER and (self.handles or self.reads):  # otherwise it is such work itself
            do_later()

    __exit__ = end

    def _check(self, handles: Sequence[Any]) -> bool:
        """Raises for calls that it meets. Returns whether one has to end first."""
        wait = False
        for use in [*USES]:
            mine = use.thread == self.thread
            wait |= self.allocates and use.changes and not mine
            for handle in handles if not mine or use.doing != CLOSING else ():  # it may close more
                if handle in use.handles:
                    raise use.refuses(handle)
            for handle in self.reads if not mine and use.doing != COMPUTING else ():
                if handle in use.handles:
                    raise use.refuses(handle)
        return wait

    def also(self, handle: Any) -> None:
        """Uses another handle until it ends. Raises like `enter`."""
        with _lock:
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

    def refuses(self, handle: Any) -> BusyError:
        """The error of another call that needs `handle`."""
        return BusyError(
            f"this {shown(type(handle))} is {self.where()}: wait until that returns, or make one "
            "for each thread"
        )

    def where(self) -> str:
        """Words for an error: the work, and whether it is on this thread."""
        here = self.thread == get_ident()
        return f"{self.doing} {'further up on this thread' if here else 'on another thread'}"


USES: set[in_use] = set()


class reading(in_use):
    """Around a call that reads what others change. Several threads may read at a time, also while
    it computes, and so may the thread that changes it. Raises `BusyError` while another thread
    changes it."""

    __slots__ = ()

    def __init__(self, *handles: Any) -> None:
        super().__init__("being read", reads=handles)


def users_of(handle: Any) -> list[in_use]:
    """The calls that change a handle or compute with it now."""
    return [use for use in [*USES] if handle in use.handles]


def closed_elsewhere(handle: Any) -> in_use | None:
    """The call of another thread that closes a handle now."""
    for use in users_of(handle):
        if use.doing == CLOSING and use.thread != get_ident():
            return use
    return None


def locked() -> contextlib.AbstractContextManager[bool]:
    """Around code during which no call enters `USES`. Keep it short."""
    return _lock


def wait_while(busy: Callable[[], bool]) -> None:
    """Waits until `busy()` is False."""
    pause = 1e-5
    while busy():
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def do_later() -> None:
    """Does the work that finalizers left. Work that still meets a call stays for its end."""
    for work in [*LATER]:
        with contextlib.suppress(BusyError):
            work()


def left_in_use() -> list[Any]:
    """In the child of a fork: forgets the calls of other threads, which it does not have. Returns
    the handles that they used: nobody finishes what they were doing."""
    global _lock
    _lock = threading.RLock()  # a thread that is gone may hold the old one
    lost = [use for use in [*USES] if use.thread != get_ident()]
    USES.difference_update(lost)
    return [handle for use in lost for handle in use.handles]

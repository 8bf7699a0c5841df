"""Graphs that share tensors: one computes while the memory or the sources of its tensors change.

Graphs of the same nodes share their tensors, and so does a graph that continues another one. The
second graph then uses memory that a scheduler or allocator lent to the first, and holds neither.
A call that changes tensors (plans nodes, takes memory back) therefore enters itself in `CHANGES`
and then checks the graphs in use. A compute enters its graph in `USED` and then checks `CHANGES`.
If two meet, at least one sees the other and raises `BusyError`. A finalizer cannot raise: it leaves
its work for the end of the compute.

Computing again costs nothing: a graph stays in `USED` until a call that changes tensors finds it
idle and removes it. The next compute then checks the graph's tensors again (`Graph._whole_at`) and
puts it back. Both happen under the lock of `take`, so no compute begins in between.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Sequence
from threading import active_count, get_ident
from typing import TYPE_CHECKING, Any

from ..boundary.ffi import NULL, ffi, lib
from ..boundary.handle import (
    CLOSING,
    COMPUTING,
    Handle,
    Held,
    User,
    exiting,
    give_back,
    in_use,
    locked,
    reading,
    take,
)
from ..errors import BusyError, ClosedError, SpoiledError

if TYPE_CHECKING:
    from .above import AnyGraph

USED: dict[int, weakref.ref[AnyGraph]] = {}  # by id: graphs whose tensors are or were in use
CHANGES: list[changing] = []
_ENDED: list[object] = [object()]  # another one whenever a change has ended
ALLOCATING: list[int] = []  # the threads that are in `Context.alloc` or `Tensor.alloc`
LATER: list[tuple[changing, Callable[[], None]]] = []  # work that finalizers left


class changing(in_use):
    """Around a call that changes tensors: those with memory from `lenders` lose it, with `nodes`
    the nodes of `graph` get other sources, and with `gives` its tensors without memory get some.
    `graph` also counts as used. Works like `in_use`, and also raises `BusyError` if another user
    has one of these tensors. With `brief`, or with `gives` and no other thread, its tensors are
    listed only when another call asks for them. A call on another thread waits for this one."""

    __slots__ = ("_gives", "_graph", "_lenders", "_lent", "_nodes")

    def __init__(
        self,
        doing: str,
        *handles: Handle,
        graph: AnyGraph | None = None,
        lenders: Sequence[Lender] = (),
        lent: Sequence[Any] = (),
        brief: bool = False,
        nodes: bool = True,
        gives: bool = False,
    ) -> None:
        self._user = (doing, get_ident())
        self._handles = handles
        self._graph, self._lenders, self._nodes, self._gives = graph, lenders, nodes, gives
        self._lent: Sequence[Any] | None = None if brief else lent

    def __enter__(self) -> None:
        try:
            take(self._user, self._handles)
            if self._gives and active_count() == 1:
                self._lent = None  # the list takes a third of the time of an allocation
            elif (self._lenders or self._gives) and self._lent is not None:
                self._ask()
            CHANGES.append(self)
            if ALLOCATING:
                self._wait_for_allocations()
            if USED or len(CHANGES) > 1:
                if (user := self.used_by()) is not None:
                    raise BusyError(
                        f"a Graph that is {_where(user)} has tensors that this would change: "
                        f"{_ADVICE}"
                    )
                if self._graph is not None:
                    _check_changes(self._graph, self)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_raised: object) -> None:
        if self in CHANGES:
            _ENDED[0] = object()  # before the removal: who misses it in `CHANGES` sees this
            CHANGES.remove(self)
        give_back(self._user, self._handles)
        if LATER:
            free_later()

    def _wait_for_allocations(self) -> None:
        me, pause = self._user[1], 1e-5
        while ALLOCATING:
            if me in ALLOCATING:  # a callback or a signal handler
                raise BusyError(_ALLOCATING)
            time.sleep(pause)
            pause = min(2 * pause, 0.01)

    def _ask(self) -> None:
        self._lent = [lender._lent_tensors() for lender in self._lenders]
        if self._gives and self._graph is not None:
            self._lent.append(without_memory(self._graph.ptr))

    def used_by(self) -> User | None:
        """The user of another graph with one of these tensors, None without one."""
        pending = self._others()
        while pending:
            graph, user = pending.pop()
            try:
                with _beside(graph):  # keeps the graph's memory
                    met = self.meets(graph.ptr)
            except (ClosedError, SpoiledError):
                continue
            if met and graph._user is user:
                return user
            if met:  # that use has ended, and another may have begun
                pending = self._others()
        return None

    def _others(self) -> list[tuple[AnyGraph, User]]:
        """Other graphs in use now, with their users."""
        found = {}
        with locked():
            for key, ref in USED.copy().items():  # a finalizer may remove some meanwhile
                graph = ref()
                user = None if graph is None else graph._user
                if graph is not None and user is not None:
                    if user[0] in _USES:
                        found[key] = graph, user
                    continue
                USED.pop(key, None)
                if graph is not None:
                    graph._whole_at = -1
            for change in list(CHANGES):  # others end without the lock
                if (graph := change._graph) is not None and (user := graph._user) is not None:
                    found[id(graph)] = graph, user
        mine = [id(handle) for handle in self._handles]
        return [used for key, used in found.items() if key not in mine]

    def meets(self, graph: Any) -> bool:
        """Whether it changes a tensor of a native graph. It may have ended since `CHANGES` was
        read, and its own graph may be closed by now."""
        if self._graph is not None and self._nodes:
            with contextlib.suppress(ClosedError, SpoiledError):
                if lib.gp_graph_shares(graph, self._graph.ptr):
                    return True
        if self._lent is None:
            if self._user[1] != get_ident():
                end = time.monotonic() + 1
                while self in CHANGES and time.monotonic() < end:
                    time.sleep(1e-5)
                return self in CHANGES
            self._ask()
        return any(lib.gp_graph_uses(graph, t, len(t)) for t in self._lent or () if len(t))


_USES = (COMPUTING, "being compared", "being reset", "being planned")
_ALLOCATING = (
    "an alloc further up on this thread may need tensors that this would change: wait until "
    "that returns"
)
_ADVICE = "wait until that returns, or build the nodes once for each thread"


def _where(user: User) -> str:
    here = user[1] == get_ident()
    return f"{user[0]} {'further up on this thread' if here else 'on another thread'}"


def use(graph: AnyGraph) -> None:
    """Marks the tensors of a taken graph as in use until it is given back. Raises `BusyError` while
    another call changes one of them."""
    with locked():
        USED[id(graph)] = weakref.ref(graph)
    if CHANGES:
        _check_changes(graph)


def _check_changes(graph: AnyGraph, mine: changing | None = None) -> None:
    raw = graph.ptr
    for change in list(CHANGES):
        if change is mine or graph in change._handles or not change.meets(raw):
            continue
        if change in CHANGES:  # else it has ended, and what it did is found later
            kind = type(change._handles[0]).__name__ if change._handles else "Scheduler"
            raise BusyError(
                f"a {kind} that is {_where(change._user)} changes tensors of this Graph: {_ADVICE}"
            )


def last_ended() -> object:
    """Another object whenever a change has ended since."""
    return _ENDED[0]


def changed_elsewhere(tensor: Any) -> str:
    """What another thread is doing to a graph with this native tensor; "" if nothing."""
    for change in list(CHANGES):
        graph = change._graph
        if graph is None or change._user[1] == get_ident():
            continue
        try:
            with _beside(graph):
                if lib.gp_graph_has(graph.ptr, tensor):
                    return change._user[0]
        except (ClosedError, SpoiledError):
            continue
    return ""


class allocating(in_use):
    """Around a call that allocates the tensors of a context. Until it ends, nobody takes back the
    memory that a scheduler or allocator lent to one of them or to the source of a view."""

    __slots__ = ()

    def __init__(self, context: Handle) -> None:
        super().__init__("allocating", context)

    def __enter__(self) -> None:
        super().__enter__()
        try:
            _begin_allocating(self._user[1])
        except BaseException:  # Ctrl-C
            self.__exit__()
            raise

    def __exit__(self, *_raised: object) -> None:
        _end_allocating(self._user[1])
        super().__exit__()
        if LATER:
            free_later()


class placing(reading):
    """Around a call that gives memory to one tensor: like `allocating`, but `handles` (its context,
    the buffer, the graphs that it may be in) can be read meanwhile."""

    __slots__ = ()

    def __enter__(self) -> None:
        super().__enter__()
        try:
            _begin_allocating(get_ident())
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_raised: object) -> None:
        _end_allocating(get_ident())
        super().__exit__()
        if LATER:
            free_later()


def _begin_allocating(me: int) -> None:
    pause = 1e-5
    while True:
        ALLOCATING.append(me)
        # Calls that change tensors go first; those that begin later see this one and wait.
        if all(change._user[1] == me for change in list(CHANGES)):
            return
        ALLOCATING.remove(me)
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def _end_allocating(me: int) -> None:
    if me in ALLOCATING:
        ALLOCATING.remove(me)


class _beside(reading):
    """Around a call that only reads what another thread uses."""

    __slots__ = ()

    def __enter__(self) -> None:
        with locked():
            for handle in self._handles:
                handle.ptr  # noqa: B018  raises when closed
            for handle in self._handles:
                handle._readers = (*handle._readers, get_ident())


class using(in_use):
    """Around a call other than a compute that uses the memory of a graph's tensors."""

    __slots__ = ()

    def __init__(self, doing: str, graph: AnyGraph) -> None:
        super().__init__(doing, graph)

    def __enter__(self) -> None:
        super().__enter__()
        try:
            use(self._handles[0])  # type: ignore[arg-type]
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_raised: object) -> None:
        super().__exit__()
        if LATER:
            free_later()


# --- lent memory


class Lender(Handle):
    """A scheduler or an allocator: lends memory to the tensors of one graph at a time."""

    __slots__ = ()
    _lends = True

    @property
    def _graph(self) -> Any:
        """The graph that is allocated here now; None without one."""
        raise NotImplementedError

    def _lent_tensors(self) -> Any:
        """A native array of the tensors that it lends memory to now."""
        raise NotImplementedError

    def reset(self) -> None:
        """Takes back the memory that it lent to the graph's tensors."""
        raise NotImplementedError

    def _closing(self, handles: Sequence[Handle]) -> in_use:
        lenders = [handle for handle in handles if isinstance(handle, Lender)]
        return changing(CLOSING, *handles, lenders=lenders)


def without_memory(graph: Any) -> Any:
    """The tensors of a native graph that have no memory, as a native array."""
    room, n = -1, 0
    while n != room:  # another thread may give or take memory meanwhile
        room = n
        tensors = ffi.new("struct ggml_tensor *[]", room)
        n = lib.gp_graph_unallocated(graph, tensors, room)
    return tensors


def lent_by(scheduler: Any) -> Any:
    """The tensors to which a native scheduler gave memory or other sources."""
    tensors = ffi.new("struct ggml_tensor *[]", lib.gp_sched_lent(scheduler, NULL))
    lib.gp_sched_lent(scheduler, tensors)
    return tensors


def free_lender(
    raw: Any,
    held: Held,
    lent: Callable[[Any], Any],
    take: Callable[[Any], None] | None,
    free: Callable[[Any], None],
) -> None:
    """The finalizer of a native scheduler or allocator that nobody closed. `take(raw)` takes the
    memory from the tensors `lent(raw)`, if any of them still exist."""
    if held.native is None or take is None or exiting():
        free(raw)
        return

    def take_and_free() -> None:
        take(raw)
        held.native, held.tensors = None, ()  # `take` needed them
        free(raw)
        held.needs = []

    _free_or_later(changing("being freed", lent=[lent(raw)]), take_and_free)


def _free_or_later(change: changing, free: Callable[[], None]) -> None:
    while True:
        try:
            with change:
                free()
            return
        except BusyError:
            LATER.append(entry := (change, free))
        if change._user[1] in ALLOCATING or change.used_by() is not None:
            return  # the other call frees what is in LATER when it ends
        try:
            LATER.remove(entry)
        except ValueError:
            return  # another thread has freed it


def free_later() -> None:
    """Does the work that finalizers left for the end of a call."""
    for entry in list(LATER):
        try:
            LATER.remove(entry)
        except ValueError:
            continue  # another thread has taken it
        _free_or_later(*entry)


def _after_fork_in_child() -> None:
    """Forgets the other threads, which the child does not have."""
    me = get_ident()
    CHANGES[:] = [change for change in CHANGES if change._user[1] == me]
    ALLOCATING[:] = [thread for thread in ALLOCATING if thread == me]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

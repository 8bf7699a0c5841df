"""Graphs that share tensors: one computes while the memory or the sources of its tensors change.

Graphs of the same nodes share their tensors, and so does a graph that continues another one. The
second graph then uses memory that a scheduler or allocator lent to the first, and holds neither.
So a call that changes tensors (plans nodes, takes memory back) looks for calls that use a graph
with these tensors. Both enter themselves (boundary/uses.py) before they look. If two meet, at least
one sees the other and raises `BusyError`. A finalizer cannot raise: it leaves its
work for the end of the other call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from threading import active_count, get_ident
from typing import TYPE_CHECKING, Any

from ..boundary.ffi import NULL, ffi, lib
from ..boundary.handle import Handle, Held, exiting
from ..boundary.uses import CLOSING, LATER, USES, do_later, in_use, locked, reading, wait_while
from ..errors import BusyError, ClosedError, SpoiledError

if TYPE_CHECKING:
    from .above import AnyGraph


class changing(in_use):
    """Around a call that changes tensors: those with memory from `lenders` lose it, with `nodes`
    the nodes of `graph` get other sources, and with `gives` its tensors without memory get some.
    `graph` also counts as used. Raises `BusyError` as `in_use` does, and if another call uses
    these tensors. With `brief`, or with `gives` and no other thread, its tensors are listed only if
    another call is in progress. A call that begins later waits for the end of this one."""

    __slots__ = ("_gives", "_lenders", "_lent", "_nodes", "changes", "graph")

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
        self.doing, self.handles, self.reads, self.thread = doing, handles, (), get_ident()
        self.graph, self._lenders, self._nodes, self._gives = graph, lenders, nodes, gives
        self._lent: Sequence[Any] | None = None if brief else lent
        self.changes = False  # from when others must look at it

    def __enter__(self) -> None:
        try:
            self.enter()
            if len(USES) > 1:
                self.meet()
            if self._gives and active_count() == 1:
                self._lent = None  # the list takes a third of the time of an allocation
            elif (self._lenders or self._gives) and self._lent is not None:
                self._ask()
            with locked():  # a call that allocates sees it, or is seen below
                self.changes = True
            if len(USES) > 1:
                if self._lent is None:  # now, so that nobody waits while this one waits
                    self._ask()
                wait_while(self._waits_for_allocations)
                self._check_graphs()
                if self.graph is not None:
                    check_changes(self.graph, self)
        except BaseException:
            self.end()
            raise

    def _waits_for_allocations(self) -> bool:
        for use in [*USES]:
            if use.allocates:
                if use.thread == self.thread or not self.handles:  # no finalizer waits
                    raise BusyError(_ALLOCATING)
                return True
        return False

    def _ask(self) -> None:
        self._lent = [lender._lent_tensors() for lender in self._lenders]
        if self._gives and self.graph is not None:
            self._lent.append(without_memory(self.graph.ptr))

    def _check_graphs(self) -> None:
        """Raises `BusyError` if another call uses a graph with one of these tensors."""
        for use in [*USES]:
            graph = use.graph
            if graph in use.handles and graph not in self.handles:
                with contextlib.suppress(ClosedError, SpoiledError), _beside(graph):
                    if self.meets(graph.ptr) and use in USES:  # else it has ended
                        raise BusyError(
                            f"a Graph that is {use.where()} has tensors that this would change: "
                            f"{_ADVICE}"
                        )

    def meets(self, graph: Any) -> bool:
        """Whether it changes a tensor of a native graph. It may have ended since `USES` was
        read, and its own graph may be closed by now."""
        if self.graph is not None and self._nodes:
            with contextlib.suppress(ClosedError, SpoiledError):
                if lib.gp_graph_shares(graph, self.graph.ptr):
                    return True
        if self._lent is None and self.thread == get_ident():
            self._ask()
        elif self._lent is None:
            end = time.monotonic() + 1
            wait_while(lambda: self._lent is None and self in USES and time.monotonic() < end)
            if self._lent is None:
                return self in USES
        return any(lib.gp_graph_uses(graph, t, len(t)) for t in self._lent or () if len(t))


_ALLOCATING = (
    "an alloc further up on this thread may need tensors that this would change: wait until "
    "that returns"
)
_ADVICE = "wait until that returns, or build the nodes once for each thread"


def check_changes(graph: AnyGraph, mine: in_use) -> None:
    """Raises `BusyError` while another call than `mine` changes a tensor of the graph."""
    for use in [*USES]:
        if use.changes and use is not mine and isinstance(use, changing):
            if graph in use.handles or not use.meets(graph.ptr):
                continue
            if use in USES:  # else it has ended, and what it did is found later
                kind = type(use.handles[0]).__name__ if use.handles else "Scheduler"
                raise BusyError(
                    f"a {kind} that is {use.where()} changes tensors of this Graph: {_ADVICE}"
                )


def changed_elsewhere(tensor: Any) -> str:
    """What another thread is doing to a graph with this native tensor; "" if nothing."""
    for use in [*USES]:
        if use.changes and use.graph is not None and use.thread != get_ident():
            with contextlib.suppress(ClosedError, SpoiledError), _beside(use.graph):
                if lib.gp_graph_has(use.graph.ptr, tensor):
                    return use.doing
    return ""


class using(in_use):
    """Around a call that uses the memory of the tensors of `graph`, which is one of `handles`.
    Raises `BusyError` while another call changes one of them."""

    __slots__ = ("graph",)

    def __init__(self, doing: str, graph: AnyGraph, *handles: Handle) -> None:
        # Without a call of `super`, which takes a tenth of the time of a small compute.
        self.doing, self.handles, self.reads = doing, (graph, *handles), ()
        self.thread, self.graph = get_ident(), graph

    def meet(self) -> None:
        super().meet()
        check_changes(self.graph, self)


class _beside(reading):
    """Around a call that only reads what another thread uses."""

    __slots__ = ()

    def _check(self, handles: Sequence[Any]) -> bool:
        return False

    def end(self, *_raised: object) -> None:
        USES.discard(self)

    __exit__ = end


class allocating(in_use):
    """Around a call that allocates the tensors of a context. Calls of other threads that change
    tensors wait for it, and it waits for them. So nobody takes back memory that a scheduler or
    allocator lent to these tensors, or to the source of a view."""

    __slots__ = ()
    allocates = True

    def __init__(self, context: Handle) -> None:
        super().__init__("allocating", context)


class placing(reading):
    """Around a call that gives memory to one tensor: like `allocating`, but `handles` (its context,
    the buffer, the graphs that it may be in) can be read meanwhile."""

    __slots__ = ()
    allocates = True


# --- lent memory


class Lender(Handle):
    """A scheduler or an allocator: lends memory to the tensors of one graph at a time."""

    __slots__ = ()
    _lends = True
    _runs: Any = None  # the native graph that it computes, if that is its own copy of the graph

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


class _Freeing:
    """The work of a finalizer: takes the memory from the tensors `lent`, then frees `raw`."""

    __slots__ = ("free", "held", "lent", "raw", "take")

    def __init__(self, raw: Any, held: Held, lent: Any, take: Any, free: Any) -> None:
        self.raw, self.held, self.lent, self.take, self.free = raw, held, lent, take, free

    def __call__(self) -> None:
        with changing("being freed", lent=self.lent):
            try:
                LATER.remove(self)
            except ValueError:
                return  # another thread has taken it
            self.take(self.raw)
            self.held.native, self.held.tensors = None, ()  # `take` needed them
            self.free(self.raw)
            self.held.needs = []


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
    # First it is in the list: a call that it meets looks there at its end.
    LATER.append(_Freeing(raw, held, [lent(raw)], take, free))
    do_later()

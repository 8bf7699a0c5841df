"""Schedulers and backends that belong to other native code, such as libllama."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..backends.backend import Backend
from ..boundary.ffi import lib
from ..boundary.handle import Handle
from .reads import ReadScheduler

if TYPE_CHECKING:
    from .recording import Recording


class BorrowedScheduler(ReadScheduler):
    """A scheduler that other native code plans and computes with. It can be read, and not used.

    `state`, `inspect()`, `reallocations` and `buffer_size` are as in `Scheduler`. While it holds a
    graph, `state` shows the graph's tensors as bare addresses: they are not Python's.
    """

    __slots__ = ("_copies_at", "_known", "_recording", "_tracing", "backends", "graph_size")

    def __init__(self, ptr: Any, backends: Sequence[Any], *owners: Handle) -> None:
        """`ptr` and the native `backends` are freed with the last of `owners`, or later."""
        super().__init__(ptr, lambda _scheduler: None, *owners)
        self.backends = tuple(Backend._borrow(backend, *owners) for backend in backends)
        self._known = self._copies_at = None
        self._recording: Recording | None = None
        self._tracing = bool(lib.gp_trace_present())
        self.graph_size = int(self._state().graph.size) if self._tracing else 0

    def __repr__(self) -> str:
        if self.closed:
            return "<BorrowedScheduler closed>"
        return f"<BorrowedScheduler {', '.join(b.name for b in self.backends)}>"

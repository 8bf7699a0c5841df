"""Python functions that a scheduler calls while it computes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..backends.backend import Backend
from ..boundary.callback import Callback, called_from_c
from ..boundary.ffi import ffi, lib
from ..tensors.lent import lender_of
from ..tensors.tensor import Tensor

if TYPE_CHECKING:
    from .scheduler import Scheduler

EvalFunction: TypeAlias = "Callable[[Tensor, bool], bool]"
CopyFunction: TypeAlias = "Callable[[Backend, Tensor, Tensor, tuple[Tensor, ...]], bool]"


class EvalCallback(Callback):
    """What `gp_on_eval` is given: the Python callback, and what it raised."""

    __slots__ = ("_call", "_scheduler")

    def __init__(self, scheduler: Scheduler, call: EvalFunction) -> None:
        super().__init__()
        self._scheduler = weakref.ref(scheduler)
        self._call = call

    def _run(self, ptr: Any, ask: bool) -> bool | None:
        scheduler = self._scheduler()
        if scheduler is None or scheduler._graph is None:
            return None
        return bool(self._call(Tensor(ptr, scheduler._graph._context), ask))


class CopyCallback(Callback):
    """What `gp_on_copy` is given."""

    __slots__ = ("_call", "_scheduler")

    def __init__(self, scheduler: Scheduler, call: CopyFunction) -> None:
        super().__init__()
        self._scheduler = weakref.ref(scheduler)
        self._call = call

    def _run(self, backend: Any, src: Any, dst: Any, graph: Any) -> bool | None:
        scheduler = self._scheduler()
        if scheduler is None or scheduler._graph is None:
            return None
        on = next(b for b in scheduler.backends if b.ptr == backend)
        context = scheduler._graph._context
        raw = lib.ggml_graph_nodes(graph)
        nodes = tuple(Tensor(raw[i], context) for i in range(lib.ggml_graph_n_nodes(graph)))
        copy = Tensor(dst, lender_of(dst, context))
        return bool(self._call(on, Tensor(src, context), copy, nodes))


@called_from_c("gp_on_eval", failed=False)
def _on_eval(tensor: Any, ask: bool, user_data: Any) -> bool:
    answer = ffi.from_handle(user_data)(tensor, ask)
    # None: it raised. To stop, ask for the node, then answer False when it is shown.
    return ask if answer is None else answer


@called_from_c("gp_on_copy", failed=False)
def _on_copy(backend: Any, src: Any, dst: Any, graph: Any, user_data: Any) -> bool:
    return bool(ffi.from_handle(user_data)(backend, src, dst, graph))

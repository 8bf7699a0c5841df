"""Python functions that a scheduler calls while it computes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..backends.backend import Backend
from ..backends.sharing import Lender
from ..boundary.callback import Callback
from ..boundary.ffi import lib
from ..tensors.lent import lender_of
from ..tensors.tensor import Tensor

EvalFunction: TypeAlias = "Callable[[Tensor, bool], bool]"
CopyFunction: TypeAlias = "Callable[[Backend, Tensor, Tensor, tuple[Tensor, ...]], bool]"


class EvalCallback(Callback):
    """The user data that `gp_on_eval` gets."""

    __slots__ = ("_call", "_lender")

    def __init__(self, scheduler: Lender, call: EvalFunction) -> None:
        super().__init__()
        self._lender = weakref.ref(scheduler)
        self._call = call

    def _run(self, ptr: Any, ask: bool) -> bool | None:
        scheduler = self._lender()
        if scheduler is None or scheduler._graph is None:
            return None
        return bool(self._call(Tensor(ptr, scheduler._graph._context), ask))


def both(first: EvalFunction, second: EvalFunction) -> EvalFunction:
    """An eval callback that shows each of the two the nodes that it wants to see."""
    wanted: list[EvalFunction] = []

    def call(tensor: Tensor, ask: bool) -> bool:
        if ask:
            wanted[:] = [each for each in (first, second) if each(tensor, True)]
            return bool(wanted)
        goes_on = [each(tensor, False) for each in wanted]
        return all(goes_on)

    return call


class CopyCallback(Callback):
    """The user data that `gp_on_copy` gets."""

    __slots__ = ("_backends", "_call", "_lender")
    stops = False

    def __init__(self, scheduler: Lender, backends: Sequence[Backend], call: CopyFunction) -> None:
        super().__init__()
        self._lender = weakref.ref(scheduler)
        self._backends = backends
        self._call = call

    def _run(self, backend: Any, src: Any, dst: Any, graph: Any) -> bool | None:
        scheduler = self._lender()
        if scheduler is None or scheduler._graph is None:
            return None
        on = next(b for b in self._backends if b.ptr == backend)
        context = scheduler._graph._context
        raw = lib.ggml_graph_nodes(graph)
        nodes = tuple(Tensor(raw[i], context) for i in range(lib.ggml_graph_n_nodes(graph)))
        copy = Tensor(dst, lender_of(dst, context))
        return bool(self._call(on, Tensor(src, context), copy, nodes))

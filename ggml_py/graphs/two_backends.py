"""Compares one graph on two backends, node by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..backends.backend import Backend
from ..backends.computing import computing
from ..boundary.arguments import describe, ptr_of
from ..boundary.callback import Callback
from ..boundary.ffi import NULL, ffi, lib
from ..boundary.handle import Handle
from ..errors import AllocError, ArgumentError
from ..tensors.tensor import Tensor
from ..typed import typed
from .graph import Graph

# callback(index, t1, t2): the node's index in the graph, and its results on the two backends.
CompareFunction: TypeAlias = Callable[[int, Tensor, Tensor], bool]


class _Comparison(Callback):
    """The user data of `gp_on_compare`."""

    __slots__ = ("_call", "_copy", "_graph")

    def __init__(self, call: CompareFunction, graph: Graph, copy: Handle) -> None:
        super().__init__()
        self._call, self._graph, self._copy = call, graph, copy

    def _run(self, index: int, t1: Any, t2: Any) -> bool:
        return bool(self._call(index, self._graph._tensor(t1), Tensor(t2, self._copy)))


@typed
def compare_graph_backend(
    backend1: Backend,
    backend2: Backend,
    graph: Graph,
    callback: CompareFunction,
    test_nodes: Sequence[Tensor] = (),
) -> None:
    """Computes the graph on `backend1` and a copy of it on `backend2`, to compare the results.

    After each node that computes something it calls `callback(index, t1, t2)` with the results of
    both backends; if that returns False, it stops. With `test_nodes` it computes everything first
    and calls back for those nodes only. t1 is the graph's own tensor; t2 is closed when this
    returns. Every tensor of the graph must have memory that `backend1` can read. An exception of
    the callback is raised here.

    Raises `NoDataError`, `ArgumentError` for an op or memory that a backend cannot use and for a
    test node that is not in the graph, `AllocError` if the copy does not fit on `backend2`.
    C: ggml_backend_compare_graph_backend
    """
    first, second = ptr_of(Backend, backend1), ptr_of(Backend, backend2)
    ptr = ptr_of(Graph, graph)
    if not callable(callback):
        raise TypeError(f"callback: expected a function, got {describe(callback)}")
    _check(backend1, backend2, graph, test_nodes)
    with Graph._borrow(ptr) as copy:  # its end closes the tensors of the copy
        comparison = _Comparison(callback, graph, copy)
        shown = ffi.new("struct ggml_tensor *[]", [node.ptr for node in test_nodes])
        shown_as = ffi.cast("struct ggml_tensor const * const *", shown)
        args: tuple[Any, ...] = (first, second, ptr, lib.gp_on_compare, comparison.handle)
        if len(ffi.typeof(lib.ggml_backend_compare_graph_backend).args) == 7:
            args += (shown_as, len(shown))
        elif len(test_nodes) <= 1:  # releases up to 0.9.4
            args += (shown[0] if test_nodes else NULL,)
        else:
            raise ArgumentError("test_nodes: this release of ggml takes at most one")
        done = computing(
            lib.ggml_backend_compare_graph_backend, args, graph, (backend1, backend2),
            lambda: (comparison, backend1._abort, backend2._abort), doing="being compared",
            backends=(backend1, backend2),
        )  # fmt: skip
    if not done:
        raise AllocError(f"{backend2.name} has no memory for a copy of {graph!r}")


def _check(
    backend1: Backend, backend2: Backend, graph: Graph, test_nodes: Sequence[Tensor]
) -> None:
    nodes = graph.nodes
    if not nodes:
        raise ArgumentError("the graph is empty: add its results with build_forward_expand")
    for node in test_nodes:
        if node not in nodes:
            raise ArgumentError(f"test_nodes: {node!r} is not a node of this graph")
    for tensor in (*nodes, *graph.leafs):
        tensor._data()
        if tensor.buffer is not None and not backend1.supports_buft(tensor.buffer.type):
            raise ArgumentError(
                f"{tensor!r} is in {tensor.buffer}, which {backend1.name} cannot read: allocate "
                f"the graph's contexts on {backend1.name}"
            )
    _check_outside(graph)
    for backend in (backend1, backend2):
        for node in nodes:
            if not backend.supports_op(node):
                raise ArgumentError(
                    f"{backend.name} cannot compute {node!r}: expected ops that both backends "
                    "support"
                )


_MOST_OUTSIDE = 10_000  # upstream reaches them by recursion


def _check_outside(graph: Graph) -> None:
    """Raises if the copy would need too many tensors that are not in the graph. A tensor viewed by
    `view_tensor` need not be in it, but upstream copies that and its sources too, into a table of
    the graph's size. C: ggml_backend_graph_copy"""
    todo = [*graph.nodes, *graph.leafs]
    seen, n = set(todo), len(todo)
    most = n + min(2 * graph.size - n, _MOST_OUTSIDE)
    while todo:
        one = todo.pop()
        needs = (*one.src, *(() if one.view_src is None else (one.view_src,)))
        new = {need for need in needs if need not in seen}
        todo += new
        seen |= new
        if len(seen) > most:
            raise ArgumentError(
                f"views in this graph need more than {most - n:,} tensors that are not in it, "
                f"which its copy has no room for: make the graph with a size above {graph.size} "
                f"(at most {_MOST_OUTSIDE:,} such tensors), or copy the viewed data into tensors "
                "of the graph (Tensor.copy_to)"
            )

"""Custom ops: Python functions as nodes of a graph, on numpy views of the tensors' own memory.

1. ggml calls a custom op on every thread that computes the graph, whatever its n_tasks is (that
   only bounds the number of threads: ggml_graph_plan in ggml-cpu.c). Extra calls return at once.
2. cffi takes the GIL for a call, so functions run in parallel only where numpy releases it.
3. An exception of a function is raised by `compute` (boundary/callback.py). The nodes after it are
   still computed; if several functions raise, the first exception counts.
4. The context holds its ops, because its tensors have their addresses.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .. import enums
from ..boundary.arguments import describe, integer
from ..boundary.callback import STORED, Callback
from ..boundary.ffi import NULL, ffi, lib
from ..errors import ArgumentError
from ..tensors.convert import DTYPES
from ..tensors.tensor import Tensor, TypeLike, not_tensors, type_of
from ..typed import typed
from .ops import Ops

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..backends.device import Device
    from .context import Context
    from .graph import Graph

# fun(dst, a, .., ith, nth): arrays, then two ints; its result is ignored.
CustomFunction: TypeAlias = Callable[..., object]

N_TASKS_MAX = -1  # GGML_N_TASKS_MAX: as many as there are threads
_MAX_SRC = lib.GGML_MAX_SRC
_INT_MAX = 2**31 - 1
_OPS = frozenset(
    {enums.Op.MAP_CUSTOM1, enums.Op.MAP_CUSTOM2, enums.Op.MAP_CUSTOM3, enums.Op.CUSTOM}
)


class CustomOp(Callback):
    """The user data of ggml's op: the Python function."""

    __slots__ = ("_context", "_function", "_n_tasks", "node")
    stops = False

    def __init__(self, context: Context, function: CustomFunction, n_tasks: int) -> None:
        super().__init__()
        self._context = weakref.ref(context)  # weakly, because the context holds this
        self._function = function
        self._n_tasks = n_tasks
        self.node = NULL  # its tensor

    def _run(self, dst: Any, ith: int, nth: int) -> None:
        if self._n_tasks != N_TASKS_MAX:
            nth = min(nth, self._n_tasks)
        if ith < nth:
            tensor = Tensor(dst, self._context())
            sources = [_read_only(_array(source)) for source in tensor.src]
            self._function(_array(tensor), *sources, ith, nth)


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    """An array over its memory. It keeps the memory, but the contents only for this call."""
    if tensor.ptr.data == NULL or tensor._buffer() == NULL:  # empty, or not in a buffer
        return tensor._view(DTYPES[tensor.type])
    return tensor._view(DTYPES[tensor.type], *tensor._pinned()[:2])


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def failed_ops(graph: Graph) -> list[CustomOp]:
    """The graph's custom ops with an exception that was not raised in Python yet."""
    stored = [ref() for ref in list(STORED)]
    ops = {op.node: op for op in stored if isinstance(op, CustomOp)}
    return [ops[node._ptr] for node in graph.nodes if node._ptr in ops] if ops else []


def custom_nodes(graph: Graph) -> list[Tensor]:
    """The nodes of the graph that call Python."""
    return [node for node in graph.nodes if node.op in _OPS]


def is_remote(device: Device) -> bool:
    """Whether it cannot call Python. An RPC server would call the address of our function in its
    own process (upstream lets it take every op, ggml-rpc.cpp). A simulated device computes on
    copies of the tensors."""
    return device.registry in ("RPC", "SIM")


class CustomOps(Ops):
    """ggml's ops that call a Python function.

    `fun(dst, a, ith, nth)` is called while the graph is computed, on the CPU, with arrays like
    those of `Tensor.numpy`: the tensors' own memory, shape = reversed(ne) without trailing ones.
    It writes its result into `dst`; sources are read-only (in place, `a` is the memory of `dst`).
    The arrays are valid until it returns. With more sources it is called as
    `fun(dst, a, b, ith, nth)` and so on, in the order of `Tensor.src`.

    With `n_tasks` above 1 it is called that many times, but at most once per thread, in parallel:
    call number `ith` of `nth` does its part of the work. -1 takes all threads. Functions hold the
    GIL, so this pays only where numpy releases it.

    `Scheduler.compute` or `Backend.compute` raises its exceptions; the rest of that op's calls are
    skipped. The context holds the function until it is closed. All these ops raise `ArgumentError`
    for an n_tasks below 1 other than -1 and for types that numpy lacks (cast them to f32 first),
    and TypeError for a function that does not take these arguments. Devices of RPC servers and
    simulated devices cannot call Python: if a scheduler has one, pin custom ops to the CPU
    (`Scheduler.set_tensor_backend`).
    """

    __slots__ = ()
    _custom_ops: list[CustomOp]  # from Context

    def map_custom1(self, a: Tensor, fun: CustomFunction, n_tasks: int = 1) -> Tensor:
        """fun(dst, a, ith, nth) with a new dst of a's type and ne.

        C: ggml_map_custom1
        """
        return self._map(lib.ggml_map_custom1, lib.gp_on_custom1, (a,), fun, n_tasks)

    def map_custom1_inplace(self, a: Tensor, fun: CustomFunction, n_tasks: int = 1) -> Tensor:
        """fun(dst, a, ith, nth) with dst a view of a.

        C: ggml_map_custom1_inplace
        """
        return self._map(lib.ggml_map_custom1_inplace, lib.gp_on_custom1, (a,), fun, n_tasks)

    def map_custom2(self, a: Tensor, b: Tensor, fun: CustomFunction, n_tasks: int = 1) -> Tensor:
        """fun(dst, a, b, ith, nth) with a new dst of a's type and ne; b may have any.

        C: ggml_map_custom2
        """
        return self._map(lib.ggml_map_custom2, lib.gp_on_custom2, (a, b), fun, n_tasks)

    def map_custom2_inplace(
        self, a: Tensor, b: Tensor, fun: CustomFunction, n_tasks: int = 1
    ) -> Tensor:
        """fun(dst, a, b, ith, nth) with dst a view of a.

        C: ggml_map_custom2_inplace
        """
        return self._map(lib.ggml_map_custom2_inplace, lib.gp_on_custom2, (a, b), fun, n_tasks)

    def map_custom3(
        self, a: Tensor, b: Tensor, c: Tensor, fun: CustomFunction, n_tasks: int = 1
    ) -> Tensor:
        """fun(dst, a, b, c, ith, nth) with a new dst of a's type and ne; b and c may have any.

        C: ggml_map_custom3
        """
        return self._map(lib.ggml_map_custom3, lib.gp_on_custom3, (a, b, c), fun, n_tasks)

    def map_custom3_inplace(
        self, a: Tensor, b: Tensor, c: Tensor, fun: CustomFunction, n_tasks: int = 1
    ) -> Tensor:
        """fun(dst, a, b, c, ith, nth) with dst a view of a.

        C: ggml_map_custom3_inplace
        """
        return self._map(lib.ggml_map_custom3_inplace, lib.gp_on_custom3, (a, b, c), fun, n_tasks)

    @typed
    def custom_4d(
        self,
        type: TypeLike,
        ne0: int,
        ne1: int,
        ne2: int,
        ne3: int,
        args: Sequence[Tensor],
        fun: CustomFunction,
        n_tasks: int = 1,
    ) -> Tensor:
        """fun(dst, *args, ith, nth) with a new dst [ne0, ne1, ne2, ne3] and up to nine args.

        C: ggml_custom_4d
        """
        ne = tuple([integer(f"ne{i}", n) for i, n in enumerate((ne0, ne1, ne2, ne3))])
        ggml_type = type_of(type)
        _check_types([(ggml_type, "the result")])
        if math.prod(ne) >= 1 << 60:
            raise ArgumentError(f"ne {list(ne)}: expected a tensor that fits in memory")
        op = self._op(args, _MAX_SRC - 1, fun, n_tasks)
        raw = ffi.new("struct ggml_tensor *[]", [a._ptr for a in args])
        return self._made(
            op,
            lib.ggml_custom_4d(
                self.ptr, ggml_type, *ne, raw, len(raw), lib.gp_on_custom, n_tasks, op.handle
            ),
        )

    @typed
    def custom_inplace(
        self, a: Tensor, args: Sequence[Tensor], fun: CustomFunction, n_tasks: int = 1
    ) -> Tensor:
        """fun(dst, a, *args, ith, nth) with dst a view of a, and up to eight args.

        C: ggml_custom_inplace
        """
        # One less than there is room for, as upstream checks it (ggml_custom_inplace in ggml.c).
        op = self._op((a, *args), _MAX_SRC - 1, fun, n_tasks)
        raw = ffi.new("struct ggml_tensor *[]", [t._ptr for t in args])
        return self._made(
            op,
            lib.ggml_custom_inplace(
                self.ptr, a._ptr, raw, len(raw), lib.gp_on_custom, n_tasks, op.handle
            ),
        )

    def _map(
        self,
        make: Any,
        callback: Any,
        sources: Sequence[Tensor],
        fun: CustomFunction,
        n_tasks: int,
    ) -> Tensor:
        op = self._op(sources, len(sources), fun, n_tasks)
        raw = (source._ptr for source in sources)
        return self._made(op, make(self.ptr, *raw, callback, n_tasks, op.handle))

    def _op(
        self, sources: Sequence[Tensor], most: int, fun: CustomFunction, n_tasks: int
    ) -> CustomOp:
        """Checks the arguments and makes the op."""
        if not isinstance(sources, Iterable):
            raise TypeError(f"args: expected a sequence of Tensors, got {describe(sources)}")
        if not all(isinstance(source, Tensor) for source in sources):
            raise not_tensors(*sources)
        if len(sources) > most:
            raise ArgumentError(f"{len(sources)} sources: a custom op takes at most {most}")
        self._adopt(*sources)
        _check_types((s.type, f"source '{s.name}'") for s in sources)
        _check_function(fun, len(sources))
        if not isinstance(n_tasks, int):
            raise TypeError(f"n_tasks: expected an int, got {type(n_tasks).__name__}")
        if n_tasks != N_TASKS_MAX and not 1 <= n_tasks <= _INT_MAX:
            raise ArgumentError(
                f"n_tasks={n_tasks}: expected 1 to {_INT_MAX:,}, or -1 for all threads"
            )
        return CustomOp(cast("Context", self), fun, n_tasks)

    def _made(self, op: CustomOp, ptr: Any) -> Tensor:
        op.node = ptr
        self._custom_ops.append(op)
        return Tensor(ptr, self)


def _check_types(types: Iterable[tuple[Any, str]]) -> None:
    for type_, whose in types:
        if type_ not in DTYPES:
            raise ArgumentError(
                f"{whose} is {type_.name.lower()}, which numpy lacks: a custom op takes "
                f"{', '.join(t.name.lower() for t in DTYPES)}. Convert it to f32 with `cast` first"
            )


def _check_function(fun: CustomFunction, n_sources: int) -> None:
    if not callable(fun):
        raise TypeError(f"fun: expected a function, got {type(fun).__name__}")
    import inspect  # here, because it would slow down importing ggml_py

    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(*range(n_sources + 3))
    except TypeError as error:
        names = ", ".join(["dst", *"abcdefghi"[:n_sources], "ith", "nth"])
        raise TypeError(
            f"fun{signature} is called as fun({names}), which it does not take: {error}"
        ) from None

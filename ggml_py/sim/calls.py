"""Python functions that simulated devices call. They answer whether an op is supported, and order
the nodes of a split for computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeAlias

from ..boundary.arguments import describe
from ..boundary.callback import Callback
from ..boundary.ffi import lib
from ..errors import ArgumentError, MissingFunctionError
from ..tensors.lent import Lent
from ..tensors.tensor import Tensor

Optimizer: TypeAlias = "Callable[[SplitNodes], Iterable[Tensor | int]]"

VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")


class Asked(Callback):
    """The user data of a device's function. Each device name keeps one for ever, because another
    thread may be about to call while the function changes."""

    __slots__ = ("function",)
    of_thread = True

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function


class Predicate(Asked):
    """The user data of `gp_on_supports`."""

    __slots__ = ()

    def _run(self, ptr: Any) -> bool:
        lent = Lent("a device's supports function")
        try:
            return bool(self.function(Tensor(ptr, lent)))
        finally:
            lent.closed = True


# --- orders


class SplitNodes(tuple[Tensor, ...]):
    """The nodes of a split, for a device's `graph_optimize` function. Lent for one call.

    C: struct ggml_backend_graph_optimize_params
    """

    _keep: Any

    def add_alloc_dep(self, tensor: Tensor, until: Tensor) -> None:
        """Keeps the memory of `tensor` until the node `until` of this split is computed.

        Raises ValueError if `until` is not a node of the split, or if `tensor` is neither a node
        nor a source of one; `MissingFunctionError` in releases without this function.
        C: add_alloc_dep
        """
        if until not in self:
            raise ValueError(f"until={until!r}: expected a node of the split")
        if tensor not in self and all(tensor not in node.src for node in self):
            raise ValueError(f"{tensor!r}: expected a node of the split, or a source of one")
        if not lib.gp_sim_keep(self._keep, tensor.ptr, until.ptr):
            raise MissingFunctionError("add_alloc_dep: this release of ggml does not have it")


class Order(Asked):
    """The user data of `gp_on_order`."""

    __slots__ = ()

    def _run(self, ptrs: Any, n: int, order: Any, keep: Any) -> bool:
        lent = Lent("a device's graph_optimize function")
        try:
            nodes = SplitNodes(Tensor(ptrs[i], lent) for i in range(n))
            nodes._keep = keep
            numbers = _numbers(nodes, self.function(nodes))
            check_order(nodes, numbers)
            for i, number in enumerate(numbers):
                order[i] = number
            return True
        finally:
            lent.closed = True


def _numbers(nodes: SplitNodes, answer: Any) -> list[int]:
    """The order as indices of the nodes. Raises `ArgumentError` unless it has each node once."""
    if not isinstance(answer, Iterable):
        raise TypeError(
            f"graph_optimize returned {describe(answer)}: expected the nodes in another order"
        )
    index = {node: i for i, node in enumerate(nodes)}
    found = []
    for item in answer:
        is_index = isinstance(item, int) and not isinstance(item, bool)
        number = item if is_index else index.get(item, -1) if isinstance(item, Tensor) else -1
        if not 0 <= number < len(nodes):
            raise ArgumentError(
                f"graph_optimize returned {item!r}, which is not in the split of {_n_nodes(nodes)}"
            )
        found.append(number)
    if sorted(found) != list(range(len(nodes))):
        missing = [nodes[i].name for i in sorted(set(range(len(nodes))) - set(found))]
        twice = [nodes[i].name for i in sorted({i for i in found if found.count(i) > 1})]
        raise ArgumentError(
            f"graph_optimize returned {_n_nodes(found)} for a split of {len(nodes)}: expected each "
            f"once; missing: {missing[:5]}, more than once: {twice[:5]}"
        )
    return found


def _n_nodes(nodes: Sized) -> str:
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)}"


def check_order(nodes: tuple[Tensor, ...], order: list[int]) -> None:
    """Raises `ArgumentError` if a node comes before one whose result it needs, or overwrites memory
    before it is read. As in upstream's Metal backend, memory is identified by the tensor that owns
    it: two views of one tensor count as the same memory."""
    place = {i: at for at, i in enumerate(order)}
    for i, before, why in _needs(nodes):
        if place[before] > place[i]:
            raise ArgumentError(
                f"graph_optimize puts '{nodes[i].name}' ({nodes[i].op.name}) before "
                f"'{nodes[before].name}' ({nodes[before].op.name}), {why}"
            )


def _needs(nodes: tuple[Tensor, ...]) -> Iterator[tuple[int, int, str]]:
    """(a node, a node that must come before it, why)."""
    index = {node: i for i, node in enumerate(nodes)}
    writer: dict[Tensor, int] = {}
    readers: dict[Tensor, list[int]] = {}
    for i, node in enumerate(nodes):
        for used in (*node.src, node.view_src):
            if used is not None and index.get(used, i) < i:
                yield i, index[used], "whose result it takes"
        own = _memory(node)
        if node.op.name not in VIEWS:
            read = {_memory(src) for src in node.src if src is not None}
            for memory in read:
                if memory in writer:
                    yield i, writer[memory], f"which writes '{memory.name}' that it reads"
            for earlier in readers.pop(own, []):
                yield i, earlier, f"which reads '{own.name}' that it overwrites"
            if own in writer:
                yield i, writer[own], f"which also writes '{own.name}'"
            writer[own] = i
            for memory in read - {own}:
                readers.setdefault(memory, []).append(i)


def _memory(tensor: Tensor) -> Tensor:
    return tensor if tensor.view_src is None else tensor.view_src


ORDERS = {
    "card": lib.GP_SIM_ORDER_CARD,
    "metal": lib.GP_SIM_ORDER_METAL,
    "none": lib.GP_SIM_ORDER_NONE,
}


def order_kind(optimize: object) -> int:
    """The `enum gp_sim_order` value. Raises `ArgumentError` for an unknown name,
    `MissingFunctionError` for an order that this build lacks."""
    if optimize is None:
        return int(lib.GP_SIM_ORDER_NONE)
    if callable(optimize):
        kind = lib.GP_SIM_ORDER_ASK
    elif isinstance(optimize, str) and optimize in ORDERS:
        kind = ORDERS[optimize]
    else:
        raise ArgumentError(
            f"graph_optimize={optimize!r}: expected a function of the split's nodes, or "
            f"{', '.join(map(repr, ORDERS))}"
        )
    if not lib.gp_sim_can_order(kind):
        raise MissingFunctionError(
            f"graph_optimize={optimize!r}: this release of ggml has none that works on its own"
            if isinstance(optimize, str)
            else "graph_optimize: this release of ggml does not ask backends"
        )
    return int(kind)


_predicates: dict[str, Predicate] = {}  # by the device's name
_orders: dict[str, Order] = {}


def asked_of(name: str) -> tuple[Predicate, Order]:
    """The predicate and the order of a device."""
    return (
        _predicates.setdefault(name, Predicate(bool)),
        _orders.setdefault(name, Order(list)),
    )

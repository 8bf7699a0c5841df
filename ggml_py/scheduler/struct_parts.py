"""The parts of a live scheduler's struct: what `Scheduler.state` (scheduler/view.py) consists of.

Memory that may have been freed is never read. Numbers and arrays of numbers belong to the scheduler
and live as long as it does. Its pointers to tensors are followed only while it holds a graph. They
then point to tensors of that graph, or to tensors in the scheduler's own context, which are lent
until `reset` (tensors/lent.py). At other times they are a `Pointer`, the bare address.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..boundary.arguments import ptr_of
from ..boundary.ffi import ffi, lib
from ..boundary.uses import reading, users_of
from ..errors import ClosedError
from ..tensors.lent import lender_of
from ..tensors.tensor import Tensor
from .struct import (
    NOT_HELD,
    Array,
    Field,
    Pointer,
    Struct,
    fields_of,
    numbers,
    shown,
    size_of,
    word,
    words,
)

if TYPE_CHECKING:
    from .reads import ReadScheduler

_TENSOR = "struct ggml_tensor *"
# Fields that point to int32_t. All other array fields point to pointers.
_INTS = frozenset({
    "hv_tensor_backend_ids", "node_backend_ids", "leaf_backend_ids", "prev_node_backend_ids",
    "prev_leaf_backend_ids",
})  # fmt: skip
_STRANGER = "it does not belong to the graph that the scheduler holds"


class LiveScheduler:
    """What all views of one scheduler share."""

    __slots__ = ("sched", "while_computing")

    def __init__(self, sched: ReadScheduler, while_computing: bool = False) -> None:
        """`while_computing`: it may be read while another thread computes. Nobody may then keep its
        tensors."""
        self.sched, self.while_computing = sched, while_computing

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keeps other threads from changing the scheduler during the block. Callbacks of a plan or
        a compute may read too."""
        for use in users_of(self.sched):
            if use.thread != threading.get_ident() and not self.while_computing:
                raise use.refuses(self.sched)  # also during a compute
        with reading(self.sched):
            yield

    def address(self) -> int:
        """The struct's address."""
        return int(ffi.cast("uintptr_t", self.sched.ptr))

    @property
    def holds_graph(self) -> bool:
        """Whether the tensors of the last plan still exist."""
        graph = self.sched._graph
        return graph is not None and not graph.closed

    @property
    def n_plans(self) -> int:
        """How often the scheduler has planned."""
        return int(lib.gp_sched_n_plans(self.sched.ptr))

    def tensors(self, addresses: list[int]) -> list[Tensor | Pointer | None]:
        """The tensor at each address, or a pointer if nothing is known about it; None for NULL."""
        if not self.holds_graph:
            return [Pointer(_TENSOR, a, NOT_HELD) if a else None for a in addresses]
        known = self.sched._known
        if known is None:
            known = self.sched._known = known_tensors(self.sched)  # type: ignore[misc]
        return [known.get(a) or self._lent(a) if a else None for a in addresses]

    def _lent(self, address: int) -> Tensor | Pointer:
        ptr = ffi.cast(_TENSOR, address)
        owner = lender_of(ptr, None)
        first, size = self.sched._copies_at or (0, 0)
        if owner is None or not first <= address < first + size:
            return Pointer(_TENSOR, address, _STRANGER)
        return Tensor(ptr, owner)


def known_tensors(sched: ReadScheduler) -> dict[int, Tensor]:
    """The tensors of the held graph by address: nodes, leafs, and what they refer to."""
    graph = sched._graph
    assert graph is not None
    found: dict[int, Tensor] = {}
    first, size = sched._copies_at or (0, 0)
    pending = [*graph.nodes, *graph.leafs]
    for tensor in pending:
        found[int(ffi.cast("uintptr_t", tensor._ptr))] = tensor
    while pending:
        tensor = pending.pop()
        for ptr in (*tensor._ptr.src, tensor._ptr.view_src):
            address = int(ffi.cast("uintptr_t", ptr))
            if address and address not in found and not first <= address < first + size:
                found[address] = Tensor(ptr, tensor._context)
                pending.append(found[address])
    return found


class View(Struct):
    """A struct that belongs to a scheduler."""

    __slots__ = ("_live",)
    _live: LiveScheduler

    def __init__(self, live: LiveScheduler, address: Callable[[], int]) -> None:
        super().__init__(address)
        object.__setattr__(self, "_live", live)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        with self._live.reading():
            return super().__getattr__(name)

    def __repr__(self) -> str:
        with self._live.reading():
            return super().__repr__()

    def _array(
        self, field: Field, dims: Callable[[], tuple[int, ...]],
        load: Callable[[int, int], list[Any]], printed: Callable[[], Any] | None = None,
    ) -> Array:  # fmt: skip
        """An array field, or the array that a pointer field points to. `load(address, n)` reads n
        elements."""
        live, inline = self._live, bool(field.dims)

        def read(start: int, n: int) -> list[Any]:
            with live.reading():
                at = self._address() + field.offset
                base = at if inline else word(at)
                return load(base + start * step, n)

        step = field.element_size if inline else 4 if field.name in _INTS else 8
        return Array(dims, read, printed)

    def _tensors(self, field: Field, dims: Callable[[], tuple[int, ...]]) -> Array:
        return self._array(field, dims, lambda at, n: self._live.tensors(words(at, n)))


class HashSet(View):
    """A `struct ggml_hash_set`. Iterating gives the tensors in it, and `len` counts them.

    `used` and `keys` are indexed by slot; the key of an unused slot is None.
    """

    __slots__ = ("_readable",)
    _readable: Callable[[], bool]
    _which = lib.GP_STRUCT_HASH_SET
    _type = "ggml_hash_set"

    def __init__(
        self, live: LiveScheduler, address: Callable[[], int], readable: Callable[[], bool]
    ) -> None:
        """`readable()` tells whether the memory behind its pointers still exists."""
        super().__init__(live, address)
        object.__setattr__(self, "_readable", readable)

    def find(self, tensor: Tensor) -> int | None:
        """The slot of a tensor; None if it is not in the set. Unlike upstream's `hash_id` this
        inserts nothing. C: ggml_hash_find"""
        raw = ptr_of(Tensor, tensor)
        with self._live.reading():
            if not self._readable():
                return None
            slot = lib.gp_hash_find(ffi.cast("void *", self._address()), raw)
        return slot if slot >= 0 else None

    def __contains__(self, tensor: object) -> bool:
        return isinstance(tensor, Tensor) and self.find(tensor) is not None

    def __len__(self) -> int:
        return len(self._slots())

    def __iter__(self) -> Iterator[Any]:
        keys = self.keys
        return iter([keys[slot] for slot in self._slots()])

    def _slots(self) -> list[int]:
        """The used slots."""
        with self._live.reading():
            size = self._number("size")
            if not size or not self._readable():
                return []
            base = word(self._address() + fields_of(self._which)["used"].offset)
            bitset = ffi.unpack(ffi.cast("uint32_t *", base), (size + 31) // 32)
            return [
                32 * i + bit for i, bits in enumerate(bitset) if bits for bit in range(32)
                if bits >> bit & 1
            ]  # fmt: skip

    def _read(self, field: Field) -> Any:
        if field.name == "size":
            return self._plain(field)
        base = word(self._address() + field.offset)
        if not base or not self._readable():
            return Pointer(field.type, base, NOT_HELD) if base else None

        def dims() -> tuple[int, ...]:
            with self._live.reading():
                return (self._number("size"),)

        bits = fields_of(self._which)["used"]

        def load(start: int, n: int) -> list[Any]:
            with self._live.reading():
                _check_readable(self._readable)
                used = _bits(word(self._address() + bits.offset), start, n)
                if field.name == "used":
                    return list(used)
                base = word(self._address() + field.offset)
                keys = words(base + start * 8, n)
                return self._live.tensors([k if u else 0 for k, u in zip(keys, used, strict=True)])

        return Array(dims, load, self._slots)

    def _lines(self) -> list[str]:
        _size, used, keys = self.fields_
        told = f"{self._raw(used)} <{len(self)} of {self._number('size')}>"
        return [f"size = {self._number('size')}", told, f"keys = {shown(self._read(keys))}"]

    def plain(self) -> str:
        """The struct as gdb prints it, with bare pointers."""
        _size, *pointers = self.fields_
        return ", ".join([f"size = {self._number('size')}", *map(self._raw, pointers)])


def _check_readable(readable: Callable[[], bool]) -> None:
    if not readable():
        raise ClosedError(f"this array belongs to a graph that was planned: {NOT_HELD}")


def _bits(base: int, start: int, n: int) -> list[bool]:
    """Bits of a ggml_bitset."""
    bitset = ffi.cast("uint32_t *", base)
    return [bool(bitset[i >> 5] >> (i & 31) & 1) for i in range(start, start + n)]


class Cgraph(View):
    """A `struct ggml_cgraph`: the scheduler's own graph, or a split's part of the planned graph."""

    __slots__ = ("_readable",)
    _readable: Callable[[], bool]
    _which = lib.GP_STRUCT_CGRAPH
    _type = "ggml_cgraph"

    def __init__(
        self, live: LiveScheduler, address: Callable[[], int], readable: Callable[[], bool]
    ) -> None:
        """`readable()` tells whether the memory behind its pointers still exists."""
        super().__init__(live, address)
        object.__setattr__(self, "_readable", readable)

    def _read(self, field: Field) -> Any:
        at = self._address() + field.offset
        if field.name == "visited_hash_set":
            return HashSet(self._live, lambda: self._address() + field.offset, self._readable)
        length = {"nodes": "n_nodes", "leafs": "n_leafs"}.get(field.name)
        if length is None and not (field.name == "use_counts" and word(at)):
            return self._plain(field)
        if not self._readable() and word(at):
            return Pointer(field.type, word(at), NOT_HELD)

        def dims() -> tuple[int, ...]:
            with self._live.reading():
                if length is None:
                    return (self.visited_hash_set.size,)
                return (self._number(length),)

        if length is None:
            return self._use_counts(field, dims)

        def load(at: int, n: int) -> list[Any]:
            _check_readable(self._readable)
            return list(self._live.tensors(words(at, n)))

        return self._array(field, dims, load)

    def _use_counts(self, field: Field, dims: Callable[[], tuple[int, ...]]) -> Array:
        """Indexed by slot of `visited_hash_set`; None for slots that were never written."""
        used = self.visited_hash_set.used

        def load(start: int, n: int) -> list[int | None]:
            with self._live.reading():
                _check_readable(self._readable)
                counts = numbers(word(self._address() + field.offset) + 4 * start, n)
                return [c if used[start + i] else None for i, c in enumerate(counts)]

        return Array(dims, load, self.visited_hash_set._slots)

    def _lines(self) -> list[str]:
        """Shows fields that belong to the whole graph, not to this part, as bare pointers."""
        out = []
        for field in self.fields_:
            if field.name == "visited_hash_set":
                out.append(f"visited_hash_set = {{{self.visited_hash_set.plain()}}}")
            elif field.name == "use_counts":
                out.append(self._raw(field))
            else:
                out.append(f"{field.name} = {shown(self._read(field))}")
        return out


class SchedSplit(View):
    """A `struct ggml_backend_sched_split`. Once the scheduler plans again, reading it raises
    `ClosedError`."""

    __slots__ = ("_index", "_plan")
    _index: tuple[Callable[[], tuple[int, int]], int]
    _plan: int
    _which = lib.GP_STRUCT_SPLIT
    _type = "ggml_backend_sched_split"

    def __init__(
        self, live: LiveScheduler, splits: Callable[[], tuple[int, int]], index: int
    ) -> None:
        """`splits()` returns the address of the array of splits and its length."""
        super().__init__(live, self._find)
        object.__setattr__(self, "_index", (splits, index))
        object.__setattr__(self, "_plan", live.n_plans)

    def _find(self) -> int:
        splits, index = self._index
        base, n = splits()
        if self._plan != self._live.n_plans or index >= n:
            raise ClosedError(
                f"this was split {index} of an earlier plan: read state.splits again, its "
                f"length is {n}"
            )
        return base + index * size_of(self._which)

    def _read(self, field: Field) -> Any:
        if field.name == "inputs":
            return self._tensors(field, self._n_inputs)
        if field.name == "graph":
            readable = lambda: self._live.holds_graph  # noqa: E731
            return Cgraph(self._live, lambda: self._address() + field.offset, readable)
        return self._plain(field)

    def _n_inputs(self) -> tuple[int, ...]:
        with self._live.reading():
            return (self._number("n_inputs"),)


class Galloc:
    """A `struct ggml_gallocr`: the public part of the graph allocator."""

    __slots__ = ("_live",)

    def __init__(self, live: LiveScheduler) -> None:
        self._live = live

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each backend's compute buffer; 0 for a backend that shares an earlier one's.
        C: ggml_gallocr_get_buffer_size"""
        sched = self._live.sched
        with self._live.reading():
            return tuple(
                int(lib.ggml_backend_sched_get_buffer_size(sched.ptr, b.ptr))
                for b in sched.backends
            )

    def __repr__(self) -> str:
        return f"{{sizes = {{{', '.join(map(str, self.sizes))}}}}}"

"""A live scheduler, read like the C struct: `Scheduler.state`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..backends.backend import Backend
from ..backends.buffer import BufferType
from ..boundary.arguments import integer
from ..boundary.ffi import ffi, lib, text
from ..errors import ArgumentError, MissingFunctionError
from ..tensors.tensor import Tensor
from .reallocations import labels
from .struct import Array, Field, Pointer, fields_of, numbers, shown, word, words
from .struct_parts import Cgraph, Galloc, HashSet, LiveScheduler, SchedSplit, View

if TYPE_CHECKING:
    from .reads import ReadScheduler


class SchedState(View):
    """A live `struct ggml_backend_sched`, with upstream's field names: `Scheduler.state`.

        state = sched.state
        state.n_splits, state.splits[0].backend_id, state.splits[0].inputs[0].name
        state.hash_set.find(leaf), state.tensor_backend_id(leaf), state.tensor_copy(x, 0, 1)
        print(state)

    Each field is read on access. `hash_set`, `graph` and the arrays always show the current
    content; a split that you kept raises `ClosedError` after the next plan. Arrays have the length
    that is in use: n_splits for `splits`, the number of nodes of `graph` for `node_backend_ids`.
    `graph` is the scheduler's copy of the graph with its input_dep views and copies. Tensors are
    Tensors while the scheduler holds the graph (`alloc_graph`, `compute`), and bare addresses
    (`Pointer`) otherwise; NULL is None. A field that this release does not have raises
    AttributeError. Raises `BusyError` while another thread plans or computes; callbacks may read.

    C: struct ggml_backend_sched
    """

    __slots__ = ()
    _which = lib.GP_STRUCT_SCHED
    _type = "ggml_backend_sched"

    def __init__(self, scheduler: ReadScheduler, while_computing: bool = False) -> None:
        """Raises `MissingFunctionError` in a build without instrumentation."""
        if not lib.gp_trace_present():
            raise MissingFunctionError("this build of ggml is not instrumented, so it has no state")
        live = LiveScheduler(scheduler, while_computing)
        super().__init__(live, live.address)

    # --- upstream's macros

    def hash_id(self, tensor: Tensor) -> int | None:
        """The slot of a tensor in `hash_set`; None if it has none. Upstream's macro would insert
        the tensor; this inserts nothing."""
        return self.hash_set.find(tensor)  # type: ignore[no-any-return]

    def tensor_backend_id(self, tensor: Tensor) -> int | None:
        """The number of the backend that `tensor` is assigned to, -1 for none yet; None for a
        tensor that the scheduler has not seen."""
        slot = self.hash_id(tensor)
        return None if slot is None else int(self.hv_tensor_backend_ids[slot])

    def tensor_id_copy(
        self, id: int, backend_id: int | str | Backend, copy_id: int
    ) -> Tensor | Pointer | None:
        """Copy number `copy_id` of the tensor in slot `id`, on a backend; None if there is none."""
        copies = self.hv_tensor_copies
        id = integer("id", id, 0, len(copies) - 1)
        number = self._backend_id(backend_id)
        copy = integer("copy_id", copy_id, 0, self.n_copies - 1)
        return copies[id][number][copy]  # type: ignore[no-any-return]

    def tensor_copy(
        self, tensor: Tensor, backend_id: int | str | Backend, copy_id: int
    ) -> Tensor | Pointer | None:
        """Copy number `copy_id` of `tensor` on a backend (its number, its name or the Backend);
        None if there is none. For a graph input it can be the tensor itself, where that serves as
        the current copy."""
        slot = self.hash_id(tensor)
        number, copy = (
            self._backend_id(backend_id),
            integer("copy_id", copy_id, 0, self.n_copies - 1),
        )
        return None if slot is None else self.tensor_id_copy(slot, number, copy)

    def _backend_id(self, backend: int | str | Backend) -> int:
        backends: tuple[Backend, ...] = self._live.sched.backends
        if isinstance(backend, str):
            names = [b.name for b in backends]
            if backend not in names:
                raise ArgumentError(
                    f"no backend of this scheduler is named {backend!r}: it has {', '.join(names)}"
                )
            return names.index(backend)
        if isinstance(backend, Backend):
            if backend not in backends:
                raise ArgumentError(f"{backend!r} is not a backend of this scheduler")
            return backends.index(backend)
        return integer("backend_id", backend, 0, len(backends) - 1)

    # --- fields

    def __str__(self) -> str:
        with self._live.reading():
            return "\n".join(["{", *(f"  {line}," for line in self._lines()), "}"])

    __repr__ = __str__

    def _lines(self) -> list[str]:
        as_text = {"splits": _one_per_line}
        return [f"{f.name} = {as_text.get(f.name, shown)(self._read(f))}" for f in self.fields_]

    def _read(self, field: Field) -> Any:
        row = _FIELDS.get(field.name)
        return self._plain(field) if row is None or row.read is None else row.read(self, field)

    def as_dict_(self) -> dict[str, Any]:
        """See `Scheduler.inspect`."""
        with self._live.reading():
            rows = [(f, _FIELDS.get(f.name, _NUMBER)) for f in self.fields_]
            return {f.name: row.data(self, self._read(f)) for f, row in rows if row.data}

    def _used_slots(self, hash_set: HashSet) -> dict[str, Any]:
        size, slots = hash_set.size, hash_set._slots()
        keys = word(hash_set.address_ + fields_of(hash_set._which)["keys"].offset)
        ids, copies = self._pointer("hv_tensor_backend_ids"), self._pointer("hv_tensor_copies")
        each = self._number("n_backends") * self._number("n_copies")
        causes = ffi.new("char[]", 16 * max(size, 1))
        lib.gp_sched_causes(self._live.sched.ptr, causes)
        rows = [
            {
                "slot": slot,
                "tensor": word(keys + 8 * slot),
                "hv_tensor_backend_ids": numbers(ids + 4 * slot, 1)[0],
                "n_hv_tensor_copies": sum(map(bool, words(copies + 8 * each * slot, each))),
                "cause": text(causes + 16 * slot),
            }
            for slot in slots
        ]
        return {"size": size, "n_used": len(rows), "slots": rows}

    def _pointer(self, name: str) -> int:
        return word(self._address() + fields_of(self._which)[name].offset)

    def _length(self, *names: str) -> Callable[[], tuple[int, ...]]:
        """Dimensions that are read from these fields on each call."""

        def dims() -> tuple[int, ...]:
            with self._live.reading():
                return tuple(self._number(name) for name in names)

        return dims

    def _hash_set(self, field: Field) -> HashSet:
        return HashSet(self._live, lambda: self._address() + field.offset, lambda: True)

    def _graph(self, field: Field) -> Cgraph:
        return Cgraph(self._live, lambda: self._address() + field.offset, lambda: True)

    def _splits(self, field: Field) -> Array:
        def where() -> tuple[int, int]:
            return word(self._address() + field.offset), self._number("n_splits")

        def load(start: int, n: int) -> list[SchedSplit]:
            return [SchedSplit(self._live, where, i) for i in range(start, start + n)]

        return Array(self._length("n_splits"), load)

    def _backends(self, field: Field) -> Array:
        found = {int(ffi.cast("uintptr_t", b.ptr)): b for b in self._live.sched.backends}
        return self._array(
            field, lambda: field.dims, lambda at, n: [found.get(a) for a in words(at, n)]
        )

    def _bufts(self, field: Field) -> Array:
        def load(at: int, n: int) -> list[BufferType | None]:
            kind = "ggml_backend_buffer_type_t"
            return [BufferType(ffi.cast(kind, a)) if a else None for a in words(at, n)]

        return self._array(field, lambda: field.dims, load)

    def _events(self, field: Field) -> Array:
        why = "an event has no fields that can be read"

        def load(at: int, n: int) -> list[Pointer | None]:
            return [Pointer("ggml_backend_event_t", a, why) if a else None for a in words(at, n)]

        return self._array(field, lambda: field.dims, load)

    def _by_slot(self, field: Field) -> Array:
        hash_set: HashSet = self.hash_set
        dims = lambda: (hash_set.size,)  # noqa: E731
        return self._array(field, dims, numbers, hash_set._slots)

    def _copies(self, field: Field) -> Array:
        hash_set: HashSet = self.hash_set
        rest = self._length("n_backends", "n_copies")
        array = self._tensors(field, lambda: (hash_set.size, *rest()))

        def with_copies() -> list[int]:
            with self._live.reading():
                each = self._number("n_backends") * self._number("n_copies")
                flat = words(self._pointer(field.name), hash_set.size * each)
            return [i for i in hash_set._slots() if any(flat[i * each : (i + 1) * each])]

        array._shown = with_copies
        return array

    def _ids(self, field: Field) -> Array:
        graph: Cgraph = self.graph
        which = "n_nodes" if "node" in field.name else "n_leafs"

        def dims() -> tuple[int, ...]:
            with self._live.reading():
                if not field.name.startswith("prev_"):
                    return (graph._number(which),)
                prev = {"n_nodes": ffi.new("int32_t *"), "n_leafs": ffi.new("int32_t *")}
                lib.gp_sched_prev(self._live.sched.ptr, prev["n_nodes"], prev["n_leafs"])
                return (prev[which][0],)

        return self._array(field, dims, numbers)

    def _graph_inputs(self, field: Field) -> Array:
        return self._tensors(field, self._length("n_graph_inputs"))

    def _galloc(self, _field: Field) -> Galloc:
        return Galloc(self._live)


class _Row(NamedTuple):
    """A field of the struct: how it is read, and its value as plain data, which `inspect` shows."""

    read: Callable[[SchedState, Field], Any] | None
    data: Callable[[SchedState, Any], Any] | None  # None: not shown


def _names(state: SchedState, array: Array) -> list[str]:
    return [one.name for one in list(array)[: state.n_backends]]


def _numbers(_state: SchedState, array: Array) -> list[int]:
    return list(array)


def _is_set(_state: SchedState, pointer: Pointer | None) -> bool:
    return pointer is not None


def _sizes(state: SchedState, galloc: Galloc) -> dict[str, int]:
    return dict(zip(labels(state._live.sched), galloc.sizes, strict=True))


_NUMBER = _Row(None, lambda _state, value: value)
_FIELDS: dict[str, _Row] = {
    "backends": _Row(SchedState._backends, _names),
    "bufts": _Row(SchedState._bufts, _names),
    "galloc": _Row(SchedState._galloc, _sizes),
    "hash_set": _Row(SchedState._hash_set, SchedState._used_slots),
    "hv_tensor_backend_ids": _Row(SchedState._by_slot, None),  # with the slots of hash_set
    "hv_tensor_copies": _Row(SchedState._copies, None),
    "node_backend_ids": _Row(SchedState._ids, _numbers),
    "leaf_backend_ids": _Row(SchedState._ids, _numbers),
    "prev_node_backend_ids": _Row(SchedState._ids, _numbers),
    "prev_leaf_backend_ids": _Row(SchedState._ids, _numbers),
    "graph": _Row(
        SchedState._graph, lambda _, g: {k: g._number(k) for k in ("n_nodes", "n_leafs", "size")}
    ),
    "splits": _Row(
        SchedState._splits,
        lambda _, splits: [
            {k: getattr(s, k) for k in ("backend_id", "i_start", "i_end", "n_inputs")}
            for s in splits
        ],
    ),
    "events": _Row(
        SchedState._events,
        lambda state, events: [
            [event is not None for event in copies[: state.n_copies]]
            for copies in list(events)[: state.n_backends]
        ],
    ),
    "graph_inputs": _Row(SchedState._graph_inputs, None),
    "ctx": _Row(None, None),
    "callback_eval": _Row(None, _is_set),
    "callback_eval_user_data": _Row(None, None),
    "callback_copy": _Row(None, _is_set),
    "callback_copy_user_data": _Row(None, None),
    "context_buffer": _Row(None, lambda _, pointer: int(pointer or 0)),
}


def _one_per_line(splits: Array) -> str:
    lines = [f"    {split!r}," for split in splits]
    return "\n".join(["{", *lines, "  }"]) if lines else "{}"

"""A scheduler's private state, and why its compute buffers were laid out again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..boundary.ffi import NULL, ffi, lib, text
from ..boundary.handle import reading
from ..graphs.reallocation import Reallocation, reallocation
from ..graphs.reallocation import labels as named

if TYPE_CHECKING:
    from .reads import ReadScheduler

# In the order of gp_sched_ids' `which`.
_ID_TABLES = (
    "node_backend_ids", "prev_node_backend_ids", "leaf_backend_ids", "prev_leaf_backend_ids",
)  # fmt: skip
_GRAPH_FIELDS = {"n_nodes": "n_graph_nodes", "n_leafs": "n_graph_leafs", "size": "graph_size"}


def reallocations(scheduler: ReadScheduler) -> tuple[Reallocation, ...]:
    """C: gp_sched_reallocs"""
    names = labels(scheduler)
    n = lib.gp_sched_reallocs(scheduler.ptr, NULL, 0)
    records = ffi.new("struct gp_realloc_record[]", n)
    lib.gp_sched_reallocs(scheduler.ptr, records, n)
    kept = (r for r in records if r.kind != lib.GP_REALLOC_NONE)  # the newest; the rest are zeros
    return tuple(_reallocation(r, names) for r in kept)


def _reallocation(r: Any, names: list[str]) -> Reallocation:
    before = _sizes(r.before, names)
    first = "" if any(before.values()) else "the first graph, without a reserve before it"
    return reallocation(r, names, before, _sizes(r.after, names), first)


def _sizes(sizes: Any, names: list[str]) -> dict[str, int]:
    return {name: int(sizes[i]) for i, name in enumerate(names)}


def read_state(scheduler: ReadScheduler) -> Any:
    """A struct gp_sched_state. C: gp_sched_state"""
    state = ffi.new("struct gp_sched_state *")
    with reading(scheduler):
        lib.gp_sched_state(scheduler.ptr, state)
    return state


def read_slots(scheduler: ReadScheduler) -> Any:
    """The used slots of its hash set. C: gp_sched_slots"""
    with reading(scheduler):
        n = lib.gp_sched_slots(scheduler.ptr, NULL, 0)
        slots = ffi.new("struct gp_slot_record[]", n)
        lib.gp_sched_slots(scheduler.ptr, slots, n)
    return slots


def labels(scheduler: ReadScheduler) -> list[str]:
    """The backends' names; a name that repeats gets its index."""
    return named([b.name for b in scheduler.backends])


def inspect(scheduler: ReadScheduler) -> dict[str, Any]:
    """See `Scheduler.inspect`."""
    ptr, state = scheduler.ptr, scheduler._state()
    scalars = {name: getattr(state, name) for name, _field in ffi.typeof(state[0]).fields}
    graph = {k: scalars.pop(f) for k, f in _GRAPH_FIELDS.items()}
    size, used = scalars.pop("hash_set_size"), scalars.pop("hash_set_used")
    flags = ("is_reset", "is_alloc", "op_offload", "callback_eval", "callback_copy")
    out: dict[str, Any] = {k: v for k, v in scalars.items() if v != -1}
    out.update({k: bool(out[k]) for k in flags if k in out})
    n_backends, n_copies = state.n_backends, state.n_copies
    events = ffi.new("int32_t[]", n_backends * n_copies)
    lib.gp_sched_events(ptr, events)
    out["backends"] = [b.name for b in scheduler.backends]
    out["bufts"] = [scheduler.buffer_type(b).name for b in scheduler.backends]
    out["galloc"] = {b.name: scheduler.buffer_size(b) for b in scheduler.backends}
    out["events"] = [
        [bool(events[b * n_copies + c]) for c in range(n_copies)] for b in range(n_backends)
    ]
    out["graph"] = graph
    out["hash_set"] = {
        "size": size,
        "n_used": used,
        "slots": [
            {
                "slot": r.slot,
                "tensor": r.addr,
                "hv_tensor_backend_ids": r.backend,
                "n_hv_tensor_copies": r.n_copies,
                "cause": text(r.cause),
            }
            for r in read_slots(scheduler)
        ],
    }
    for which, name in enumerate(_ID_TABLES):
        n = lib.gp_sched_ids(ptr, which, NULL, 0)
        ids = ffi.new("int32_t[]", n)
        lib.gp_sched_ids(ptr, which, ids, n)
        out[name] = list(ids)
    return out

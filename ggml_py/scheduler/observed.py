"""Observations of a graph that a release allocated and computed, besides its plan."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import enums
from ..backends.backend import check_status
from ..backends.sharing import changing
from ..boundary.ffi import NULL, ffi, lib
from ..errors import GgmlError
from ..tensors.tensor import Tensor
from ..trace.recorded import COPY, NODES, WAIT, RunEvent
from ..typed import typed
from .made_up import MadeUp
from .reallocations import labels
from .rebuilt import RebuiltGraph
from .recording import events_of
from .refusal import deciding
from .scheduler import Scheduler
from .struct import fields_of

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from ..plan import Plan

_SAMPLE, _OUTPUTS = 4096, 256  # values that are kept of all outputs of a graph, and outputs
ID_OF_GRAPH = "id of a graph"  # how a line begins that some releases have nothing for
_ROUND, _COMPUTES = 0.1, 100  # seconds and computes of which a round takes the median


class RunCopy(NamedTuple):
    """A copy that a compute made."""

    tensor: str
    to: str  # the backend
    nbytes: int


class Output(NamedTuple):
    """A computed node that no other node reads, except a view that none reads."""

    name: str
    op: str
    digest: str  # of its bytes
    sample: tuple[float, ...]  # of its values, evenly spread


class Observed(NamedTuple):
    """What a release does with a graph besides planning it. Sizes are those of the devices that
    stand in for the recorded ones. () and {} if it did not come so far; `left_out` says why."""

    reserved: dict[str, int]  # bytes of compute buffer after `reserve` with the pins, by backend
    allocated: dict[str, int]  # the same, when the pins were made again and the graph got memory
    reallocations: tuple[str, ...]  # why `reserve` was not enough for the same graph
    waits: int | None  # waits of the host in one compute; None if it was not computed
    copies: tuple[RunCopy, ...]  # of that compute, in their order
    left_out: str = ""
    outputs: tuple[Output, ...] = ()  # of that compute, on made-up values
    seconds: tuple[float, ...] = ()  # of a compute, a median for each round that was asked for
    untimed: str = ""  # why there are no rounds though they were asked for
    layout: tuple[str, ...] = ()  # each decision of the graph allocator, in a line
    steps: tuple[str, ...] = ()  # each copy, wait and event of that compute, in a line
    later: tuple[str, ...] = ()  # of the computes after it, which only some graphs get

    @classmethod
    @typed
    def from_json(cls, text: str) -> Observed:
        """The observations that `json.dumps` wrote."""
        seen = cls(*json.loads(text))
        return seen._replace(
            reallocations=tuple(seen.reallocations),
            copies=tuple(RunCopy(*one) for one in seen.copies),
            outputs=tuple(Output(a, b, c, tuple(sample)) for a, b, c, sample in seen.outputs),
            seconds=(), layout=tuple(seen.layout), steps=tuple(seen.steps), later=tuple(seen.later),
        )  # fmt: skip


def run_once(scheduler: Scheduler, memory: RebuiltGraph, plan: Plan, seen: Observed) -> Observed:
    """With what one compute on made-up values does. The graph has memory by that plan."""
    events = _computed(scheduler, memory)
    names = labels(scheduler)
    copies = [
        RunCopy(plan.splits[e.split].inputs[e.input].tensor.name, names[e.backend], e.nbytes)
        for e in events if e.kind == COPY
    ]  # fmt: skip
    waits = sum(event.kind == WAIT for event in events)
    return seen._replace(
        waits=waits, copies=tuple(copies), outputs=_outputs(memory),
        steps=(*seen.steps, *_steps(names, events)),
    )  # fmt: skip


def run_again(
    scheduler: Scheduler,
    memory: RebuiltGraph,
    allocate: Callable[[bool], Plan],
    pin: Callable[[], None],
    first: Sequence[Output],
) -> tuple[str, ...]:
    """Computes the graph again in several ways, and returns lines about each. The ways are: on the
    scheduler's next copy of the graph, after a wait, with an eval callback that stops a split, with
    a copy callback that fills some weights, and without memory given before. `first` are the
    outputs of the first compute."""
    lines: list[str] = []
    names, ids = labels(scheduler), set[int]()
    lines += _id_lines(scheduler, memory, ids)

    def add(title: str, rows: Sequence[str]) -> None:
        lines.extend(f"{title}: {row}" for row in rows)

    for n, waiting in ((2, False), (3, True)):
        before = scheduler.n_reallocations
        plan = allocate(waiting)
        again = scheduler.reallocations[-(scheduler.n_reallocations - before) or 256 :]
        add(f"compute {n}", [f"laid out again: {one.text}" for one in again])
        add(f"compute {n}", (f"copy {plan.settings.cur_copy} of the graph", *lines_of(plan)))
        add(f"compute {n}", layout_lines(plan))
        lines += _id_lines(scheduler, memory, ids)
        add(f"compute {n}", _steps(names, _computed(scheduler, memory)))
    add("usage of compute buffers", _usages(memory))
    said = {True: 0, False: 0}

    def look(tensor: Tensor, ask: bool) -> bool:
        said[ask] += 1
        add("eval callback", [f"{'asks about' if ask else 'shows'} '{tensor.name}'"])
        return said[ask] % 4 == 0 if ask else said[ask] != 2

    def compute() -> None:
        scheduler.set_eval_callback(look)
        scheduler.compute(memory.graph)
        scheduler.set_eval_callback(None)

    MadeUp(memory.tensors).write()
    for node in _output_nodes(memory):
        lib.ggml_backend_tensor_memset(node.ptr, 0, 0, node.nbytes)
    add("with an eval callback", _steps(names, events_of(scheduler, compute)))
    add("with an eval callback", [
        f"'{now.name}' is {'as at first' if now.digest == was.digest else 'otherwise'}"
        for was, now in zip(first, _outputs(memory), strict=True)
    ])  # fmt: skip
    if hasattr(lib, "ggml_backend_sched_set_copy_callback"):

        def fill(backend: Backend, src: Tensor, _dst: Tensor, nodes: Sequence[Tensor]) -> bool:
            add("copy callback", [f"'{src.name}' to {backend.name}, {len(nodes)} nodes"])
            return len(lines) % 2 == 0

        scheduler.set_copy_callback(fill)
        add("with a copy callback", _steps(names, _computed(scheduler, memory)))
        scheduler.set_copy_callback(None)
    if all(tensor.type.name != "I32" for tensor in memory.graph.leafs):  # else an index of nothing
        scheduler.reset()
        pin()
        add(
            "computed at once",
            _steps(names, events_of(scheduler, lambda: _at_once(scheduler, memory))),
        )
    return tuple(lines)


def _at_once(scheduler: Scheduler, memory: RebuiltGraph) -> None:
    """Computes a graph that has no memory yet, on whatever values are there. Upstream drops the
    pins then, which `Scheduler.compute` avoids. C: ggml_backend_sched_graph_compute"""
    graph = memory.graph
    with changing("computing", scheduler, graph, graph=graph), deciding(scheduler, graph, True):
        status = lib.ggml_backend_sched_graph_compute(scheduler.ptr, graph.ptr)
    check_status(status, "compute")


def _id_lines(scheduler: Scheduler, memory: RebuiltGraph, seen: set[int]) -> list[str]:
    """Lines about the ids of the graph and its splits, by which backends cache graphs. [] in
    releases without ids. C: ggml_graph_next_uid"""
    field = fields_of(lib.GP_STRUCT_CGRAPH)["uid"]
    if field.kind == lib.GP_FIELD_ABSENT:
        return []
    at = int(ffi.cast("uintptr_t", memory.graph.ptr)) + field.offset
    found = {"the graph": int(ffi.cast("uint64_t *", at)[0])}
    splits = scheduler.state.splits[: scheduler.n_splits]
    found |= {f"split {i}": int(split.graph.uid) for i, split in enumerate(splits)}
    lines = []
    for what, uid in found.items():
        kind = "none" if not uid else "one that was given before" if uid in seen else "a new one"
        lines.append(f"{ID_OF_GRAPH}: {what} has {kind}")
        seen.add(uid)
    return lines


def _usages(memory: RebuiltGraph) -> list[str]:
    """Names of buffer types in which nodes are, with the usage of the buffers."""
    found = [node.buffer for node in memory.graph.nodes if node.buffer is not None]
    return sorted({f"{one.type.name} {one.usage}" for one in found})


def unplaced_lines(
    scheduler: Scheduler, memory: RebuiltGraph, sizes: Callable[[], dict[str, int]]
) -> tuple[str, ...]:
    """Lines about two more reserves: first weights have a buffer and no address, as in llama.cpp's
    llama_params_fit, then an address and no buffer."""
    placed = [t.ptr for t in memory.tensors if t.ptr.buffer and t.ptr.view_src == NULL]
    lines = []
    for field, title in (("data", "without addresses"), ("buffer", "without buffers")):
        kept = [getattr(ptr, field) for ptr in placed]
        try:
            for ptr in placed:
                setattr(ptr, field, NULL)
            scheduler.reserve(memory.graph)
            lines += [f"reserved {title}: {name} {n} B" for name, n in sizes().items()]
            if field == "buffer":
                scheduler.alloc_without_plan(memory.graph)
        except GgmlError as error:
            lines.append(f"reserved {title}: {str(error).partition(chr(10))[0]}")
        finally:
            scheduler.reset()
            for ptr, was in zip(placed, kept, strict=True):
                setattr(ptr, field, was)
    return tuple(lines)


def _computed(scheduler: Scheduler, memory: RebuiltGraph) -> list[RunEvent]:
    MadeUp(memory.tensors).write()
    return events_of(scheduler, lambda: scheduler.compute(memory.graph))


@typed
def allocated_steps(scheduler: Scheduler, work: Callable[[], object]) -> tuple[str, ...]:
    """The waits while memory is reserved or given, in lines."""
    return _steps(labels(scheduler), events_of(scheduler, work))


def _steps(names: Sequence[str], events: Sequence[RunEvent]) -> tuple[str, ...]:
    lines = []
    for e in events:
        where = names[e.backend] if e.backend >= 0 else ""
        by = f" by {names[e.by]}" if e.by >= 0 else ""
        what = f"split {e.split} input {e.input}" if e.kind == COPY else ""
        nodes = f"nodes {e.first} to {e.last}" if e.kind == NODES else ""
        parts = (e.kind, e.how, where + by, what, nodes, f"{e.nbytes} B" if e.kind == COPY else "")
        lines.append(" ".join(filter(None, parts)) + (f", copy {e.copy}" if e.copy > 0 else ""))
    return tuple(lines)


@typed
def lines_of(plan: Plan) -> tuple[str, ...]:
    """The splits of a plan and their inputs, in lines."""
    return tuple(
        f"split {s.index} on {s.backend}: nodes {s.start} to {s.end}, inputs "
        + ", ".join(f"'{one.tensor.name}'" for one in s.inputs)
        for s in plan.splits
    )


@typed
def layout_lines(plan: Plan) -> tuple[str, ...]:
    """The decisions of the graph allocator about a plan that has memory, in lines."""
    if plan.layout is None:
        return ()
    records = (*plan.capture.tensors, *plan.outcome.copies)

    def name(id: int) -> str:
        return f"'{records[id].name}'" if 0 <= id < len(records) else "a view of an input"

    return tuple(
        f"{e.kind} {name(e.tensor)}" + (f" of {name(e.of)}" if e.of >= 0 else "")
        + f": {plan.backends[e.backend].name} buffer {e.chunk} at {e.offset}, {e.size} B"
        for e in plan.layout.events
    )  # fmt: skip


def median_seconds(scheduler: Scheduler, memory: RebuiltGraph) -> float:
    """Of a compute on made-up values and the wait for its end, after one that does not count."""
    taken: list[float] = []
    values = MadeUp(memory.tensors)
    values.write()
    scheduler.compute(memory.graph)
    while len(taken) < 3 or (sum(taken) < _ROUND and len(taken) < _COMPUTES):
        values.write_inputs()
        start = time.perf_counter()
        scheduler.compute(memory.graph)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _outputs(memory: RebuiltGraph) -> tuple[Output, ...]:
    found = _output_nodes(memory)
    return tuple(_output(node, _SAMPLE // len(found)) for node in found)


def _output_nodes(memory: RebuiltGraph) -> list[Tensor]:
    nodes = [memory.tensors[i] for i in memory.unread]
    found = [node for node in nodes if node.n_elements and _is_computed(node)]
    return found[-_OUTPUTS:]


def _output(node: Tensor, n: int) -> Output:
    raw = np.empty(node.nbytes, np.uint8)
    lib.ggml_backend_tensor_get(node.ptr, ffi.from_buffer(raw), 0, raw.nbytes)
    digest = hashlib.sha256(raw.tobytes()).hexdigest()
    try:
        values = node.get().reshape(-1)
    except GgmlError:  # a type without floats
        values = raw
    places = np.linspace(0, values.size - 1, min(values.size, n)).astype(np.int64)
    sample = values[places].astype(np.float64).tolist()
    return Output(node.name, node.op.name, digest, tuple(sample))


def _is_computed(node: Tensor) -> bool:
    """Whether its branch was selected. C: ggml_build_forward_select, since 0.21.0"""
    computed = getattr(enums.TensorFlag, "COMPUTE", None)
    return computed is None or bool(node.flags & computed)

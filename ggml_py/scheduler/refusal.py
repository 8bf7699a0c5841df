"""Errors for what a scheduler cannot take, and for upstream's aborts, with names and numbers."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from ..backends.backend import Backend
from ..backends.buffer import BufferType
from ..boundary.address_space import lack
from ..boundary.arguments import ptr_of
from ..boundary.ffi import NULL, ffi, lib, text
from ..enums import BackendDevType, TensorFlag
from ..errors import AbortError, AllocError, ArgumentError
from ..graphs.graph import Graph
from ..sim.profile import NOT_ON_RECORD
from ..sim.sim_device import profiles_of_files
from ..trace.names import counted
from ..trace.record import VIEW_OPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..tensors.tensor import Tensor
    from .scheduler import Scheduler

_PLACED = re.compile(
    r"pre-allocated tensor \((.*)\) in a buffer \((.*)\) that cannot run the operation \((.*)\)",
    re.DOTALL,
)
MAX_BACKENDS = 16  # GGML_SCHED_MAX_BACKENDS in ggml-backend.cpp
_ON_NONE = re.compile(r"buffer_id >= 0|(src|leaf)_backend_id != -1")
_INPUT_LIMIT = re.compile(r"(n_graph_inputs|n_inputs) < GGML_SCHED_MAX_SPLIT_INPUTS")


@contextlib.contextmanager
def deciding(scheduler: Scheduler, graph: Graph, undo: bool = False) -> Iterator[None]:
    """Turns upstream's abort for a graph that cannot be placed into an error that says why. Nothing
    is allocated at that point, so `undo` can take the scheduler's changes back: it stays usable."""
    take_back = lib.gp_sched_unplan if scheduler._tracing else lib.ggml_backend_sched_reset
    try:
        yield
    except AbortError as error:
        clearer = refusal(scheduler, graph, error)
        if clearer is None:
            raise
        if undo:
            take_back(scheduler.ptr)
        raise clearer from None
    except BaseException:  # from Python that a device called; the native call itself went on
        if undo:
            take_back(scheduler.ptr)
        raise


def refusal(scheduler: Scheduler, graph: Graph, error: AbortError) -> ArgumentError | None:
    """The error for an abort caused by a graph that this scheduler cannot place; None for other
    aborts. Upstream has allocated nothing when it finds this.

    C: ggml_backend_sched_backend_id_from_cur, ggml_backend_sched_split_graph,
    ggml_hash_find_or_insert, ggml_gallocr_allocate_node
    """
    condition = error.condition
    if placed := _PLACED.fullmatch(condition):
        return _placed(scheduler, graph, *placed.groups())
    if "*cur_backend_id != -1" in condition:
        return _unsupported(scheduler, graph)
    if condition == "fatal error" and (error.file or "").endswith("ggml-impl.h"):
        return ArgumentError(
            f"the graph has {counted(graph.n_nodes, 'node')} and {counted(graph.n_leafs, 'leaf')}. "
            "Together with pinned tensors and sources that are neither, these are more than the "
            f"{counted(scheduler.hash_set_size, 'tensor')} that this scheduler has room for: make "
            "it with a larger graph_size="
        )
    if _ON_NONE.search(condition):
        return _nowhere(graph)
    if limit := _INPUT_LIMIT.search(condition):
        what = "graph inputs" if limit[1] == "n_graph_inputs" else "inputs of one split"
        return ArgumentError(
            f"more than 30 {what}: this release of ggml has no room for them. Use release 0.18.1 "
            "or later; with parallel=False graph inputs do not count"
        )
    return None


def _has(scheduler: Scheduler) -> str:
    return ", ".join(b.name for b in scheduler.backends)


def _sources(node: Tensor | None) -> str:
    return ", ".join(
        f"{s.type.name.lower()} {list(s.ne)} '{s.name}'" for s in (node.src if node else ())
    )


def _placed(scheduler: Scheduler, graph: Graph, name: str, buffer: str, op: str) -> ArgumentError:
    if op == "NONE":
        return ArgumentError(
            f"tensor '{name}' is in {buffer} memory, which no backend of this scheduler "
            f"({_has(scheduler)}) can read: add the backend of its device, or allocate it elsewhere"
        )
    same = [n for n in graph.nodes if n.name == name and n.op.name == op]
    node = next((n for n in same if not _runs_in_place(scheduler, n)), None)
    return ArgumentError(
        f"'{name}' = {op}({_sources(node)}) is already in {buffer} memory, but no backend of this "
        f"scheduler ({_has(scheduler)}) can run {op} there: add a backend that can, or give the "
        f"result another type or other memory{_unrecorded(scheduler, node)}"
    )


def _unrecorded(scheduler: Scheduler, node: Tensor | None) -> str:
    """The backends that do not have the op on record, in words; "" if there are none."""
    files = profiles_of_files()
    found = [
        f"; on {b.name} it is {decision.text}"
        for b in scheduler.backends
        if node is not None and (profile := files.get(b.device.name)) is not None
        and (decision := profile.decide(node)).basis == NOT_ON_RECORD
    ]  # fmt: skip
    return "".join(found)


def _runs_in_place(scheduler: Scheduler, node: Tensor) -> bool:
    """Whether a backend can compute `node` in the memory of the node or of the tensor it views."""
    buffer = node.buffer
    return buffer is None or any(
        b.supports_buft(buffer.type) and b.supports_op(node) for b in scheduler.backends
    )


def _unsupported(scheduler: Scheduler, graph: Graph) -> ArgumentError | None:
    for node in graph.nodes:
        if not any(b.supports_op(node) for b in scheduler.backends):
            return ArgumentError(
                f"no backend of this scheduler ({_has(scheduler)}) supports '{node.name}' = "
                f"{node.op.name}({_sources(node)}), not even the last one: other types or shapes "
                "may be supported, see ggml_py.variants.nearest"
            )
    return None


def _nowhere(graph: Graph) -> ArgumentError:
    """Names the leaf that has no backend. Upstream gives a leaf the backend of its memory or of its
    first consumer. A view op has no backend by then, and a leaf that is a view (`view_tensor`) does
    not take its consumer's."""
    for leaf in graph.leafs:
        if leaf.buffer is not None or leaf.flags & TensorFlag.INPUT:
            continue
        if (source := leaf.view_src) is None:
            return ArgumentError(
                f"ggml finds no backend for leaf '{leaf.name}', which has no memory, is not marked "
                "as an input, and is read only through views: call set_input() on it, or allocate "
                "it"
            )
        if source.buffer is None:
            return ArgumentError(
                f"ggml finds no backend for leaf '{leaf.name}', a view (view_tensor) of "
                f"'{source.name}', which has no memory: allocate the source, or use a view op "
                "(view_1d, reshape_1d, ..), which is a node of the graph"
            )
    return ArgumentError(
        "ggml found no backend for a leaf of the graph that had no memory and was not marked as an "
        "input. Another thread has changed it since: allocate leafs before planning"
    )


def larger_than_buffers(scheduler: Scheduler, graph: Graph) -> dict[str, str]:
    """The largest node of each buffer type that has no buffer as large, in words, by the type's
    name. Ask before the plan is taken back."""
    found: dict[str, tuple[int, str]] = {}
    limits = {t: t.max_size for t in map(scheduler.buffer_type, scheduler.backends)}
    for node in graph.nodes:
        backend = lib.ggml_backend_sched_get_tensor_backend(scheduler.ptr, node.ptr)
        if backend == NULL or node.view_src is not None or node.buffer is not None:
            continue
        buft = BufferType(lib.ggml_backend_get_default_buffer_type(backend))
        size = int(lib.ggml_backend_buft_get_alloc_size(buft.ptr, node.ptr))
        if size > max(limits.get(buft, size), found.get(buft.name, (0, ""))[0]):
            most = f"in one buffer, which has at most {limits[buft]:,}"
            found[buft.name] = size, f"'{node.name}' needs {size:,} {most}"
    return {name: text for name, (_size, text) in found.items()}


def no_memory(
    scheduler: Scheduler, sizes: dict[str, int] | None, too_large: dict[str, str]
) -> AllocError:
    """The error for a graph whose compute buffers cannot be allocated; `sizes` is what it needs,
    `too_large` as from `larger_than_buffers`."""
    found = ffi.new("char[]", 128)
    failed = lib.gp_alloc_failed(found, len(found))
    buft = text(found)
    types = [scheduler.buffer_type(b) for b in scheduler.backends]
    room = next((t._room() for t in types if t.name == buft), "")
    needs = "".join(f", {name} {size:,}" for name, size in (sizes or {}).items())
    return AllocError(
        f"{buft} could not allocate {failed:,} bytes of compute buffer for this graph{room}"
        + (f" (it needs, in bytes: {needs[2:]})" if needs else "")
        + (f"; {too_large[buft]}" if buft in too_large else "")
        + lack(failed)
        + ". A smaller batch or context, fewer outputs or another placement needs less",
        sizes or {buft: failed},
    )


def check_pin(tensor: Tensor, backend: Backend, backends: tuple[Backend, ...]) -> None:
    """Raises for a tensor in memory that `backend` cannot read. Upstream does not copy a pinned
    tensor, so its consumers there would read it where it is.
    C: ggml_backend_sched_set_tensor_backend"""
    buffer = tensor.buffer
    if buffer is None or backend.supports_buft(buffer.type):
        return
    fact = f"'{tensor.name}' is in {buffer.type.name} memory, which {backend.name} cannot read"
    if tensor.op.name == "NONE" or tensor.op.name in VIEW_OPS:
        remedy = "allocate it there, or pin the ops that use it: they get a copy"
    else:  # an op: it writes its result to that memory
        able = [b.name for b in backends if b.supports_buft(buffer.type) and b.supports_op(tensor)]
        instead = f"pin it to {' or '.join(able)}, which computes it there" if able else ""
        remedy = ", or ".join(
            filter(None, ("do not pin it", instead, "give its result no memory of its own"))
        )
    raise ArgumentError(f"{fact}: {remedy}")


def check_graph(graph: Graph, scheduler: Scheduler, room: int) -> None:
    """Raises for a graph that `scheduler`, with room for `room` tensors, cannot take now."""
    ptr_of(Graph, graph)
    need = graph.n_nodes + graph.n_leafs
    if need > room:
        raise ArgumentError(
            f"the graph has {counted(graph.n_nodes, 'node')} + {counted(graph.n_leafs, 'leaf')} = "
            f"{need}, but this scheduler has room for {room}: make it with graph_size={need} or "
            "more"
        )
    other = graph._allocated_on()
    if other is not None and other is not scheduler:
        raise ArgumentError(f"the graph is allocated on {other!r}: reset() that one first")
    if graph.n_nodes == 0:
        raise ArgumentError("the graph is empty: add its results with build_forward_expand")


def check_backends(
    backends: tuple[Backend, ...], buffer_types: Sequence[BufferType] | None
) -> None:
    if not 1 <= len(backends) <= MAX_BACKENDS:
        raise ArgumentError(f"{len(backends)} backends: a scheduler takes 1 to {MAX_BACKENDS}")
    for backend in backends:
        ptr_of(Backend, backend)
        if backends.count(backend) > 1:
            raise ArgumentError(
                f"backend {backend.name} is given twice: open another one with Device.init()"
            )
    last = backends[-1]
    if last.device.type != BackendDevType.CPU:
        raise ArgumentError(
            f"the last backend is {last.name} ({last.device.type.name}): it must be a CPU "
            "backend, which runs what no other backend supports. Give device('CPU').init() last"
        )
    if buffer_types is not None and len(buffer_types) != len(backends):
        n = len(backends)
        raise ArgumentError(
            f"{counted(len(buffer_types), 'buffer type')} for {counted(n, 'backend')}"
        )
    for backend, buft in zip(backends, buffer_types or (), strict=False):
        if not backend.supports_buft(buft):
            raise ArgumentError(f"backend {backend.name} cannot read buffers of type {buft.name}")

"""The memory of a libllama context: as it is allocated, and as libllama estimates it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..backends.buffer import BufferType
from ..boundary.ffi import NULL, text
from ..boundary.ffi import lib as ggml
from ..errors import ModelError
from ..memory import ComputeBuffer
from ..memory.shortfalls import DeviceRoom, Shortfall, UncutBuffer, shortfalls
from ..plan import MemoryRow, Plan
from .library import Library
from .native import ContextHandle
from .params import Params
from .plans import Look

# libllama reserves memory for one long sequence, too: [TAG_RESERVE_DIAG_DECAY]
_META = "Meta("  # what the name begins with of a device that is several. C++: ggml-backend-meta.cpp
_FAR_OFF = 4  # no compute buffer was seen to be as many times as large as libllama's estimate
_RESERVE_ONE_SEQUENCE = frozenset({"kimi-linear", "minimax-01"})


def estimate(library: Library, ctx: Any) -> tuple[MemoryRow, ...]:
    """Bytes of the buffers of each type, as libllama estimates them before it allocates anything.
    A compute buffer counts for each backend that uses it. C: llama_get_memory_breakdown"""
    read, n = (
        library.lib.gpl_get_memory_breakdown,
        library.lib.gpl_get_memory_breakdown(ctx, NULL, 0),
    )
    rows = library.ffi.new("struct gpl_memory_row[]", max(n, 1))
    read(ctx, rows, n)
    return tuple(_row(row) for row in rows[0:n])


def counted_once(library: Library, ctx: Any) -> tuple[MemoryRow, ...]:
    """The same, with each compute buffer counted once."""
    n = library.lib.gpl_read_memory(ctx, NULL, 0)
    rows = library.ffi.new("struct gpl_memory[]", max(n, 1))
    library.lib.gpl_read_memory(ctx, rows, n)
    return tuple(_row(row) for row in rows[0:n])


def with_outputs(library: Library, ctx: Any, rows: tuple[MemoryRow, ...]) -> tuple[MemoryRow, ...]:
    """The rows with the buffer that logits and embeddings are copied to, which libllama's estimate
    leaves out. It grows when more tokens ask for theirs. C++: llama_context::output_reserve"""
    state = library.ffi.new("struct gpl_context_state *")
    library.lib.gpl_read_state(ctx, state)
    if state.output_buft == NULL:
        return rows
    buft = BufferType(state.output_buft)
    size = int(state.output_size)
    if not any(row.buft == buft.name for row in rows):
        return (*rows, MemoryRow(buft.name, _device(buft), 0, 0, 0, size))
    return tuple(row._replace(outputs=size * (row.buft == buft.name)) for row in rows)


def _row(row: Any) -> MemoryRow:
    buft = BufferType(row.buft)
    return MemoryRow(buft.name, _device(buft), row.model, row.context, row.compute)


def _device(buft: BufferType) -> str:
    return "CPU" if buft.is_host or buft.device is None else buft.device.name


def fit_print(library: Library, model: Any, ctx: Any, params: Params) -> str:
    """What `llama-fit-params --fit-print on` prints of this model and context: a line of whole MiB
    per device, model, context and compute, then one for host memory. C++: common_fit_print"""
    if params.maps_files:
        raise ModelError(
            'fit_print: llama-fit-params maps no file: open the model with load_mode="none"'
        )
    lib = library.lib
    devices = [lib.gpl_model_get_device(model, i) for i in range(lib.gpl_model_n_devices(model))]
    found = [[0, 0, 0] for _ in (*devices, "Host")]
    n = lib.gpl_get_memory_breakdown(ctx, NULL, 0)
    rows = library.ffi.new("struct gpl_memory_row[]", max(n, 1))
    lib.gpl_get_memory_breakdown(ctx, rows, n)
    for row in rows[0:n]:
        device = ggml.ggml_backend_buft_get_device(row.buft)
        if ggml.ggml_backend_buft_is_host(row.buft):
            at = len(devices)
        elif device in devices:
            at = devices.index(device)
        else:
            continue
        for i, size in enumerate((row.model, row.context, row.compute)):
            found[at][i] += size
    names = [*(text(ggml.ggml_backend_dev_name(device)) for device in devices), "Host"]
    return "".join(
        f"{name} {' '.join(str(size >> 20) for size in sizes)} \n"
        for name, sizes in zip(names, found, strict=True)
    )


class Reserved(NamedTuple):
    """The graphs that libllama reserves memory for, as its log has them: of a prompt (pp), then of
    one token in each sequence (tg). C++: llama_context::sched_reserve"""

    tokens: tuple[int, int]
    nodes: tuple[int, int]
    splits: tuple[int, int]
    inputs: tuple[int, int]  # input objects
    input_tensors: tuple[int, int]

    @property
    def text(self) -> str:
        """The line of the log, from "graph" on."""
        differ = any(pp != tg for pp, tg in self[1:])
        values = (f"{pp} / {tg}" if differ else f"{pp}" for pp, tg in self[1:])
        sizes = f" (pp bs={self.tokens[0]}, tg bs={self.tokens[1]})" if differ else ""
        names = ("nodes", "splits", "input objects", "input tensors")
        said = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
        return f"graph{sizes}: {said}"


class DevicePart(NamedTuple):
    """What one device of split mode "tensor" has of a model."""

    row: MemoryRow
    uncut: tuple[UncutBuffer, ...]


class ContextMemory(NamedTuple):
    """The memory of a context: bytes by buffer type, the largest buffers, and the graphs that the
    compute buffers are for."""

    rows: tuple[MemoryRow, ...]
    uncut: tuple[UncutBuffer, ...]
    reserved: Reserved


def measure(
    library: Library,
    ctx: Any,
    reserved: Callable[[int, int, Look], Plan],
    arch: str,
    n_ubatch: int,
    n_seq_max: int,
    devices: tuple[str, ...],
    order: tuple[str, ...],
) -> ContextMemory:
    """The memory of a context that was made without weights; `reserved` plans a graph by its
    numbers of tokens and sequences, and calls a function with the native graph. `devices` are the
    GPUs' names, `order` those of all devices, in which rows are.

    libllama's estimate drops the pins that it has made (ggml_backend_sched_reserve_size resets the
    scheduler first), so it may be wrong either way. llama.cpp then allocates the largest layout
    of the graphs that it reserves memory for. C++: llama_context::sched_reserve
    """
    shapes = [(n_ubatch, n_seq_max), (n_seq_max, n_seq_max)]
    if arch in _RESERVE_ONE_SEQUENCE:
        shapes.append((n_ubatch, 1))
    sizes: dict[str, int] = {}
    uncut: dict[tuple[str, str], UncutBuffer] = {}
    graphs: list[tuple[int, ...]] = []
    parts: list[DevicePart] = []
    unknown = False

    def look(graph: Any) -> None:
        nonlocal parts
        state = _state(library, ctx)
        counts = (state.n_inputs, state.n_input_tensors)
        graphs.append((ggml.ggml_graph_n_nodes(graph), *map(int, counts)))
        parts = _parts(library, ctx, graph, devices)
        for one in _largest_tensors(library, ctx, graph):
            _keep_largest(uncut, one)

    splits = []
    for n_tokens, n_seqs in shapes:
        plan = reserved(n_tokens, n_seqs, look)
        splits.append(plan.n_splits)
        unknown = unknown or bool(plan.memory.unknown)
        for buffer in plan.memory.buffers:
            sizes[buffer.name] = max(sizes.get(buffer.name, 0), buffer.size)
            if (one := _largest_chunk(buffer, plan)) is not None:
                _keep_largest(uncut, one)
    rows = counted_once(library, ctx)
    if not unknown:
        rows = tuple(row._replace(compute=sizes.get(row.buft, 0)) for row in rows)
    nodes, inputs, input_tensors = zip(*graphs[:2], strict=True)
    rows = with_outputs(library, ctx, _by_device(rows, parts))
    places = {name: i for i, name in enumerate(order)}
    return ContextMemory(
        tuple(sorted((r for r in rows if any(r[2:])), key=lambda r: places.get(r.device, -1))),
        tuple(_by_part(uncut.values(), parts)),
        Reserved((n_ubatch, n_seq_max), nodes, (splits[0], splits[1]), inputs, input_tensors),
    )  # fmt: skip


def give_up_pipeline(
    library: Library,
    context: ContextHandle,
    rooms: tuple[DeviceRoom, ...],
    measured: Callable[[], ContextMemory],
) -> tuple[Shortfall, ...]:
    """What devices lack for a scheduler that keeps several copies of inputs. If they lack anything
    the context plans without from now on, as libllama does if it cannot allocate the buffers.
    C++: llama_context::sched_reserve"""
    ctx = context.ptr
    if not _state(library, ctx).pipeline_parallel:
        return ()
    rows = [r._replace(compute=_FAR_OFF * (r.compute or 0)) for r in counted_once(library, ctx)]
    limited = any(room.max_buffer is not None for room in rooms)
    if not limited and not shortfalls(rows, (), rooms):
        return ()
    found = measured()
    lacks = tuple(one for one in shortfalls(found.rows, found.uncut, rooms) if one.sure)
    if lacks:
        with context.using("planning"):
            library.lib.gpl_set_pipeline(ctx, False)
    return lacks


def _keep_largest(found: dict[tuple[str, str], UncutBuffer], one: UncutBuffer) -> None:
    before = found.get((one.buft, one.kind))
    if before is None or one.nbytes > before.nbytes:
        found[one.buft, one.kind] = one


def _largest_chunk(buffer: ComputeBuffer, plan: Plan) -> UncutBuffer | None:
    """The largest of the buffers that a compute buffer is cut into, and its largest tensor."""
    sizes = buffer.chunk_sizes
    if not any(sizes):
        return None
    chunk = max(range(len(sizes)), key=sizes.__getitem__)
    block = max((b for b in buffer.blocks if b.chunk == chunk), key=lambda b: b.padded)
    name = plan.tensor(block.tensor).name
    return UncutBuffer(buffer.name, buffer.device, "compute", sizes[chunk], name, block.padded)


def _largest_tensors(library: Library, ctx: Any, graph: Any) -> list[UncutBuffer]:
    read = library.lib.gpl_read_largest
    n = read(ctx, graph, NULL, 0)
    rows = library.ffi.new("struct gpl_largest[]", max(n, 1))
    read(ctx, graph, rows, n)
    found = []
    for row in rows[0:n]:
        buft = BufferType(row.buft)
        kind = "weights" if row.weight else "cache"
        name, size = text(row.tensor.name), int(row.size)
        found.append(UncutBuffer(buft.name, _device(buft), kind, size, name, size))
    return found


def _parts(library: Library, ctx: Any, graph: Any, devices: tuple[str, ...]) -> list[DevicePart]:
    """Split mode "tensor": each device's part of the weights and the cache; [] in other modes.
    C++: llama_meta_device_get_split_state"""
    rows = library.ffi.new("struct gpl_part[]", len(devices) or 1)
    n = library.lib.gpl_read_parts(ctx, graph, rows, len(devices))
    found = []
    for name, row in zip(devices[:n], rows[0:n], strict=True):
        largest = (
            ("weights", row.weight, int(row.largest_weight)),
            ("cache", row.other, int(row.largest_other)),
        )
        uncut = [
            UncutBuffer(name, name, kind, size, text(tensor.name), size)
            for kind, tensor, size in largest
            if size
        ]
        sizes = MemoryRow(name, name, int(row.weights), int(row.others), None)
        found.append(DevicePart(sizes, tuple(uncut)))
    return found


def _by_device(rows: tuple[MemoryRow, ...], parts: Sequence[DevicePart]) -> tuple[MemoryRow, ...]:
    """The rows with `parts` in the place of the row of the device that they are parts of. Each
    device has the whole compute buffer. C++: ggml_backend_meta_buffer_type_alloc_buffer"""
    whole = next((row for row in rows if parts and row.buft.startswith(_META)), None)
    if whole is None:
        return rows
    others = tuple(row for row in rows if row is not whole)
    return (*(part.row._replace(compute=whole.compute) for part in parts), *others)


def _by_part(uncut: Iterable[UncutBuffer], parts: Sequence[DevicePart]) -> Iterator[UncutBuffer]:
    """The buffers, with each part's own in place of the ones that are split."""
    for part in parts:
        yield from part.uncut
    for one in uncut:
        if not parts or not one.buft.startswith(_META):
            yield one
        elif one.kind == "compute":
            yield from (one._replace(buft=p.row.buft, device=p.row.device) for p in parts)


def _state(library: Library, ctx: Any) -> Any:
    state = library.ffi.new("struct gpl_context_state *")
    library.lib.gpl_read_state(ctx, state)
    return state

"""The memory of a libllama context: as it is allocated, and as libllama estimates it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends.buffer import BufferType
from ..boundary.ffi import NULL, text
from ..boundary.ffi import lib as ggml
from ..plan import MemoryRow, Plan
from .library import Library

# libllama reserves memory for one long sequence, too: [TAG_RESERVE_DIAG_DECAY]
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


def fit_print(library: Library, model: Any, ctx: Any) -> str:
    """What `llama-fit-params --fit-print on` prints of this model and context: a line of whole MiB
    per device, model, context and compute, then one for host memory. C++: common_fit_print"""
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


def allocated(
    rows: tuple[MemoryRow, ...],
    reserved: Callable[[int, int], Plan],
    arch: str,
    n_ubatch: int,
    n_seq_max: int,
) -> tuple[MemoryRow, ...]:
    """The estimate with what the compute buffers then are.

    libllama's estimate drops the pins that it has made (ggml_backend_sched_reserve_size resets the
    scheduler first), so it may be wrong either way. What is allocated is the largest layout of the
    graphs that it reserves memory for; `reserved` plans one, of so many tokens in so many
    sequences. C++: llama_context::sched_reserve
    """
    shapes = [(n_ubatch, n_seq_max), (n_seq_max, n_seq_max)]
    if arch in _RESERVE_ONE_SEQUENCE:
        shapes.append((n_ubatch, 1))
    sizes: dict[str, int] = {}
    for n_tokens, n_seqs in shapes:
        memory = reserved(n_tokens, n_seqs).memory
        if memory.unknown:
            return rows
        for buffer in memory.buffers:
            sizes[buffer.name] = max(sizes.get(buffer.name, 0), buffer.size)
    return tuple(row._replace(compute=sizes.get(row.buft, 0)) for row in rows)

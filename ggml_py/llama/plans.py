"""Plans of libllama's graphs, with its pins and why it made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..boundary.ffi import NULL, lib
from ..errors import ModelError
from ..scheduler.capture import read_plan
from .library import Library
from .norm_pins import why_norms

if TYPE_CHECKING:
    from ..plan import Plan

Look = Callable[[Any], None]  # is called with a native graph


def plan_of(
    library: Library, ctx: Any, full_offload: bool, n_tokens: int, n_past: int, n_seqs: int
) -> Plan:
    """The plan of the graph of n_tokens tokens in each of n_seqs sequences of n_past tokens."""
    graph = build(library, ctx, n_tokens, n_past, n_seqs)
    try:
        return _plan(library, ctx, graph, why_norms(full_offload, n_tokens * n_seqs))
    finally:
        library.lib.gpl_forget(ctx)


def build(library: Library, ctx: Any, n_tokens: int, n_past: int, n_seqs: int) -> Any:
    """That graph, which is the context's until `gpl_forget`. Raises `ModelError`."""
    shape = library.ffi.new("struct gpl_shape *")
    shape.n_tokens, shape.n_past, shape.n_seqs = n_tokens, n_past, n_seqs
    trace(library, ctx)
    graph = library.lib.gpl_build(ctx, shape)
    if graph == NULL:
        raise ModelError(
            f"n_past={n_past} and n_tokens={n_tokens} in each of {n_seqs} sequences: the cache has "
            "no room"
        )
    return graph


def reserved_plan_of(
    library: Library,
    ctx: Any,
    full_offload: bool,
    n_tokens: int,
    n_seqs: int,
    look: Look | None = None,
) -> Plan:
    """The plan that libllama itself made of a graph that it reserves memory for. `look` is called
    with the graph."""
    state = library.ffi.new("struct gpl_context_state *")
    library.lib.gpl_read_state(ctx, state)
    n_outputs = max(1, min(n_tokens, state.n_outputs_max))
    trace(library, ctx)
    try:
        graph = library.lib.gpl_build_reserved(ctx, n_tokens, n_seqs, n_outputs)
        if look is not None:
            look(graph)
        lib.gp_sched_unplan(library.lib.gpl_sched(ctx))
        return _plan(library, ctx, graph, why_norms(full_offload, n_tokens))
    finally:
        library.lib.gpl_forget(ctx)


def trace(library: Library, ctx: Any) -> None:
    """Makes the scheduler remember pins, and what planning changes of a graph."""
    lib.gp_sched_trace(library.lib.gpl_sched(ctx), True)


def _plan(library: Library, ctx: Any, graph: Any, why: str) -> Plan:
    sched = library.lib.gpl_sched(ctx)
    return read_plan(lib.gp_sched_plan, sched, graph, {}, why)

"""Tensors without data: nobody set or computed them, or their memory was used again.

native/blank.h marks them. This module says why one cannot be read. A tensor whose memory is used
again may still be read while its graph computes, and after a compute of other nodes of its graph.
So that is an error only if the graph that computed it last is known and confirms it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import enums
from ..boundary.ffi import NULL, lib, text
from ..boundary.uses import USES
from ..errors import NoDataError
from .convert import name_of

if TYPE_CHECKING:
    from ..backends.above import AnyGraph
    from .info import TensorInfo


def check_readable(tensor: TensorInfo, why: int) -> None:
    """Raises `NoDataError` for a tensor that `gp_blank_read` says cannot be read: `why`."""
    shown = lib.gp_blank_shown(tensor.ptr)
    if why == lib.GP_BLANK_NEW:
        if shown.op == enums.Op.NONE:
            raise NoDataError(never_set(shown, "set it before you read it"))
        raise NoDataError(
            f"{words(shown)} was not computed since it got its memory: compute its graph first"
        )
    if why == lib.GP_BLANK_FUSED:
        raise NoDataError(
            f"{words(shown)} has no values: the CPU computed it together with the next node, MUL, "
            "and wrote that one only. Call set_output() on it before the graph is allocated"
        )
    graph = _computed_by(tensor, shown)
    if graph is None or any(use.graph is graph for use in [*USES]):
        return
    if why == lib.GP_BLANK_STALE:
        raise NoDataError(
            f"{words(shown)} was computed from an input whose memory the compute before had used "
            "for another tensor: call set(array) on the inputs before each compute, or "
            "set_output() before the graph is allocated"
        )
    by = lib.gp_blank_overwriter(graph._runs(), shown)
    if by != NULL:
        raise NoDataError(
            f"{words(shown)} is gone: {words(by, 'copy')} was computed after it, in the same "
            "memory. Call set_output() on it before the graph is allocated"
        )


def never_set(leaf: Any, todo: str) -> str:
    """The message for a leaf that was never set."""
    return f"{words(leaf)} was never set since it got its memory: {todo}"


def words(ptr: Any, leaf: str = "input") -> str:
    """A native tensor in a message: "input 'x' (f32, ne [4, 2, 1, 1])"."""
    ne = list(ptr.ne)
    kind = leaf if ptr.op == enums.Op.NONE else f"node {text(lib.ggml_op_desc(ptr))}"
    return f"{kind} '{text(ptr.name)}' ({name_of(enums.Type(ptr.type))}, ne {ne})"


def _computed_by(tensor: TensorInfo, shown: Any) -> AnyGraph | None:
    """The open graph that computed a native tensor last; None if it is not known."""
    contexts: list[Any] = [tensor._context]
    graphs: dict[int, AnyGraph] = {}
    for context in contexts:
        if not hasattr(context, "_graphs"):  # only a Context has them
            continue
        graphs |= {id(graph): graph for graph in context._graphs()}
        contexts += [parent for parent in context._parents if parent not in contexts]
    found = [g for g in graphs.values() if g._turn >= 0 and lib.gp_graph_has(g.ptr, shown)]
    return max(found, key=lambda graph: graph._turn, default=None)

"""Plans under a build that is not instrumented: the reference makes them, and what upstream's own
scheduler tells about its plan is compared with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..boundary.ffi import BUILD, lib
from ..errors import MissingFunctionError
from ..graphs.graph import Graph
from ..plan import Plan
from ..tensors.tensor import Tensor
from ..trace import reference
from ..trace.record import NODE, Capture
from ..trace.reference import CannotPlanError
from .refusal import deciding

if TYPE_CHECKING:
    from .scheduler import Scheduler


def plan_by_reference(
    scheduler: Scheduler, graph: Graph, capture: Capture, tensors: Sequence[Tensor]
) -> Plan:
    """The reference's plan of `capture`, by the rules of this build's release. `graph` is the same
    graph, and `tensors` are its tensors by their ids.

    Upstream's scheduler plans it, too. It tells only each node's backend and how many splits there
    are, so that causes and copies are the reference's word. Spoils the graph's sources. Raises
    `MissingFunctionError` if a backend or the number of splits is another: then the release has
    rules that the reference does not know. C: ggml_backend_sched_split_graph
    """
    settings = capture.settings._replace(upstream=BUILD["ggml_version"], build=BUILD["key"])
    capture = replace(capture, settings=settings)
    try:
        made = reference.plan(capture)
    except CannotPlanError as error:
        raise MissingFunctionError(f"the reference scheduler cannot plan this: {error}") from None
    with deciding(scheduler, graph):
        lib.ggml_backend_sched_split_graph(scheduler.ptr, graph.ptr)
    elsewhere = []
    for t, tensor, placed in zip(capture.tensors, tensors, made.outcome.placements, strict=False):
        native = lib.ggml_backend_sched_get_tensor_backend(scheduler.ptr, tensor.ptr)
        if t.kind == NODE and native != scheduler.backends[placed.backend].ptr:
            there = next((b.name for b in scheduler.backends if b.ptr == native), "no backend")
            elsewhere.append(f"{t.name} on {there}, not {capture.backends[placed.backend].name}")
    differences = list(elsewhere[:1])
    if len(elsewhere) > 1:
        differences.append(f"{len(elsewhere) - 1} more nodes elsewhere")
    if (n := scheduler.n_splits) != made.n_splits:
        differences.append(f"{n} splits, not {made.n_splits}")
    if differences:
        raise MissingFunctionError(
            f"ggml {BUILD['label']} is built without causes, and its scheduler decides otherwise "
            f"than the reference: {'; '.join(differences)}. It has rules that are not known here"
        )
    return Plan(made.capture, made.outcome, "reference")

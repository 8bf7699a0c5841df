"""Assertions about plans, for tests and for programs that should stop on an unexpected plan.

Each raises AssertionError with the problem, its nodes, and the cause of the first node's backend.
They take a `Plan` from any source: `Scheduler.plan`, `Model.plan`, a file, a log (whose
explanations say less). To check all plans made in a block, use `ggml_py.strict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .boundary.arguments import describe, integer
from .plan import Plan
from .trace.answers.requirements import (
    elsewhere,
    fallen_back,
    otherwise,
    too_many_bytes,
    too_many_splits,
)
from .typed import names_of, typed

if TYPE_CHECKING:
    from .backends.backend import Backend
    from .backends.device import Device
    from .graphs.graph import Graph

__all__ = [
    "assert_max_copy_bytes",
    "assert_max_splits",
    "assert_no_fallback",
    "assert_pins",
    "assert_same_plan",
    "assert_supported",
]


@typed("plan", "backend")
def assert_no_fallback(
    plan: Plan,
    op: str | Sequence[str] = (),
    backend: str | None = None,
    allow: str | Sequence[str] = (),
) -> None:
    """Asserts that no node falls back from a device with its own memory to a backend in the CPU's
    memory.

    A node falls back if it reads a tensor that the device computed or holds, and only the device's
    missing support keeps it off. Nodes that the caller pinned do not count, nor nodes before the
    device (llama.cpp's token embedding, the layers that `n_gpu_layers` leaves on the CPU). With
    `op`, names such as "FLASH_ATTN_EXT", only those ops are checked, and each of their nodes must
    run on `backend` or on one before it, whatever it reads. `backend` is a name; by default it is
    any device with its own memory. `allow` has shell patterns of ops and names of nodes that may
    fall back.

    Raises AssertionError, KeyError for a backend that the plan does not have, ValueError if
    `backend` must be given.
    """
    __tracebackhide__ = True
    _plan(plan)
    _fail(fallen_back(plan, names_of("op", op), backend, names_of("allow", allow)))


def assert_max_splits(plan: Plan, max_splits: int) -> None:
    """Asserts that the graph has at most `max_splits` splits. Raises AssertionError."""
    __tracebackhide__ = True
    _plan(plan)
    _fail(too_many_splits(plan, integer("max_splits", max_splits)))


def assert_max_copy_bytes(plan: Plan, max_copy_bytes: int) -> None:
    """Asserts that at most `max_copy_bytes` bytes are copied between backends in one evaluation.

    Raises AssertionError."""
    __tracebackhide__ = True
    _plan(plan)
    _fail(too_many_bytes(plan, integer("max_copy_bytes", max_copy_bytes)))


def assert_pins(plan: Plan, backends: Mapping[str, str]) -> None:
    """Asserts that each tensor is on the backend that `backends` has for its name: {"Qcur-*":
    "gpu0"}.

    Names are shell patterns: of nodes, views and leafs. Raises AssertionError, KeyError for a name
    or a backend that the plan does not have.
    """
    __tracebackhide__ = True
    _plan(plan)
    if not isinstance(backends, Mapping):
        raise TypeError(
            f"backends: expected a mapping of names to backends, got {describe(backends)}"
        )
    if not backends:
        raise ValueError("backends={}: expected names with backends, such as {'Qcur-*': 'gpu0'}")
    _fail(elsewhere(plan, backends))


def assert_same_plan(a: Plan, b: Plan, backends: Mapping[str, str] | None = None) -> None:
    """Asserts that both plans make the same decisions (`Plan.diff`): nodes, causes, splits, copies.

    `backends` renames backends of `a`: {"gpu0": "CUDA0"}. Raises AssertionError with the diff and
    the reason why the first node that moved is where `b` has it.
    """
    __tracebackhide__ = True
    _plan(a)
    _plan(b)
    _fail(otherwise(a, b, backends))


def assert_supported(graph: Graph, device: Device | Backend) -> None:
    """Asserts that the device supports each node of a graph.

    Raises AssertionError with the nearest variant of the first unsupported node that the device
    supports. C: ggml_backend_dev_supports_op
    """
    __tracebackhide__ = True
    from .backends.backend import Backend
    from .backends.device import Device
    from .graphs.graph import Graph
    from .variants.nearest import nearest

    if not isinstance(graph, Graph):
        raise TypeError(f"expected a Graph, got {describe(graph)}")
    if not isinstance(device, Device | Backend):
        raise TypeError(f"expected a Device or a Backend, got {describe(device)}")
    wrong = [node for node in graph.nodes if not device.supports_op(node)]
    if wrong:
        ops: dict[str, list[str]] = {}
        for node in wrong:
            ops.setdefault(node.op.name, []).append(f"'{node.name}'")
        rows = [
            f"  {len(names)}× {op}: {', '.join(names[:3])}" + ", …" * (len(names) > 3)
            for op, names in ops.items()
        ]
        head = f"{device.name} does not support {len(wrong)} of {len(graph.nodes)} nodes:"
        _fail("\n".join([head, *rows, "", nearest(wrong[0], device).render()]))


def _plan(plan: object) -> None:
    if not isinstance(plan, Plan):
        raise TypeError(f"expected a Plan, got {describe(plan)}")


def _fail(problem: str) -> None:
    __tracebackhide__ = True
    if problem:
        raise AssertionError(problem)

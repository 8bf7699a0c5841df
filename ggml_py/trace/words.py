"""How answers about a plan name things."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import PlanTensor


def label(t: PlanTensor) -> str:
    """Its name; the number too where ggml made the name up: "node 3 (view)"."""
    if t.name and not t.name.startswith(" "):
        return t.name
    return (f"node {t.index}" if t.index is not None else f"tensor {t.id}") + t.name


def quoted(t: PlanTensor) -> str:
    """The label in quotation marks."""
    return f"'{label(t)}'"


def place(t: PlanTensor) -> str:
    """Its backend; "unknown" where a log or a snapshot does not tell."""
    return t.backend or ("no backend" if t.plan.capture.source == "scheduler" else "unknown")


def signature(t: PlanTensor) -> str:
    """ "MUL_MAT(q4_0 [64, 32], f32 [64, 8])"; a leaf is "f32 [64, 8]"."""
    if t.op == "NONE":
        return shape(t)
    return f"{t.record.op_desc}({', '.join(map(shape, t.srcs))})"


def shape(t: PlanTensor) -> str:
    """ "f32 [64, 8]": type and ne, without the ones at the end; "?" of what a debug log tells."""
    if not t.ne:
        return t.type
    ne = list(t.ne)
    while len(ne) > 1 and ne[-1] == 1:
        ne.pop()
    return f"{t.type} {ne}"


def memory(t: PlanTensor) -> str:
    """Where it lies, or will: "CPU memory"."""
    return f"{t.buft.name} memory" if t.buft else f"{t.backend}'s memory"


def listed(names: Iterable[str]) -> str:
    """ "gpu0, BLAS and CPU" """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

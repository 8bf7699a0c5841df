"""Upstream's own debug print (GGML_SCHED_DEBUG=2) of a plan, with the cause column filled.

C: ggml_backend_sched_print_assignments
"""

from __future__ import annotations

from ..trace.planned import Planned, PlanTensor
from ..trace.record import COPY, DUMPED_NAME


def render(plan: Planned, causes: bool = True) -> str:
    """The text. With `causes=False` the cause column is blank, as stock ggml prints it."""
    version = tuple(int(part) for part in plan.settings.upstream.split("."))
    printed = plan.capture.printed
    lines: list[str] = []
    for split in plan.splits:
        if split.index or printed is None or not printed.begins_inside:
            inputs = "".join(f"[{i.tensor.name} ({_size(i.nbytes)})] " for i in split.inputs)
            number = plan.capture.first_split + split.index
            head = f"## SPLIT #{number}: {split.backend} # {len(split.inputs)} inputs"
            lines += ["", f"{head}: {inputs}" if inputs else head]
        lines += [_node(node, causes, version) for node in split.nodes if not node.is_view_op]
    return "\n".join(lines[lines[:1] == [""] :]) + "\n"


def _node(node: PlanTensor, causes: bool, version: tuple[int, ...]) -> str:
    op = node.record.op_desc if version >= (0, 11, 0) else node.op
    compute = f",c={int('compute' in node.flags)}" if version >= (0, 9, 6) else ""
    number = node.plan.capture.first_node + node.id
    head = f"node #{number:3d} ({_field(op, 10)}): {_tensor(node, causes)}"
    srcs = "".join(
        f" {_tensor(node.plan.tensor(i), causes)}" for i in node.placement.planned_src if i >= 0
    )
    return f"{head} use={node.record.use_count}{compute}:{srcs}"


def _tensor(t: PlanTensor, causes: bool) -> str:
    # upstream looks copies up in its hash set, which does not have them: NULL
    backend = "NULL" if t.record.kind == COPY else t.backend or "NULL"
    cause = _field(t.placement.cause if causes else "", 8)
    printed = t.plan.capture.printed
    width = DUMPED_NAME if printed is None else printed.name_width
    return f"{_field(t.name, width)} ({_size(t.nbytes)}) [{_field(backend, 5)} {cause}]"


def _field(text: str, width: int) -> str:
    """C's %W.Ws: bytes, cut and right-aligned."""
    return text.encode()[:width].rjust(width).decode("utf-8", "replace")


def _size(nbytes: int) -> str:
    text = f"{nbytes >> 20}M" if nbytes >= 1 << 20 else f"{nbytes >> 10}K"
    return _field(text, 5)

"""What lets a thread leave a kernel (worker_leave.h)."""

from __future__ import annotations

from .edit import Edit

_CPU = (
    Edit(
        "barrier",
        "void ggml_barrier(struct ggml_threadpool * tp) {\n",
        "GP_BARRIER_CODE\n",
    ),
)

EDITS: dict[str, tuple[Edit, ...]] = {
    "ggml-cpu/ggml-cpu.c": _CPU,
}

"""Edits that refuse what computes in memory out of its backend's reach (native/reach.h)."""

from __future__ import annotations

from .edit import Edit

SCHEDULER = (
    Edit(
        "buffer made",
        "    ggml_backend_buffer_t buffer = new ggml_backend_buffer {\n",
        "    void gp_reach_made(ggml_backend_buffer_type_t);\n    gp_reach_made(buft);\n",
    ),
    Edit(
        "compute of a graph with memory out of reach",
        "static enum ggml_status ggml_backend_sched_compute_splits(ggml_backend_sched_t sched) {\n",
        "    gp::check_reach(sched);\n",
        after=True,
    ),
    # Memory of weights that are laid out for kernels (repack, AMX) has no way back: a call of NULL.
    Edit(
        "memory that is only written",
        "    buf->iface.get_tensor(buf, tensor, data, offset, size);\n",
        "    GGML_ASSERT(buf->iface.get_tensor != NULL && "
        '"this buffer type lays weights out anew: they cannot be read back");\n',
        optional=True,
    ),
)

CPU = (
    Edit(
        "graph for the CPU",
        "enum ggml_status ggml_graph_compute(struct ggml_cgraph * cgraph, "
        "struct ggml_cplan * cplan) {\n    ggml_cpu_init();\n",
        "    gp_reach_check_cpu(cgraph);\n",
        after=True,
    ),
)

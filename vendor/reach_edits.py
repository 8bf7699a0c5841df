"""Edits that refuse computing in memory that the backend cannot reach (native/reach.h)."""

from __future__ import annotations

from .edit import Edit

SCHEDULER = (
    Edit(
        "buffer made",
        "        /* .usage     = */ GGML_BACKEND_BUFFER_USAGE_ANY\n    };\n",
        "    void gp_buffer_made(ggml_backend_buffer_t);\n    gp_buffer_made(buffer);\n",
        after=True,
    ),
    Edit(
        "compute of a graph with memory out of reach",
        "static enum ggml_status ggml_backend_sched_compute_splits(ggml_backend_sched_t sched) {\n",
        "    gp::check_reach(sched);\n",
        after=True,
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

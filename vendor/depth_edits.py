"""Edits that replace upstream's recursion over a graph, which overflows the stack if it is deep."""

from __future__ import annotations

from .edit import Edit

FORWARD = (
    # Up to 0.9.4 it is `ggml_visit_parents`, and no tensor flag says what is to be computed.
    Edit(
        "recursion over sources",
        "static size_t ggml_visit_parents_graph(struct ggml_cgraph * cgraph, "
        "struct ggml_tensor * node, bool compute) {\n",
        "#define GP_VISIT_COMPUTE\n__attribute__((unused))\n",
        optional=True,
    ),
    Edit(
        "start of a graph from its end",
        "static void ggml_build_forward_impl(",
        '#include "visit_parents.h"\n\n',
    ),
)

"""Edits of the graph allocator, ggml-alloc.c.

`NOTES` only note what it does: why it lays a graph out again (``native/alloc_hooks.h``), and each
decision of a layout (``native/layout_hooks.h``). `CHECKS` refuse what upstream would compute
wrongly.
"""

from __future__ import annotations

from .edit import Edit

_FAILED = 'GGML_LOG_ERROR("%s: failed to allocate %s buffer of size %zu\\n", __func__, '


def _unfit(name: str, indent: int, message: str, note: str) -> Edit:
    """Adds a note before the log of a reason, which only a debug build logs."""
    log = f'#ifndef NDEBUG\n{" " * indent}GGML_LOG_DEBUG("%s: {message}\\n", __func__'
    return Edit(name, log, f"{' ' * indent}{note};\n")


_REASONS = (
    Edit(
        "buffers of the allocator",
        "static void ggml_vbuffer_free(struct vbuffer * buf) {\n",
        '#include "alloc_hooks.h"\n#include "layout_hooks.h"\n\n',
    ),
    _unfit(
        "other number of nodes",
        8,
        "graph has different number of nodes",
        "gp_alloc_note(GP_REALLOC_NODES, NULL, NULL, -1, graph->n_nodes, galloc->n_nodes)",
    ),
    _unfit(
        "other number of leafs",
        8,
        "graph has different number of leafs",
        "gp_alloc_note(GP_REALLOC_LEAFS, NULL, NULL, -1, graph->n_leafs, galloc->n_leafs)",
    ),
    _unfit(
        "node without room",
        12,
        "node %s is not valid",
        "GP_NOTE_UNFIT(GP_REALLOC_NODE, galloc, node, node, -1, &node_alloc->dst)",
    ),
    _unfit(
        "source without room",
        16,
        "src %d (%s) of node %s is not valid",
        "GP_NOTE_UNFIT(GP_REALLOC_SRC, galloc, src, node, j, &node_alloc->src[j])",
    ),
)


def _decision(name: str, anchor: str, note: str) -> Edit:
    """Notes a decision of the graph allocator after `anchor`."""
    return Edit(name, anchor, f"    GP_LAYOUT_NOTE({note});\n", after=True)


def _reuse(name: str, log: str, of: str) -> Edit:
    size = "ggml_backend_buft_get_alloc_size(galloc->bufts[p_hn->buffer_id], node)"
    place = f"p_hn->buffer_id, p_hn->addr, {size}"
    return _decision(name, f"AT_PRINTF({log});\n", f"GP_LAYOUT_REUSE, node, {of}, {place}")


# What the allocator decides, in its order (native/layout_hooks.h).
_DECISIONS = (
    Edit(
        "start of a layout",
        "    // clear hash tables\n    ggml_hash_set_reset(&galloc->hash_set);\n",
        "    gp_layout_begin(galloc);\n",
    ),
    Edit(
        "end of a layout",
        "    // set the node_allocs from the hash table\n",
        "    gp_layout_end(galloc, graph);\n",
    ),
    Edit(
        "node to be laid out",
        "        // allocate parents (only leafs need to be allocated at this point)\n",
        "        gp_layout_step(i);\n",
    ),
    _decision(
        "place of a tensor's own",
        "        hn->addr = ggml_dyn_tallocr_alloc(alloc, size, node);\n",
        "GP_LAYOUT_ALLOC, node, NULL, buffer_id, hn->addr, size",
    ),
    _reuse(
        "place of an operand",
        r'"reusing parent %s for %s\n", parent->name, node->name', "parent",
    ),
    _reuse(
        "place of an operand that is a view",
        r'"reusing view parent %s (%s) for %s\n", parent->name, view_src->name, node->name',
        "view_src",
    ),
    _decision(
        "rest of an operand's place",
        r'AT_PRINTF("freeing extra %zu bytes from parent %s for %s\n", '
        "extra_size, parent->name, node->name);\n",
        "GP_LAYOUT_TRIM, node, parent, p_hn->buffer_id, p_addr, extra_size",
    ),
    _decision(
        "place that is free",
        "\n    size_t size = ggml_backend_buft_get_alloc_size(buft, node);\n",
        "GP_LAYOUT_FREE, node, NULL, buffer_id, hn->addr, size",
    ),
    Edit(
        "function that lays out and allocates nothing",
        "static void ggml_gallocr_init_tensor(ggml_gallocr_t galloc, struct ggml_tensor * tensor, "
        "struct tensor_alloc * tensor_alloc) {\n",
        '#include "layout_measure.h"\n\n',
    ),
    Edit("watched allocator freed", "    free(galloc);\n", "    gp_layout_forget(galloc);\n"),
)  # fmt: skip

NOTES = _REASONS + _DECISIONS

CHECKS = (
    # Views of tensors outside the graph (`view_tensor`) put those tensors into the table too.
    Edit(
        "size of the allocator's table",
        "    size_t min_hash_size = graph->n_nodes + graph->n_leafs;\n",
        "    for (int gp_i = 0; gp_i < graph->n_nodes; gp_i++) {\n"
        "        min_hash_size += graph->nodes[gp_i]->view_src != NULL;\n    }\n"
        "    for (int gp_i = 0; gp_i < graph->n_leafs; gp_i++) {\n"
        "        min_hash_size += graph->leafs[gp_i]->view_src != NULL;\n    }\n",
        after=True,
    ),
    # Upstream compares only counts and sizes. A graph with as many nodes and leafs but other edges
    # would be computed in the last graph's layout, where results overwrite data still needed.
    Edit(
        "end of the allocator's struct",
        "    struct leaf_alloc * leaf_allocs; // [n_leafs]\n    int n_leafs;\n",
        "    uint64_t gp_edges;\n"
        "    struct node_alloc * gp_upstream; // what upstream would still have (own_layout.h)\n"
        "    bool gp_ours; // so it stays when the graph is laid out now\n",
        after=True,
    ),
    Edit(
        "graph laid out",
        "    galloc->n_leafs = graph->n_leafs;\n",
        "    galloc->gp_edges = gp_graph_edges(graph);\n"
        "    if (!galloc->gp_ours) {\n        free(galloc->gp_upstream);\n"
        "        galloc->gp_upstream = NULL;\n    }\n    galloc->gp_ours = false;\n",
    ),
    Edit("allocator freed", "    free(galloc);\n", "    free(galloc->gp_upstream);\n"),
    Edit(
        "graph that fits by its sizes",
        "bool ggml_gallocr_alloc_graph(ggml_gallocr_t galloc, struct ggml_cgraph * graph) {\n"
        "    if (ggml_gallocr_needs_realloc(galloc, graph)) {\n",
        '#include "own_layout.h"\n\n'
        "bool ggml_gallocr_alloc_graph(ggml_gallocr_t galloc, struct ggml_cgraph * graph) {\n"
        "    if (gp_needs_realloc(galloc, graph)) {\n",
        replace=True,
    ),
    Edit(
        "buffer that was not to be had",
        f"{_FAILED}ggml_backend_buft_name(galloc->bufts[i]), new_size);\n",
        # Without the second line the allocator would consider its layout valid the next time, and
        # write through the missing buffer.
        "gp_alloc_note_failure(ggml_backend_buft_name(galloc->bufts[i]), new_size);\n"
        "galloc->n_nodes = galloc->n_leafs = 0;\n" + 16 * " ",
    ),
)  # fmt: skip

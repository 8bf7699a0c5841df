// Included by the instrumented copy of ggml-alloc.c before ggml_gallocr_alloc_graph, where the private structs are
// visible. Upstream lays a graph out again if counts or sizes differ. We also do so if edges differ, because upstream
// would compute such a graph in the last graph's layout. These reallocations are marked as ours. The layout that
// upstream would still have is kept beside, and is checked too.
#pragma once

#include "view_place.h"

static bool gp_needs_realloc(ggml_gallocr_t galloc, struct ggml_cgraph * graph) {
    gp_point_views(graph->leafs, graph->n_leafs);
    gp_point_views(graph->nodes, graph->n_nodes);
    bool unfit = ggml_gallocr_needs_realloc(galloc, graph), upstream = unfit;
    if (galloc->gp_upstream != NULL && galloc->n_nodes == graph->n_nodes) {
        struct node_alloc * own = galloc->node_allocs;
        galloc->node_allocs = galloc->gp_upstream;
        gp_alloc_note_keep(true);
        upstream = ggml_gallocr_needs_realloc(galloc, graph);
        gp_alloc_note_keep(false);
        galloc->node_allocs = own;
    }
    if (!unfit && galloc->gp_edges != gp_graph_edges(graph)) {
        gp_alloc_note(GP_REALLOC_EDGES, NULL, NULL, -1, graph->n_nodes, 0);
        unfit = true;
    }
    if (unfit && !upstream) {
        gp_alloc_note_ours();
        const size_t size = galloc->n_nodes * sizeof(struct node_alloc);
        if (galloc->gp_upstream == NULL && (galloc->gp_upstream = (struct node_alloc *) malloc(size)) != NULL) {
            memcpy(galloc->gp_upstream, galloc->node_allocs, size);
        }
        galloc->gp_ours = true;
    } else if (upstream) { // now upstream would have the same layout as we do
        free(galloc->gp_upstream);
        galloc->gp_upstream = NULL;
    }
    return unfit;
}

bool gp_gallocr_unfit(ggml_gallocr_t galloc, struct ggml_cgraph * graph, struct gp_realloc_record * reason) {
    gp_alloc_note(GP_REALLOC_NONE, NULL, NULL, -1, 0, 0);
    bool unfit = ggml_gallocr_needs_realloc(galloc, graph);
    if (!unfit && galloc->gp_edges != gp_graph_edges(graph)) {
        gp_alloc_note(GP_REALLOC_EDGES, NULL, NULL, -1, graph->n_nodes, 0);
        gp_alloc_note_ours();
        unfit = true;
    }
    gp_alloc_note_read(reason);
    return unfit;
}

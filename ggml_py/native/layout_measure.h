// Included by the instrumented copy of ggml-alloc.c, where the private structs are visible.
#pragma once

// As ggml_gallocr_reserve_n_impl begins, which goes on to allocate. Some releases have no version of it that does not.
void gp_gallocr_lay_out(ggml_gallocr_t galloc, struct ggml_cgraph * graph, const int * node_ids, const int * leaf_ids) {
    size_t n = graph->n_nodes + graph->n_leafs; // and views of tensors outside the graph
    for (int i = 0; i < graph->n_nodes; i++) {
        n += graph->nodes[i]->view_src != NULL;
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        n += graph->leafs[i]->view_src != NULL;
    }
    n += n / 4 + 1;
    if (galloc->hash_set.size < n) {
        ggml_hash_set_free(&galloc->hash_set);
        free(galloc->hash_values);
        galloc->hash_set    = ggml_hash_set_new(n);
        galloc->hash_values = malloc(sizeof(struct hash_node) * galloc->hash_set.size);
        GGML_ASSERT(galloc->hash_set.keys != NULL && galloc->hash_values != NULL);
    }
    for (int i = 0; i < galloc->n_buffers; i++) {
        ggml_dyn_tallocr_reset(galloc->buf_tallocs[i]);
    }
    ggml_gallocr_alloc_graph_impl(galloc, graph, node_ids, leaf_ids);
    gp_layout_end(galloc, graph);
}

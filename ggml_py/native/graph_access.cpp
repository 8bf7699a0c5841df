#include "graph_access.h"

#include "ggml-impl.h" // struct ggml_cgraph

#include <algorithm>

int gp_graph_leafs(const ggml_cgraph * cgraph, ggml_tensor ** leafs) {
    if (leafs != nullptr) {
        std::copy(cgraph->leafs, cgraph->leafs + cgraph->n_leafs, leafs);
    }
    return cgraph->n_leafs;
}

ggml_tensor * gp_graph_leaf_without_data(const ggml_cgraph * cgraph) {
    ggml_tensor ** end   = cgraph->leafs + cgraph->n_leafs;
    ggml_tensor ** found = std::find_if(cgraph->leafs, end, [](const ggml_tensor * t) {
        return t->data == nullptr && ggml_nelements(t) > 0;
    });
    return found == end ? nullptr : *found;
}

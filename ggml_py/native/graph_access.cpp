#include "graph_access.h"

#include "ggml-impl.h" // struct ggml_cgraph

#include <algorithm>

int gp_graph_leafs(const ggml_cgraph * cgraph, ggml_tensor ** leafs) {
    if (leafs != nullptr) {
        std::copy(cgraph->leafs, cgraph->leafs + cgraph->n_leafs, leafs);
    }
    return cgraph->n_leafs;
}

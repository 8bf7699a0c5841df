// What a graph holds and ggml.h has no function for.
#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Number of leafs; copies them to `leafs` (room for all of them) when it is not NULL.
int gp_graph_leafs(const struct ggml_cgraph * cgraph, struct ggml_tensor ** leafs);
// The first leaf that has no memory, NULL when all have.
struct ggml_tensor * gp_graph_leaf_without_data(const struct ggml_cgraph * cgraph);

#ifdef __cplusplus
}
#endif

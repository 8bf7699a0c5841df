// Access to parts of a graph for which ggml.h has no function.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Number of leafs. Copies them to `leafs`, which must have room for all, unless it is NULL.
int gp_graph_leafs(const struct ggml_cgraph * cgraph, struct ggml_tensor ** leafs);
// The first leaf, node or source without memory; NULL if all have memory. Views are updated if their source has
// moved: upstream sets their `data` only once.
struct ggml_tensor * gp_graph_without_data(struct ggml_cgraph * cgraph);
// The buffers of the graph's tensors, each once. Fills at most n and returns their number.
int gp_graph_buffers(const struct ggml_cgraph * cgraph, ggml_backend_buffer_t * buffers, int n);
// A number that changes when a tensor of the graph is moved, added or removed.
uint64_t gp_graph_state(const struct ggml_cgraph * cgraph);
// The tensors of the graph and their sources that have no memory, each once. Works as gp_graph_buffers.
int gp_graph_unallocated(const struct ggml_cgraph * cgraph, struct ggml_tensor ** tensors, int n);
// Allocates the tensors of a context that have no memory, as ggml_backend_alloc_ctx_tensors_from_buft does. Views of
// tensors outside the context without memory are left out. After a failure there is no buffer, and no tensor is in one.
ggml_backend_buffer_t gp_alloc_tensors(struct ggml_context * ctx, ggml_backend_buffer_type_t buft);
// Points a view to the current memory of its source: upstream sets `data` only when the view is made or allocated.
void gp_view_place(struct ggml_tensor * view);
// The same for a tensor and its sources, before a backend is asked about it.
void gp_views_place(struct ggml_tensor * tensor);
// Takes the memory from n tensors, without freeing it.
void gp_take_memory(struct ggml_tensor ** tensors, int n);
// Whether the graph uses one of n tensors: as a node or leaf, or as the source or view source of one.
bool gp_graph_uses(const struct ggml_cgraph * cgraph, struct ggml_tensor ** tensors, int n);
// The same for the nodes of another graph.
bool gp_graph_shares(const struct ggml_cgraph * cgraph, const struct ggml_cgraph * other);
// Whether the tensor is a node or leaf of the graph.
bool gp_graph_has(const struct ggml_cgraph * cgraph, const struct ggml_tensor * tensor);
// Makes an empty graph one of these nodes and leafs, in this order, whatever their sources are. `use_counts` has a number
// for each node, then for each leaf. The graph must have room for them.
void gp_graph_fill(struct ggml_cgraph * cgraph, struct ggml_tensor ** nodes, int n_nodes, struct ggml_tensor ** leafs,
                   int n_leafs, const int32_t * use_counts);
// Whether a view of `a` in n dimensions is inside its memory, both by its strides and by its number of elements, which
// is what upstream checks. Also false if the check would overflow: graphs/views.py has the last word.
bool gp_view_fits(const struct ggml_tensor * a, int n, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, size_t nb1,
                  size_t nb2, size_t nb3, size_t offset);

#ifdef __cplusplus
}
#endif

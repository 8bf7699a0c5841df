// What a graph holds and ggml.h has no function for.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Number of leafs; copies them to `leafs` (room for all of them) when it is not NULL.
int gp_graph_leafs(const struct ggml_cgraph * cgraph, struct ggml_tensor ** leafs);
// The first leaf, node or source that has no memory, NULL when all have. Views that were made while their
// source lived elsewhere are pointed to where it lives now: upstream sets their `data` only once.
struct ggml_tensor * gp_graph_without_data(struct ggml_cgraph * cgraph);
// The buffers that its tensors live in, each once; fills at most n and returns how many there are.
int gp_graph_buffers(const struct ggml_cgraph * cgraph, ggml_backend_buffer_t * buffers, int n);
// A number that is another one as soon as a tensor of the graph moved, came or went.
uint64_t gp_graph_state(const struct ggml_cgraph * cgraph);
// The tensors of the graph and their sources that have no memory, each once; as gp_graph_buffers.
int gp_graph_unallocated(const struct ggml_cgraph * cgraph, struct ggml_tensor ** tensors, int n);
// Gives the tensors of a context that have no memory a place, as ggml_backend_alloc_ctx_tensors_from_buft. Views of
// what has no memory itself are left out. A failure leaves no buffer, and no tensor in one.
ggml_backend_buffer_t gp_alloc_tensors(struct ggml_context * ctx, ggml_backend_buffer_type_t buft);
// Points a view to where its source lives now: upstream sets `data` when the view is made or allocated.
void gp_view_place(struct ggml_tensor * view);
// The same for a tensor and its sources, before a backend is asked about it.
void gp_views_place(struct ggml_tensor * tensor);
// Takes the memory from n tensors; it is not freed.
void gp_take_memory(struct ggml_tensor ** tensors, int n);
// Whether one of n tensors is in it: a node, a leaf, what one of them reads or is a view of.
bool gp_graph_uses(const struct ggml_cgraph * cgraph, struct ggml_tensor ** tensors, int n);
// The same for the nodes of another graph.
bool gp_graph_shares(const struct ggml_cgraph * cgraph, const struct ggml_cgraph * other);
// Whether the tensor is one of its nodes or leafs.
bool gp_graph_has(const struct ggml_cgraph * cgraph, const struct ggml_tensor * tensor);
// Whether a view of `a` in n dimensions is all in its memory, and by its number of elements, too, which is
// what upstream looks at. False as well where that takes larger numbers: graphs/views.py has the last word.
bool gp_view_fits(const struct ggml_tensor * a, int n, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, size_t nb1,
                  size_t nb2, size_t nb3, size_t offset);

#ifdef __cplusplus
}
#endif

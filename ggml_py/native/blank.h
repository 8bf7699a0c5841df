// Blank tensors: they have memory, but nobody has set them since, and no graph has computed them.
//
// 1. The marks are in the padding of the tensor's own struct, which upstream sets to zero and never reads. So they need
//    no table, they go with the tensor, and a compute finds them where it looks anyway.
// 2. Whoever gives memory marks the tensors (gp_blank_graph, gp_blank_add). Guards of calls that write to a tensor take
//    the mark away (bindgen.py), and so does a compute of a graph from its nodes.
// 3. What cannot be known counts as set: an array over the memory is out, a custom op may or may not read its sources,
//    the memory was given natively. Writes to host memory through a pointer are seen. The mark has a hash of the
//    tensor's first and last bytes; new memory gets values there that nobody writes.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gp_blank_bit {
    GP_BLANK_NEW      = 1,  // it got memory, and nothing since
    GP_BLANK_LOST     = 2,  // a leaf: the last compute used its memory for another tensor
    GP_BLANK_REUSED   = 4,  // its graph uses its memory for another tensor, after it
    GP_BLANK_COMPUTED = 8,  // a graph has computed it
    GP_BLANK_SHARED   = 16, // an array over its memory is out, and whoever has that may write to it
    GP_BLANK_STALE    = 32, // it was computed from a lost leaf: whoever measures times may do that, but not read it
    GP_BLANK_FUSED    = 64, // not in the mark: GP_FUSED
};

// Whether the last compute on the CPU computed a node together with the next, and so never wrote it.
#define GP_FUSED_AT 1
#define GP_FUSED(node) ((node)->padding[GP_FUSED_AT])

// Marks the tensors of a graph that have no memory. Call it before they get some.
void gp_blank_graph(const struct ggml_cgraph * graph);
// Call it when they have got it.
void gp_blank_given(const struct ggml_cgraph * graph);
// Marks a tensor that has just got memory in which nothing is.
void gp_blank_add(struct ggml_tensor * tensor);
// The same if somebody may have filled the memory through a pointer: marks it if there are zeros.
void gp_blank_placed(struct ggml_tensor * tensor);
// Somebody gives it data.
void gp_blank_written(struct ggml_tensor * tensor);
// Somebody gets an array over its memory.
void gp_blank_share(struct ggml_tensor * tensor);
// All tensors in the buffer hold this now.
void gp_blank_cleared(ggml_backend_buffer_t buffer);
// Call it before a compute. Returns a leaf that the graph would read and that was never set. NULL if there is none. Then
// the nodes count as computed, and as stale if they follow from a lost leaf. `graph` is what is computed: for a scheduler
// its own copy of the graph (gp_sched_runs).
struct ggml_tensor * gp_blank_compute(const struct ggml_cgraph * graph);
// The graph is computed: its nodes have data.
void gp_blank_computed(const struct ggml_cgraph * graph);
// The plan prepares this graph; NULL: it is freed.
void gp_blank_plan(ggml_backend_graph_plan_t plan, const struct ggml_cgraph * graph);
// The plan's graph is computed.
void gp_blank_plan_computed(ggml_backend_graph_plan_t plan);
// Finds and marks the tensors whose memory later nodes use again, when `graph` is computed for `own`, the user's graph.
// Copies the leafs among them to `leafs`, at most n, and returns their number.
int gp_blank_find_reused(const struct ggml_cgraph * graph, const struct ggml_cgraph * own, struct ggml_tensor ** leafs, int n);
// A compute uses the memory of these leafs for others.
void gp_blank_lose(struct ggml_tensor ** leafs, int n);
// Why a tensor cannot be read, as one of the bits NEW, LOST, FUSED, REUSED and STALE; 0 if it can.
int gp_blank_read(const struct ggml_tensor * tensor);
// The leaf or node whose data a tensor shows: itself, unless it is a view, a reshape, ...
const struct ggml_tensor * gp_blank_shown(const struct ggml_tensor * tensor);
// The first node of the graph that is computed after this leaf or node and has some of its memory. NULL if there is none,
// or if the tensor is not in the graph.
struct ggml_tensor * gp_blank_overwriter(const struct ggml_cgraph * graph, const struct ggml_tensor * tensor);

#ifdef __cplusplus
}
#endif

// What the graph allocator decides when it lays a graph out: each allocation, reuse and free, in the order it makes them.
// The instrumented copy of ggml-alloc.c calls this (vendor/instrument.py). An allocator that nobody watches costs one
// test of a flag per layout and of a pointer per decision.
#pragma once

#include "sched_trace.h"

#ifdef __cplusplus
extern "C" {
#endif

// ggml_gallocr_free: the allocator is no longer watched.
void gp_layout_forget(ggml_gallocr_t galloc);
// How many layouts the allocator has made since it is watched.
uint64_t gp_layout_count(ggml_gallocr_t galloc);
// Called at the start and the end of a layout of `graph`, and for each decision between.
void gp_layout_begin(ggml_gallocr_t galloc);
void gp_layout_end(ggml_gallocr_t galloc, const struct ggml_cgraph * graph);
void gp_layout_note(enum gp_layout_kind kind, const struct ggml_tensor * t, const struct ggml_tensor * of, int buffer, int chunk,
    size_t offset, size_t size);
// The current node, by its index; the leafs and inputs, which come before all nodes, have -1.
void gp_layout_step(int node);
// Lays `graph` out as ggml_gallocr_reserve_n would, and allocates nothing. Defined in the copy of ggml-alloc.c.
void gp_gallocr_lay_out(ggml_gallocr_t galloc, struct ggml_cgraph * graph, const int * node_ids, const int * leaf_ids);

#ifdef __cplusplus
}
#endif

// For the copy of ggml-alloc.c, where struct buffer_address is visible.
#define GP_LAYOUT_NOTE(kind, t, of, buffer, addr, size) gp_layout_note(kind, t, of, buffer, (addr).chunk, (addr).offset, size)

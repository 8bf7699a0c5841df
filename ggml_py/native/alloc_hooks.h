// What the instrumented copies of ggml-alloc.c and ggml-backend.cpp tell each other: why the graph allocator
// found its last layout unfit, and what it could not get (vendor/instrument.py puts the calls into the copy of
// ggml-alloc.c). Both are kept per thread until the next time.
#pragma once

#include "sched_trace.h"

#ifdef __cplusplus
extern "C" {
extern thread_local struct gp_realloc_record gp_alloc_note_realloc;
#endif

void gp_alloc_note(int32_t kind, const struct ggml_tensor * tensor, const struct ggml_tensor * node, int32_t src, uint64_t need, uint64_t have);
// The note stays as it is from true to false.
void gp_alloc_note_keep(bool keep);
// Upstream would not lay the graph out anew for what was noted last.
void gp_alloc_note_ours(void);
void gp_alloc_note_failure(const char * buft, size_t size);
// A hash of what the layout of a graph depends on besides sizes: which results are read by whom, what is a view of
// what, what has memory of its own, what is kept to the end.
uint64_t gp_graph_edges(const struct ggml_cgraph * graph);
// Between the two calls buffers that this thread makes are noted; the second one frees those that are still there.
__attribute__((visibility("default"))) void gp_buffers_watch(void);
__attribute__((visibility("default"))) void gp_buffers_free(bool all);
// It is freed: no longer among those that are watched.
void gp_buffer_unwatch(ggml_backend_buffer_t buffer);
// Asked by ggml_backend_buffer_free: true for a pinned buffer, which the last pin then frees.
bool gp_buffer_keep(ggml_backend_buffer_t buffer);

#ifdef __cplusplus
}
#endif

// For the copy of ggml-alloc.c, where struct tensor_alloc is visible: `t` does not fit the room `room`.
#define GP_NOTE_UNFIT(kind, galloc, t, node, src, room) \
    gp_alloc_note(kind, t, node, src, \
        (room)->buffer_id < 0 ? ggml_nbytes(t) : ggml_backend_buft_get_alloc_size((galloc)->bufts[(room)->buffer_id], t), \
        (room)->size_max)

// Passes information from the instrumented copy of ggml-alloc.c to that of ggml-backend.cpp: why the graph
// allocator found its last layout unfit, and which memory it could not get (vendor/instrument.py adds the calls to
// the copy of ggml-alloc.c). Both are kept per thread until the next time.
#pragma once

#include "sched_trace.h"

#ifdef __cplusplus
extern "C" {
extern thread_local struct gp_realloc_record gp_alloc_note_realloc;
#endif

void gp_alloc_note(int32_t kind, const struct ggml_tensor * tensor, const struct ggml_tensor * node, int32_t src, uint64_t need, uint64_t have);
// From keep=true to keep=false the note does not change.
void gp_alloc_note_keep(bool keep);
// Marks the last note as ours: upstream would not lay the graph out again for that reason.
void gp_alloc_note_ours(void);
void gp_alloc_note_read(struct gp_realloc_record * note);
void gp_alloc_note_failure(const char * buft, size_t size);
// A hash of a graph's edges: the results that each node reads, the views and their sources, the tensors with memory of
// their own, and the tensors that are kept to the end. A layout depends on these and on sizes.
uint64_t gp_graph_edges(const struct ggml_cgraph * graph);
// Between these two calls, the buffers that this thread makes are noted. With `all`, the second call frees those
// that still exist.
__attribute__((visibility("default"))) void gp_buffers_watch(void);
__attribute__((visibility("default"))) void gp_buffers_free(bool all);
// The buffer is being freed: stop watching it.
void gp_buffer_unwatch(ggml_backend_buffer_t buffer);
// Called by ggml_backend_buffer_free. True for a pinned buffer, which the last pin will free.
bool gp_buffer_keep(ggml_backend_buffer_t buffer);

#ifdef __cplusplus
}
#endif

// For the copy of ggml-alloc.c, where struct tensor_alloc is visible: notes that `t` does not fit into `room`.
#define GP_NOTE_UNFIT(kind, galloc, t, node, src, room) \
    gp_alloc_note(kind, t, node, src, \
        (room)->buffer_id < 0 ? ggml_nbytes(t) : ggml_backend_buft_get_alloc_size((galloc)->bufts[(room)->buffer_id], t), \
        (room)->size_max)

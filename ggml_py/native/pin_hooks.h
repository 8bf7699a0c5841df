// What the instrumented copies of ggml.c and ggml-backend.cpp ask pins.cpp.
#pragma once

#include "ggml-backend.h"

#include <stdbool.h>
#include <stddef.h>

struct ggml_context;

#ifdef __cplusplus
extern "C" {
#endif

// Written by calls that keep the GIL. Upstream's own functions make tensors without it (ggml_opt_init, gguf.cpp), in
// contexts that are theirs: they need no other value than one that was there.
extern int gp_n_held_contexts;
bool gp_context_is_held(const struct ggml_context * ctx);
// Around what gives tensors other memory or takes it.
void gp_lock_tensors(void);
void gp_unlock_tensors(void);
// The memory of a tensor that has other memory, or none, for a moment.
struct gp_memory {
    struct ggml_tensor *  t;
    void *                data;
    ggml_backend_buffer_t buffer;
};
// Between `gp_lock_tensors` and `gp_unlock_tensors`: from `begin` on to the end whoever pins one of these n tensors, or
// a view of one, finds the memory that is told here.
void gp_set_aside(const struct gp_memory * all, size_t n, bool begin);

#ifdef __cplusplus
}
#endif

// At the start of ggml_new_object. The text is what boundary/raising.py makes a BusyError of.
#define GP_CHECK_CONTEXT(ctx) \
    if (__builtin_expect(__atomic_load_n(&gp_n_held_contexts, __ATOMIC_RELAXED) != 0, 0) && gp_context_is_held(ctx)) { \
        GGML_ABORT("busy: this Context is allocating on another thread: wait until that returns, or make one for each thread"); \
    }

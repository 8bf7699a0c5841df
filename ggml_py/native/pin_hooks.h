// The functions of pins.cpp that the instrumented copies of ggml.c and ggml-backend.cpp call.
#pragma once

#include "ggml-backend.h"

#include <stdbool.h>
#include <stddef.h>

struct ggml_context;

#ifdef __cplusplus
extern "C" {
#endif

// Written by calls that keep the GIL. Upstream's own functions make tensors without the GIL (ggml_opt_init, gguf.cpp),
// but in contexts of their own, so a stale value does no harm.
extern int gp_n_held_contexts;
bool gp_context_is_held(const struct ggml_context * ctx);
// Put around code that changes or takes the memory of tensors.
void gp_lock_tensors(void);
void gp_unlock_tensors(void);
// The real memory of a tensor that temporarily has other memory, or none.
struct gp_memory {
    struct ggml_tensor *  t;
    void *                data;
    ggml_backend_buffer_t buffer;
};
// Call it between `gp_lock_tensors` and `gp_unlock_tensors`. From the call with `begin` to the call without it, a pin
// of one of these n tensors, or of a view of one, uses the memory given here.
void gp_set_aside(const struct gp_memory * all, size_t n, bool begin);

#ifdef __cplusplus
}
#endif

// Used at the start of ggml_new_object. boundary/raising.py recognizes the text and raises BusyError.
#define GP_CHECK_CONTEXT(ctx) \
    if (__builtin_expect(__atomic_load_n(&gp_n_held_contexts, __ATOMIC_RELAXED) != 0, 0) && gp_context_is_held(ctx)) { \
        GGML_ABORT("busy: this Context is allocating on another thread: wait until that returns, or make one for each thread"); \
    }

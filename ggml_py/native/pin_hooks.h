// What the instrumented copies of ggml.c and ggml-backend.cpp ask pins.cpp.
#pragma once

#include <stdbool.h>

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

#ifdef __cplusplus
}
#endif

// At the start of ggml_new_object. The text is what errors.py makes a BusyError of.
#define GP_CHECK_CONTEXT(ctx) \
    if (__builtin_expect(__atomic_load_n(&gp_n_held_contexts, __ATOMIC_RELAXED) != 0, 0) && gp_context_is_held(ctx)) { \
        GGML_ABORT("busy: this Context is allocating on another thread: wait until that returns, or make one for each thread"); \
    }

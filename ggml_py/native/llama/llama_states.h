// Recurrent states of a context that only plans. Upstream allocates them even then, unlike weights and KV caches, which
// would take a device's memory for the plan, and count twice in what is free.
#pragma once

#include "ggml-alloc.h"
#include "ggml-backend.h"

// The tensors' buffer; with `no_alloc` one of no size, which says only where they would be.
static inline ggml_backend_buffer_t gpl_alloc_states(ggml_context * ctx, ggml_backend_buffer_type_t buft, bool no_alloc) {
    if (!no_alloc) {
        return ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft);
    }
    ggml_backend_buffer_t buf = ggml_backend_buft_alloc_buffer(buft, 0);
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); t != nullptr; t = ggml_get_next_tensor(ctx, t)) {
        t->buffer = buf;
    }
    return buf;
}

// Bytes that it has, or would have.
static inline size_t gpl_states_size(ggml_context * ctx, ggml_backend_buffer_t buf) {
    const bool planned = ggml_backend_buffer_get_size(buf) == 0 && ggml_backend_buffer_get_base(buf) == nullptr;
    return planned ? ggml_backend_alloc_ctx_tensors_from_buft_size(ctx, ggml_backend_buffer_get_type(buf))
                   : ggml_backend_buffer_get_size(buf);
}

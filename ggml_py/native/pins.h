// Keeps memory alive while a call without the GIL uses it, whoever frees it in the meantime.
//
// 1. A pinned buffer that is freed lives until its last pin goes (ggml_backend_buffer_free asks `gp_buffer_keep`).
// 2. A call that copies data from or to a tensor works on a copy of the struct. Copying the struct and pinning the
//    tensor's buffer is one atomic step; taking memory from tensors (`gp_take_tensors`, a scheduler's reset) is another.
//    So the call sees the tensor either with its memory, which stays until the call is done, or without memory, never
//    half of it.
// 3. A context that is walked over without the GIL is held: making a tensor in it aborts with the reason. Holding,
//    letting go and making tensors keep the GIL, so they do not interleave.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Each pin needs one unpin.
GGML_BACKEND_API void gp_buffer_pin(ggml_backend_buffer_t buffer);
GGML_BACKEND_API void gp_buffer_unpin(ggml_backend_buffer_t buffer);
// Pins the buffer that `tensor` is in, and returns it; NULL if it has none. `data` is set to the tensor's address.
GGML_BACKEND_API ggml_backend_buffer_t gp_tensor_pin(const struct ggml_tensor * tensor, void ** data);
GGML_BACKEND_API bool gp_buffer_is_pinned(ggml_backend_buffer_t buffer);
// Takes the memory from n tensors, without freeing it.
GGML_BACKEND_API void gp_take_tensors(struct ggml_tensor ** tensors, int n);

// Until it is let go, no tensors can be made in `ctx`. Returns how many times it was held already.
GGML_BACKEND_API int gp_context_hold(struct ggml_context * ctx);
GGML_BACKEND_API void gp_context_let_go(struct ggml_context * ctx);

// A running call's pin, on its stack. gp_call_begin also copies the tensor and its view source.
struct gp_call_pin {
    ggml_backend_buffer_t buffer;
    struct gp_call_pin *  previous;
    struct gp_call_pin *  next;
};
GGML_BACKEND_API void gp_call_begin(struct gp_call_pin * pin, const struct ggml_tensor * tensor, struct ggml_tensor * copy,
    struct ggml_tensor * source);
GGML_BACKEND_API void gp_call_end(struct gp_call_pin * pin);

#ifdef __cplusplus
}

#pragma weak gp_call_begin
#pragma weak gp_call_end

namespace gp {

class pinned_tensor {
public:
    explicit pinned_tensor(const ggml_tensor * tensor) : original(tensor) {
        if (gp_call_begin != nullptr) { // not in a pristine build
            gp_call_begin(&pin, tensor, &copy, &source);
        }
    }
    ~pinned_tensor() {
        if (gp_call_begin != nullptr) {
            gp_call_end(&pin);
        }
    }
    pinned_tensor(const pinned_tensor &) = delete;
    pinned_tensor & operator=(const pinned_tensor &) = delete;

    operator ggml_tensor *() { return gp_call_begin != nullptr ? &copy : const_cast<ggml_tensor *>(original); }

private:
    const ggml_tensor * original;
    gp_call_pin         pin = {};
    ggml_tensor         copy;
    ggml_tensor         source;
};

} // namespace gp
#endif

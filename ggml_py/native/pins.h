// What stays while a call without the GIL is in the middle of using it, whoever frees it meanwhile.
//
// 1. A pinned buffer that is freed lives until its last pin goes (ggml_backend_buffer_free asks `gp_buffer_keep`).
// 2. Whoever copies data from or to a tensor does so on a copy of the struct, which is made and pins the tensor's
//    buffer in one step. Taking memory from tensors (`gp_take_tensors`, a scheduler's reset) is another step. So a
//    copy sees the tensor with its memory, which stays until it is done, or without; never half of it.
// 3. A context that is walked without the GIL is held: new tensors in it are an abort, which names the reason.
//    Holding, letting go and making tensors are calls that keep the GIL, so none is in the middle of another.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Each pin takes one unpin.
GGML_BACKEND_API void gp_buffer_pin(ggml_backend_buffer_t buffer);
GGML_BACKEND_API void gp_buffer_unpin(ggml_backend_buffer_t buffer);
// Pins the buffer that `tensor` lives in now, and returns it; NULL while it has none. `data` is where it is in there.
GGML_BACKEND_API ggml_backend_buffer_t gp_tensor_pin(const struct ggml_tensor * tensor, void ** data);
GGML_BACKEND_API bool gp_buffer_is_pinned(ggml_backend_buffer_t buffer);
// Makes n tensors ones without memory.
GGML_BACKEND_API void gp_take_tensors(struct ggml_tensor ** tensors, int n);

// Until it is let go, `ctx` gets no new tensors. How often it was held before is returned.
GGML_BACKEND_API int gp_context_hold(struct ggml_context * ctx);
GGML_BACKEND_API void gp_context_let_go(struct ggml_context * ctx);

// A pin of a call that is going on, on its stack. Begins with a copy of the tensor and of what it is a view of.
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

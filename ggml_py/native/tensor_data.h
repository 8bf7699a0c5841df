// Sets the data of many tensors with several threads.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gp_piece {
    struct ggml_tensor * tensor;
    const void *         data;
    size_t               offset; // in the tensor's data
    size_t               nbytes;
    bool                 mapped; // `data` is in a mapped file
};

// Calls ggml_backend_tensor_set for each of n pieces. Pages of mapped files that belong to one piece only are then
// given back to the system, which keeps them in its cache for later reads. The work is done by n_threads threads,
// including the calling one. The first failure on any of them (an assertion) is thrown here, once all have ended.
void gp_set_pieces(const struct gp_piece * pieces, size_t n, int n_threads);

#ifdef __cplusplus
}
#endif

// Data of many tensors at once, by several threads.
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

// ggml_backend_tensor_set for each of n pieces. Pages of mapped files that are all of one piece go back to the
// system then, which has them in its cache for whoever reads them again. Threads besides the calling one, n_threads in
// all, are there until it returns; what fails first on one of them (an assertion) is thrown here, when all have ended.
void gp_set_pieces(const struct gp_piece * pieces, size_t n, int n_threads);

#ifdef __cplusplus
}
#endif

// What devices would answer if something about them were otherwise: for what-ifs about models, which are loaded again
// under the changed device. Any device can be asked, also the CPU and GPUs that are there.
//
// 1. An assumption belongs to the thread that makes it. Other threads, which may plan or load meanwhile, get the
//    device's own answers.
// 2. The first assumption about a device puts our functions into its interface, for good; without an assumption of
//    the calling thread they only pass on the question.
#pragma once

#include "ggml-backend.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// User data of the Python functions that answer for a device; NULL: it answers itself.
struct gp_assumption {
    ggml_backend_dev_t device;
    void             * supports; // supports_op
    void             * offload;  // offload_op
};

// What this thread assumes from now on, in place of what it assumed before. The array must stay.
void gp_assume(const struct gp_assumption * assumptions, int32_t n);

#ifdef __cplusplus
}
#endif

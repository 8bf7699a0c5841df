// Assumptions about devices, for what-ifs: the model is loaded again, and the device answers as assumed. Any device can
// be asked, also the CPU and real GPUs.
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

// Replaces the assumptions of this thread. The array must stay.
void gp_assume(const struct gp_assumption * assumptions, int32_t n);

#ifdef __cplusplus
}
#endif

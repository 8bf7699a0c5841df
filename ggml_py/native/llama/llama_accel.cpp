// Compiled into libllama.

#include "llama_accel.h"

#include "llama_plan.h"

#include <algorithm>
#include <vector>

namespace {

// Of the thread, which makes a model and its context with them: another thread may open another model meanwhile.
thread_local bool chosen = false;
thread_local std::vector<ggml_backend_dev_t> used;

} // namespace

bool gpl_accelerator_is_used(ggml_backend_dev_t device) {
    return !chosen || std::find(used.begin(), used.end(), device) != used.end();
}

void gpl_use_accelerators(const ggml_backend_dev_t * devices, int32_t n) {
    chosen = n >= 0;
    used.assign(devices, devices + std::max(n, 0));
}

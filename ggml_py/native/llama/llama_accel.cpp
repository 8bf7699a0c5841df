// Compiled into libllama.

#include "llama_accel.h"

#include "llama_plan.h"

#include <algorithm>
#include <vector>

namespace {

// One list for each thread, because several threads may open models at once.
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

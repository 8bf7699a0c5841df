#include "reach.h"

#include <atomic>

namespace {

std::atomic<bool> foreign{false};

bool cpu_reaches(ggml_backend_buffer_type_t buft) {
    ggml_backend_dev_t dev = ggml_backend_buft_get_device(buft);
    return ggml_backend_buft_is_host(buft) || (dev != nullptr && ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU);
}

} // namespace

// Called for each new buffer (alloc_trace.cpp).
void gp_reach_made(ggml_backend_buffer_type_t buft) {
    if (!foreign.load(std::memory_order_relaxed) && buft != nullptr && !cpu_reaches(buft)) {
        foreign = true;
    }
}

extern "C" {

bool gp_reach_foreign(void) {
    return foreign.load(std::memory_order_relaxed);
}

void gp_reach_check_cpu(const ggml_cgraph * graph) {
    if (!gp_reach_foreign()) {
        return;
    }
    ggml_backend_buffer_type_t known = nullptr; // usually all buffers have the same type
    const auto reaches = [&known](ggml_backend_buffer_type_t buft) {
        if (buft != known && cpu_reaches(buft)) {
            known = buft;
        }
        return buft == known;
    };
    for (int i = 0; i < graph->n_nodes; i++) {
        if (const ggml_tensor * t = gp::unreached(graph->nodes[i], reaches)) {
            GGML_ABORT("%s", gp::unreached_text(graph->nodes[i], t, "CPU").c_str());
        }
    }
}

} // extern "C"

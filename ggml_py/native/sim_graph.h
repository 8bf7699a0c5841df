// A copy of a graph that was given to a simulated device, to be computed later.
#pragma once

#include "ggml-backend.h"

#include <deque>
#include <memory>

namespace gp {

// Copies the tensors' metadata: callers may change and free their tensors as soon as graph_compute has returned, as
// GPUs allow and the scheduler does. The data is not copied; it stays in place until the device is done. The buffers'
// own structs may be freed earlier, so `buffer` replaces them.
class sim_graph {
public:
    sim_graph(const ggml_cgraph * graph, ggml_backend_buffer_t buffer);
    sim_graph(const sim_graph &) = delete;
    ~sim_graph();

    ggml_cgraph * graph = nullptr;

private:
    std::deque<ggml_tensor> tensors;
    ggml_context          * context = nullptr;
};

} // namespace gp

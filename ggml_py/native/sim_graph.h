// A graph as it was when it was given to a simulated device, to be computed later.
#pragma once

#include "ggml-backend.h"

#include <deque>
#include <memory>

namespace gp {

// Copies the tensors' metadata: callers change and free theirs as soon as graph_compute returned, as GPUs
// allow, and the scheduler does. The data is not copied; it stays where it is until the device is done.
// Buffers' own structs may go before, so `buffer` takes their place.
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

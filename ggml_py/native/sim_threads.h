// The threads of a simulated device's CPU backend. Upstream makes new ones for each graph where it is given none, and
// what is made while others still run may start on their core: threads that wait for each other there take turns of
// milliseconds.
#pragma once

#include "sim_backend.h"

namespace gp {

// The CPU backend's function of that name.
template <class F> F sim_cpu_function(const char * name) {
    return (F) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(sim_cpu()), name);
}

class sim_threads {
public:
    explicit sim_threads(ggml_backend_t cpu) : cpu(cpu) {}
    ~sim_threads(); // the backend must be free by then

    sim_threads(const sim_threads &) = delete;
    sim_threads & operator=(const sim_threads &) = delete;

    void set(int n); // of the next graph
    void prepare();  // before a graph is computed

private:
    void release();

    ggml_backend_t    cpu;
    int               n    = GGML_DEFAULT_N_THREADS;
    ggml_threadpool_t pool = nullptr;
    int               made = 0; // for how many threads; 0 without a pool
};

} // namespace gp

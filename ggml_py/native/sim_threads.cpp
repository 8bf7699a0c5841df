#include "sim_threads.h"

#include "ggml-cpu.h"

namespace gp {

sim_threads::~sim_threads() {
    release();
}

void sim_threads::set(int count) {
    n = count;
    sim_cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")(cpu, count);
}

void sim_threads::prepare() {
    const int wanted = n > 1 ? n : 0; // a graph with one thread needs no pool
    if (made == wanted) {
        return;
    }
    ggml_threadpool_t next = nullptr;
    if (wanted != 0) {
        ggml_threadpool_params params = ggml_threadpool_params_default(wanted);
        params.poll = 0; // the CPU's threads need the cores between two graphs
        next = sim_cpu_function<decltype(&ggml_threadpool_new)>("ggml_threadpool_new")(&params);
    }
    sim_cpu_function<decltype(&ggml_backend_cpu_set_threadpool)>("ggml_backend_cpu_set_threadpool")(cpu, next);
    release();
    pool = next;
    made = wanted;
}

void sim_threads::release() {
    if (pool != nullptr) {
        sim_cpu_function<decltype(&ggml_threadpool_free)>("ggml_threadpool_free")(pool);
        pool = nullptr;
    }
}

} // namespace gp

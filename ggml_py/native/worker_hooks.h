// Included by the instrumented copy of ggml-cpu.c before ggml_graph_compute_thread (vendor/instrument.py),
// where the private structs are visible. Upstream's function is renamed to gp_compute_thread, so callers of the
// old name come here first. worker_guard.h says why.
#pragma once

#include "reach.h"

static thread_ret_t gp_compute_thread(void * data);

#ifdef __ELF__
extern const char __start_gp_barrier[] __attribute__((visibility("hidden")));
extern const char __stop_gp_barrier[] __attribute__((visibility("hidden"))); // the linker's symbols around the section
#define GP_BARRIER_BEGIN __start_gp_barrier
#define GP_BARRIER_END   __stop_gp_barrier
#else
#define GP_BARRIER_BEGIN NULL
#define GP_BARRIER_END   NULL
#endif

static thread_ret_t ggml_graph_compute_thread(void * data) {
    struct ggml_compute_state * state = (struct ggml_compute_state *) data;
    struct ggml_threadpool    * tp    = state->threadpool;
#ifdef GGML_THREADPOOL_N_THREADS_MASK
    const int n_threads = atomic_load_explicit(&tp->n_graph, memory_order_relaxed) & GGML_THREADPOOL_N_THREADS_MASK;
#else
    const int n_threads = atomic_load_explicit(&tp->n_threads_cur, memory_order_relaxed);
#endif
    const struct gp_stop stop = { tp->cplan->abort_callback, tp->cplan->abort_callback_data };
    gp_pool_code((const void *) gp_compute_thread, GP_BARRIER_BEGIN, GP_BARRIER_END);
    if (gp_pool_run(&tp->gp, gp_compute_thread, state, &state->gp_node, state->ith, n_threads, &stop)) {
        // threads that left from inside the barrier are still counted in it
        atomic_store_explicit(&tp->n_barrier, 0, memory_order_relaxed);
        if (gp_pool_stopped(&tp->gp)) {
            tp->ec = GGML_STATUS_ABORTED;
        }
    }
    return 0;
}

// Handles failures on the threads of a CPU compute. The instrumented copy of ggml-cpu.c calls these functions.
//
// 1. Each thread's part of a compute runs in gp_pool_run, which catches its exceptions (assertions, see
//    guard.h). The first failure is kept, and the pool is marked.
// 2. In a marked pool no thread waits: ggml_barrier calls gp_pool_check, which throws, so threads also leave
//    ops from barriers inside them. A thread between two barriers reaches the next one by itself.
// 3. The thread that failed never enters its next barrier. So no thread passes that barrier or finishes the
//    graph, and every thread leaves by throwing. Counting them tells when all have left.
// 4. The calling thread waits for that, unmarks the pool, lets ggml_graph_compute free its memory, and only
//    then throws the kept failure to its caller.
// 5. A compute that its abort callback stops in the middle of a kernel ends in the same way, but without a
//    failure to throw: it returns GGML_STATUS_ABORTED, as between two nodes (worker_leave.h).
#pragma once

#include "fork.h"

#include <stdbool.h>
#include <stddef.h>

struct ggml_tensor;

// ggml_barrier has its own section, so that a code address can be recognized as being inside it.
#ifdef __ELF__
#define GP_BARRIER_CODE __attribute__((noinline, section("gp_barrier")))
#else
#define GP_BARRIER_CODE
#endif

#ifdef __cplusplus
extern "C" {
#endif

// A member of upstream's struct ggml_threadpool. The numbers are read and written with __atomic builtins.
struct gp_pool {
    int    failed;
    int    left;    // number of threads that have left the failed compute
    int    wanted;  // the asking thread is in a barrier, so a thread that is not in one must fail
    int    stopped; // the compute failed because it had to stop
    int    forks;   // gp_forks() when the pool was made
    void * failure;
};

// The abort callback of a compute.
struct gp_stop {
    bool (*asks)(void * data);
    void * data;
};

// Runs work(data). `work` stores the current node in `node`. Returns true on the calling thread (ith 0) of a
// failed compute, once all n_threads threads have left it. `stop` is asked inside kernels.
__attribute__((visibility("default")))
bool gp_pool_run(struct gp_pool * pool, void * (*work)(void *), void * data, struct ggml_tensor ** node, int ith, int n_threads, const struct gp_stop * stop);

// Whether the failed compute had to stop. Resets the answer.
__attribute__((visibility("default"))) bool gp_pool_stopped(struct gp_pool * pool);
// The library that contains `code` has kernels that may be left. Its ggml_barrier is between the other two addresses.
__attribute__((visibility("default"))) void gp_pool_code(const void * code, const char * barrier, const char * barrier_end);

// gp_pool_take takes the failure out of a pool, which may then be freed. gp_pool_raise throws it if there is one.
__attribute__((visibility("default"))) void * gp_pool_take(struct gp_pool * pool);
__attribute__((visibility("default"))) void   gp_pool_raise(void * failure);

__attribute__((visibility("default"), noreturn, cold)) void gp_pool_leave(void);

// Sets the node to blame for this thread's next exception, for use before a pool's threads run.
__attribute__((visibility("default"))) void gp_pool_failed_at(const struct ggml_tensor * node);

static inline void gp_pool_check(struct gp_pool * pool) {
    if (__builtin_expect(__atomic_load_n(&pool->failed, __ATOMIC_ACQUIRE), 0)) {
        gp_pool_leave();
    }
}

// An integer division by zero (or of the smallest number by -1) at that place fails like an assertion there. Kernels are
// left by a jump, because the compiler does not expect an exception from a division.
__attribute__((visibility("default"), noreturn, cold)) void gp_divided(const char * file, int line, bool by_zero);
// Whether the compiler checks the divisions of these libraries (divide.c).
__attribute__((visibility("default"))) bool gp_divisions_checked(void);

// This thread catches exceptions of assertions (+1), or no longer does (-1).
__attribute__((visibility("default"))) void gp_catching(int more);

// Whether the pool's threads are in the process that forked this one.
static inline bool gp_pool_lost(const struct gp_pool * pool) {
    return pool->forks != gp_forks();
}

// For guard.cpp, which declares them weak, because a pristine build does not have them.
// Whether this thread is in gp_pool_run.
__attribute__((visibility("default"))) bool gp_pool_running(void);
// The node of the failure that gp_pool_raise threw last on this thread. Resets the answer.
__attribute__((visibility("default"))) const struct ggml_tensor * gp_pool_failed_node(void);

#ifdef __cplusplus
}
#endif

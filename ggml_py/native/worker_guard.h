// Failures on the threads of a CPU compute: what the instrumented copy of ggml-cpu.c calls.
//
// 1. Each thread's part of a compute runs in gp_pool_run, which catches what it throws (an assertion, see
//    guard.h). The first failure is kept, the pool is marked.
// 2. A marked pool lets nobody wait: ggml_barrier asks gp_pool_check, which throws, so threads leave ops
//    from the barriers inside them too. A thread between two barriers comes to the next one by itself.
// 3. The thread that failed never entered the barrier it was due at. So nobody passes it, nobody ends
//    the graph, and every thread leaves by throwing: counting them is enough to know when all have left.
// 4. The calling thread waits for that, unmarks the pool, lets ggml_graph_compute free what it made and
//    only then throws the kept failure on to whoever called.
// 5. A compute that its abort callback stops in the middle of a kernel ends in the same way, without a
//    failure to throw: it returns GGML_STATUS_ABORTED, as between two nodes (worker_leave.h).
#pragma once

#include "fork.h"

#include <stdbool.h>
#include <stddef.h>

struct ggml_tensor;

// ggml_barrier has a section of its own, so that a thread's place can be told from it.
#ifdef __ELF__
#define GP_BARRIER_CODE __attribute__((noinline, section("gp_barrier")))
#else
#define GP_BARRIER_CODE
#endif

#ifdef __cplusplus
extern "C" {
#endif

// In upstream's struct ggml_threadpool. The numbers are read and written with __atomic builtins.
struct gp_pool {
    int    failed;
    int    left;    // threads that have left the failed compute
    int    wanted;  // the thread that asks is in a barrier: one that is not shall fail
    int    stopped; // it failed because it was to stop
    int    forks;   // gp_forks() when it was made
    void * failure;
};

// The abort callback of a compute.
struct gp_stop {
    bool (*asks)(void * data);
    void * data;
};

// Runs work(data). `node` is where `work` notes the node it is at. Returns true on the calling thread
// (ith 0) of a failed compute, when all n_threads threads have left it. `stop` is asked within kernels.
__attribute__((visibility("default")))
bool gp_pool_run(struct gp_pool * pool, void * (*work)(void *), void * data, struct ggml_tensor ** node, int ith, int n_threads, const struct gp_stop * stop);

// Whether the failed compute was to stop; asked once.
__attribute__((visibility("default"))) bool gp_pool_stopped(struct gp_pool * pool);
// The library with `code` has kernels, which may be left; its ggml_barrier is between the other two.
__attribute__((visibility("default"))) void gp_pool_code(const void * code, const char * barrier, const char * barrier_end);

// Takes the failure out of a pool that may be freed then; throws it, if there is one.
__attribute__((visibility("default"))) void * gp_pool_take(struct gp_pool * pool);
__attribute__((visibility("default"))) void   gp_pool_raise(void * failure);

__attribute__((visibility("default"), noreturn, cold)) void gp_pool_leave(void);

// The node to blame for what this thread throws next, where no thread of a pool runs yet.
__attribute__((visibility("default"))) void gp_pool_failed_at(const struct ggml_tensor * node);

static inline void gp_pool_check(struct gp_pool * pool) {
    if (__builtin_expect(__atomic_load_n(&pool->failed, __ATOMIC_ACQUIRE), 0)) {
        gp_pool_leave();
    }
}

// An integer division by zero (or of the smallest number by -1) at that place fails as an assertion there does.
// Kernels are left by a jump: the compiler does not expect an exception from a division.
__attribute__((visibility("default"), noreturn, cold)) void gp_divided(const char * file, int line, bool by_zero);
// Whether the compiler checks the divisions of these libraries (divide.c).
__attribute__((visibility("default"))) bool gp_divisions_checked(void);

// This thread catches what an assertion throws (+1), no longer (-1).
__attribute__((visibility("default"))) void gp_catching(int more);

// Whether its threads are in the process that forked this one.
static inline bool gp_pool_lost(const struct gp_pool * pool) {
    return pool->forks != gp_forks();
}

// For guard.cpp, which asks for them weakly: a pristine build has none.
// Whether this thread is in gp_pool_run.
__attribute__((visibility("default"))) bool gp_pool_running(void);
// The node of the failure that gp_pool_raise threw last on this thread; asked once.
__attribute__((visibility("default"))) const struct ggml_tensor * gp_pool_failed_node(void);

#ifdef __cplusplus
}
#endif

#include "worker_leave.h"

#include "ggml.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

namespace {

struct left_exception : std::exception {};

struct failure {
    std::exception_ptr  error;
    const ggml_tensor * node;
};

thread_local int                 running     = 0; // a custom op may compute on another pool
thread_local const ggml_tensor * failed_node = nullptr;

// Returns true if `work` finished.
__attribute__((noinline)) bool attempt(gp::run & here, void * (*work)(void *), void * data, ggml_tensor ** node) {
    try {
        work(data);
        return true;
    } catch (const left_exception &) {
        // another thread's failure
    } catch (const std::exception &) {
        here.busy = true; // otherwise the signal could interrupt between the next two statements
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (__atomic_exchange_n(&here.pool->failed, 1, __ATOMIC_ACQ_REL) == 0) {
            here.pool->failure = new failure{std::current_exception(), *node};
        }
    }
    return false;
}

// The same, but kernels are left by a jump to here. A separate function, so that there is nothing to destroy.
__attribute__((noinline)) bool attempt_and_leave(gp::run & here, void * (*work)(void *), void * data, ggml_tensor ** node) {
    here.frame = __builtin_frame_address(0);
    if (_setjmp(here.back) == 0) {
        gp::enter(here);
        const bool ended = attempt(here, work, data, node);
        gp::leave(here);
        return ended;
    }
    gp::leave(here);
    if (here.fails && __atomic_exchange_n(&here.pool->failed, 1, __ATOMIC_ACQ_REL) == 0) {
        __atomic_store_n(&here.pool->stopped, 1, __ATOMIC_RELEASE);
    }
    return false;
}

} // namespace

extern "C" {

bool gp_pool_run(gp_pool * pool, void * (*work)(void *), void * data, ggml_tensor ** node, int ith, int n_threads, const gp_stop * stop) {
    *node = nullptr;
    const bool asks = ith == 0 && stop->asks != nullptr;
    gp::run here = {};
    here.pool = pool;
    here.node = node;
    here.stop = asks ? stop : nullptr;
    running++;
    const bool ended = attempt_and_leave(here, work, data, node);
    running--;
    if (ended) {
        if (asks) {
            pool->wanted = 0;
        }
        return false;
    }
    __atomic_add_fetch(&pool->left, 1, __ATOMIC_ACQ_REL); // from here on, the pool may be freed
    if (ith != 0) {
        return false;
    }
    while (__atomic_load_n(&pool->left, __ATOMIC_ACQUIRE) != n_threads) {
        gp::call_out(pool); // a thread may be in the middle of a long node
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    pool->left   = 0;
    pool->wanted = 0;
    pool->failed = 0;
    return true;
}

bool gp_pool_stopped(gp_pool * pool) {
    return __atomic_exchange_n(&pool->stopped, 0, __ATOMIC_ACQ_REL);
}

void gp_pool_code(const void * code, const char * barrier, const char * barrier_end) {
    gp::may_leave(code, barrier, barrier_end);
    gp::may_leave((const void *) gp_pool_run, nullptr, nullptr);
}

void * gp_pool_take(gp_pool * pool) {
    void * taken = pool->failure;
    pool->failure = nullptr;
    return taken;
}

void gp_pool_raise(void * taken) {
    if (taken == nullptr) {
        return;
    }
    failure * kept = static_cast<failure *>(taken);
    const std::exception_ptr error = kept->error;
    failed_node = kept->node;
    delete kept;
    std::rethrow_exception(error);
}

void gp_divided(const char * file, int line, bool by_zero) {
    std::exception_ptr error;
    try {
        ggml_abort(file, line, by_zero ? "integer division by zero" : "integer division overflows");
    } catch (const std::exception &) {
        error = std::current_exception();
    }
    gp::run * here = gp::run_of_this_kernel();
    if (here == nullptr) {
        std::rethrow_exception(error);
    }
    if (__atomic_exchange_n(&here->pool->failed, 1, __ATOMIC_ACQ_REL) == 0) {
        here->pool->failure = new failure{error, *here->node};
    }
    error = nullptr;
    longjmp(here->back, 1);
}

bool gp_divisions_checked(void) {
#ifdef GP_DIVISIONS_CHECKED
    return true;
#else
    return false;
#endif
}

void gp_catching(int more) {
    running += more;
}

void gp_pool_leave(void) {
    throw left_exception();
}

void gp_pool_failed_at(const ggml_tensor * node) {
    failed_node = node;
}

bool gp_pool_running(void) {
    return running > 0;
}

const ggml_tensor * gp_pool_failed_node(void) {
    const ggml_tensor * node = failed_node;
    failed_node = nullptr;
    return node;
}

} // extern "C"

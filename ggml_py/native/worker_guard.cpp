#include "worker_guard.h"

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

struct run_scope {
    run_scope()  { running++; }
    ~run_scope() { running--; }
};

} // namespace

extern "C" {

bool gp_pool_run(gp_pool * pool, void * (*work)(void *), void * data, ggml_tensor ** node, int ith, int n_threads) {
    *node = nullptr;
    try {
        run_scope scope;
        work(data);
        return false;
    } catch (const left_exception &) {
        // another thread's failure
    } catch (const std::exception &) {
        if (__atomic_exchange_n(&pool->failed, 1, __ATOMIC_ACQ_REL) == 0) {
            pool->failure = new failure{std::current_exception(), *node};
        }
    }
    __atomic_add_fetch(&pool->left, 1, __ATOMIC_ACQ_REL); // from here on the pool may be gone
    if (ith != 0) {
        return false;
    }
    while (__atomic_load_n(&pool->left, __ATOMIC_ACQUIRE) != n_threads) {
        std::this_thread::yield(); // a thread may be in the middle of a long node
    }
    pool->left   = 0;
    pool->failed = 0;
    return true;
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

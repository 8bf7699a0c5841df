#include "quant_tables.h"

#include "worker_guard.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace {

enum state { NONE, MAKING, READY };

// Never destroyed: threads may still be working when the process ends.
struct tables {
    std::mutex              mutex; // protects all members below except `turn`
    std::condition_variable changed;
    std::mutex              turn; // types share tables, so they are made one after the other
    std::atomic<int>        states[GGML_TYPE_COUNT] = {};
    std::exception_ptr      failure;
    void (*drop)(void) = nullptr;

    bool making() const {
        for (const auto & one : states) {
            if (one == MAKING) {
                return true;
            }
        }
        return false;
    }
};

tables & all() {
    static tables & it = *new tables;
    return it;
}

std::atomic<bool (*)(void)> interrupted{nullptr};

#if defined(__unix__) || defined(__APPLE__)
void before_fork()     { all().mutex.lock(); }
void after_in_parent() { all().mutex.unlock(); }

// Tables that other threads were making will never be finished.
void after_in_child() {
    tables & t = all();
    if (t.making()) {
        t.drop();
        for (auto & one : t.states) {
            one = NONE;
        }
    }
    new (&t.turn) std::mutex;
    new (&t.changed) std::condition_variable;
    t.mutex.unlock();
}

void watch_forks() {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] { pthread_atfork(before_fork, after_in_parent, after_in_child); });
}
#else
void watch_forks() {}
#endif

void work(ggml_type type, void (*make)(ggml_type)) {
    tables & t = all();
    std::exception_ptr failure;
    {
        std::lock_guard<std::mutex> turn(t.turn);
        gp_catching(1);
        try {
            make(type);
        } catch (const std::exception &) {
            failure = std::current_exception();
        }
        gp_catching(-1);
    }
    std::lock_guard<std::mutex> lock(t.mutex);
    t.states[type] = failure ? NONE : READY;
    t.failure      = failure;
    t.changed.notify_all();
}

} // namespace

extern "C" {

void gp_set_interrupted(bool (*asked)(void)) {
    interrupted = asked;
}

bool gp_ask_interrupted(void) {
    bool (*const asks)(void) = interrupted;
    return asks != nullptr && asks();
}

void gp_quantize_init(ggml_type type, void (*make)(ggml_type), void (*drop)(void)) {
    const bool has_tables = type == GGML_TYPE_IQ2_XXS || type == GGML_TYPE_IQ2_XS || type == GGML_TYPE_IQ2_S ||
        type == GGML_TYPE_IQ1_S || type == GGML_TYPE_IQ1_M || type == GGML_TYPE_IQ3_XXS || type == GGML_TYPE_IQ3_S;
    tables & t = all();
    if (!has_tables || t.states[type] == READY) {
        return;
    }
    watch_forks();
    std::unique_lock<std::mutex> lock(t.mutex);
    t.drop = drop;
    if (t.states[type] == NONE) {
        t.states[type] = MAKING;
        try {
            std::thread(work, type, make).detach();
        } catch (const std::exception &) { // no thread could be started
            lock.unlock();
            work(type, make);
            lock.lock();
        }
    }
    while (t.states[type] == MAKING) {
        if (t.changed.wait_for(lock, std::chrono::milliseconds(20)) == std::cv_status::timeout) {
            lock.unlock();
            if (gp_ask_interrupted()) {
                throw std::runtime_error("interrupted while tables for quantising are made");
            }
            lock.lock();
        }
    }
    if (t.states[type] == NONE && t.failure) {
        std::rethrow_exception(t.failure);
    }
}

void gp_quantize_free(void (*drop)(void)) {
    tables & t = all();
    std::unique_lock<std::mutex> lock(t.mutex);
    t.changed.wait(lock, [&t] { return !t.making(); });
    drop();
    for (auto & one : t.states) {
        one = NONE;
    }
}

} // extern "C"

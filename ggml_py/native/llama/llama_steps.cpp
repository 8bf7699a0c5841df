#include "llama_steps.h"

#include "quant_tables.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <pthread.h>
#include <stdexcept>

namespace {

constexpr size_t FEW     = 256;       // characters: any stack is large enough
constexpr size_t PER     = 2048;      // bytes for each character; 700 were seen
constexpr size_t LARGEST = 256 << 20; // bytes, of which only those that are used take memory
constexpr size_t MARGIN  = 512 << 10; // bytes: what a step needs, and what a thread begins with

struct job {
    const std::function<void()> & work;
    size_t                        stack;
    std::atomic<bool>             stop{false};
    std::exception_ptr            error;
    std::mutex                    mutex;
    std::condition_variable       changed;
    bool                          done = false;
};

thread_local job *        mine = nullptr; // of the thread that `gpl_on_stack` started
thread_local const char * full = nullptr; // the address below which its stack counts as full

void * run(void * given) {
    mine = static_cast<job *>(given);
    full = static_cast<const char *>(__builtin_frame_address(0)) - mine->stack + MARGIN;
    try {
        mine->work();
    } catch (...) {
        mine->error = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mine->mutex);
    mine->done = true;
    mine->changed.notify_one();
    return nullptr;
}

} // namespace

void gpl_step() {
    if (mine != nullptr && static_cast<const char *>(__builtin_frame_address(0)) < full) {
        throw std::runtime_error("the text has a part that is too long for the tokenizer's regular expression, which "
                                 "needs more than " + std::to_string(mine->stack >> 20) + " MiB of stack for it");
    }
    if (mine != nullptr ? mine->stop.load(std::memory_order_relaxed) : gp_ask_interrupted()) {
        throw std::runtime_error("interrupted while text is tokenised");
    }
}

void gpl_on_stack(size_t n, const std::function<void()> & work) {
    if (n < FEW) {
        work();
        return;
    }
    job            own{work, std::min(n * PER + 2 * MARGIN, LARGEST)};
    pthread_t      thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, own.stack);
    const int failed = pthread_create(&thread, &attributes, run, &own);
    pthread_attr_destroy(&attributes);
    if (failed != 0) {
        throw std::runtime_error("no thread with a stack of " + std::to_string(own.stack >> 20) + " MiB can be made");
    }
    {
        std::unique_lock<std::mutex> lock(own.mutex);
        while (!own.changed.wait_for(lock, std::chrono::milliseconds(20), [&own] { return own.done; })) {
            lock.unlock();
            if (gp_ask_interrupted()) {
                own.stop = true;
            }
            lock.lock();
        }
    }
    pthread_join(thread, nullptr);
    if (own.error) {
        std::rethrow_exception(own.error);
    }
}

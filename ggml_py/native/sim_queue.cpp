#include "sim_queue.h"

#include <atomic>
#include <chrono>

// Defined in module.h: whether a signal handler raised on this thread.
extern "C" bool gp_interrupted(void);

namespace gp {

namespace {

std::atomic<int>         interrupts{0};
thread_local sim_queue * mine         = nullptr;
thread_local int         interrupts_0 = 0; // `interrupts` of the job that runs on this thread

} // namespace

std::mutex & sim_order() {
    static std::mutex & it = *new std::mutex; // never destroyed: threads may still work when the process ends
    return it;
}

sim_queue * sim_queue::current() {
    return mine;
}

bool sim_queue::stopped() {
    return mine != nullptr && interrupts != interrupts_0;
}

sim_queue::ticket sim_queue::give(std::function<void()> run, bool always) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!thread.joinable()) {
        thread = std::thread([self = shared_from_this()] { self->work(); });
    }
    jobs.push_back({std::move(run), always, interrupts});
    changed.notify_all();
    return ++given;
}

sim_queue::ticket sim_queue::pending() {
    std::lock_guard<std::mutex> lock(mutex);
    return done == given ? 0 : given;
}

void sim_queue::wait(ticket until, bool interruptible) {
    if (mine == this) {
        return;
    }
    std::unique_lock<std::mutex> lock(mutex);
    while (done < until) {
        if (!interruptible || mine != nullptr) {
            changed.wait(lock);
        } else if (changed.wait_for(lock, std::chrono::milliseconds(20)) == std::cv_status::timeout) {
            lock.unlock();
            if (gp_interrupted()) {
                interrupts++;
                interruptible = false; // interrupt only once
            }
            lock.lock();
        }
    }
}

void sim_queue::raise_failure() {
    std::unique_lock<std::mutex> lock(mutex);
    if (failure) {
        const recorded_error error(*failure);
        failure.reset();
        throw error;
    }
}

void sim_queue::end(std::function<void()> last) {
    std::unique_lock<std::mutex> lock(mutex);
    if (!thread.joinable()) {
        lock.unlock();
        last();
        return;
    }
    jobs.push_back({std::move(last), true, interrupts});
    given++;
    ending = true;
    changed.notify_all();
    lock.unlock();
    if (mine == this) {
        thread.detach();
    } else {
        thread.join();
    }
}

void sim_queue::work() {
    mine = this;
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
        changed.wait(lock, [this] { return ending || !jobs.empty(); });
        if (jobs.empty()) {
            return;
        }
        job next = std::move(jobs.front());
        jobs.pop_front();
        if (next.always || !failure) {
            lock.unlock();
            run(next);
            next.run = nullptr; // before the job counts as done, because others may wait for what it holds
            lock.lock();
        }
        done++;
        changed.notify_all();
    }
}

void sim_queue::run(const job & next) {
    interrupts_0 = next.interrupts;
    try {
        scope guarded;
        next.run();
    } catch (const std::exception &) {
        caught("ggml_backend_graph_compute");
        std::lock_guard<std::mutex> lock(mutex);
        if (!failure) {
            failure = *gp_last_error();
        }
        gp_last_error()->kind = GP_ERROR_NONE;
    }
}

} // namespace gp

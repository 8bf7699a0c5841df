// The asynchronous work of a simulated device: a thread for each backend, started with its first job, that runs jobs in
// the order in which they were given.
//
// 1. A ticket is a number of jobs. Waiting for a ticket means waiting until that many jobs are done. Events, and waits
//    of one queue for another, are made of nothing else.
// 2. A job that throws leaves its record (guard.h). The jobs after it, except waits, are skipped until the failure is
//    asked for, so no wait lasts forever.
// 3. Jobs wait only for jobs that were given earlier (with sim_order held), so there is no deadlock between queues.
#pragma once

#include "guard.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace gp {

// Held while jobs are given to several queues, so that all queues get them in the same order.
std::mutex & sim_order();

class sim_queue : public std::enable_shared_from_this<sim_queue> {
public:
    using ticket = uint64_t;

    // Adds a job and returns the ticket of its end. Jobs with `always` also run after a failure.
    ticket give(std::function<void()> job, bool always = false);
    // The ticket of all jobs given so far; 0 if all are done.
    ticket pending();
    // Returns when the ticket's jobs are done, or at once on the queue's own thread. `interruptible` is for calls from
    // Python: Ctrl-C stops the computes that were given until then.
    void wait(ticket until, bool interruptible);
    // Throws the failure since the last call, if there is one.
    void raise_failure();
    // Ends the thread after its jobs and `last`.
    void end(std::function<void()> last);

    // The queue whose thread this is, or NULL.
    static sim_queue * current();
    // Whether the job that this thread runs must stop.
    static bool stopped();

private:
    struct job {
        std::function<void()> run;
        bool                  always;
        int                   interrupts; // number of interrupts when it was given
    };

    void work();
    void run(const job & next);

    std::mutex              mutex; // protects all members below except the thread
    std::condition_variable changed;
    std::deque<job>         jobs;
    ticket                  given  = 0;
    ticket                  done   = 0;
    bool                    ending = false;
    std::optional<gp_error> failure;
    std::thread             thread;
};

} // namespace gp

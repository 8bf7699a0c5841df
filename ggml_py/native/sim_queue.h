// What a simulated device does while its caller goes on: a thread for each backend, started with its first
// job, that does jobs in the order in which they were given.
//
// 1. A ticket is a number of jobs. Waiting for a ticket is waiting until so many are done; that is all that
//    events, and one queue's waits for another, are made of.
// 2. A job that throws leaves its record (guard.h); the jobs after it are passed over, except waits, until
//    somebody asks for the failure. So nobody waits for ever.
// 3. Jobs wait only for jobs that were given before (with sim_order held), so queues never wait in a circle.
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

// Held while jobs are given to several queues, so that these see them in one order.
std::mutex & sim_order();

class sim_queue : public std::enable_shared_from_this<sim_queue> {
public:
    using ticket = uint64_t;

    // Adds a job and gives the ticket of its end; `always` ones run after a failure too.
    ticket give(std::function<void()> job, bool always = false);
    // The ticket of all that was given so far; 0 when all of it is done.
    ticket pending();
    // Returns when it is done; at once on the queue's own thread. `interruptible` is for calls that Python
    // made: Ctrl-C stops the computes that were given until then.
    void wait(ticket until, bool interruptible);
    // Throws what failed since it was asked last.
    void raise_failure();
    // Ends the thread after what it has to do and `last`.
    void end(std::function<void()> last);

    // The queue whose thread this is, or NULL.
    static sim_queue * current();
    // Whether the job that this thread does is to stop.
    static bool stopped();

private:
    struct job {
        std::function<void()> run;
        bool                  always;
        int                   interrupts; // how many there were when it was given
    };

    void work();
    void run(const job & next);

    std::mutex              mutex; // of all that follows but the thread
    std::condition_variable changed;
    std::deque<job>         jobs;
    ticket                  given  = 0;
    ticket                  done   = 0;
    bool                    ending = false;
    std::optional<gp_error> failure;
    std::thread             thread;
};

} // namespace gp

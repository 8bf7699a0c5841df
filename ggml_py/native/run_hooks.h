// Functions that the instrumented copy of ggml-backend.cpp calls while it computes (vendor/run_edits.py adds the
// calls), and the readers of run_trace.h. Included by sched_trace.cpp, after sched_hooks.h.
//
// The times are those of upstream's calls. For a backend that computes asynchronously they show when it was given its
// nodes, and the waits for it. Without a recording each call costs one test of a pointer.
#pragma once

#include "run_trace.h"

#include <chrono>

namespace gp {

static int64_t run_now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct run {
    std::vector<gp_run_event> events;
    size_t  max_events = 0;
    size_t  lost       = 0;
    int32_t computes   = 0;
    int32_t copying    = -1; // the event of the copy in progress
    bool    on         = true;
    bool    tried      = false; // for the copy in progress: cpy_tensor_async was asked,
    bool    at_once    = false; // it was made synchronously,
    bool    in_parts   = false; // or in parts by tensor_set_async
    bool    per_op     = false;

    // Returns -1 if there is no room.
    int32_t add(const gp_run_event & event) {
        if (events.size() == max_events) {
            lost++;
            return -1;
        }
        events.push_back(event);
        return (int32_t) events.size() - 1;
    }
};

static bool each_node(ggml_tensor *, bool, void *) {
    return true;
}

static run * running(ggml_backend_sched_t sched) {
    return traced(sched) && traced(sched)->recording && traced(sched)->recording->on ? traced(sched)->recording.get() : nullptr;
}

// Records one event, from its construction to its end. Does nothing without a recording.
struct timed {
    run *        to;
    gp_run_event event = {};

    timed(ggml_backend_sched_t sched, gp_run_kind kind, int32_t backend) : to(running(sched)) {
        if (__builtin_expect(to != nullptr, 0)) {
            begin(sched, kind, backend);
        }
    }

    GP_COLD void begin(ggml_backend_sched_t sched, gp_run_kind kind, int32_t backend) {
        event.kind    = kind;
        event.compute = to->computes - 1;
        event.split   = event.input = -1;
        event.backend = backend;
        event.copy    = sched->cur_copy;
        event.first   = event.last = event.by = -1;
        event.inside  = to->copying;
        event.start   = run_now();
    }

    ~timed() {
        if (__builtin_expect(to != nullptr, 0)) {
            event.end = run_now();
            to->add(event);
        }
    }
};

static int32_t index_of(ggml_backend_sched_t sched, ggml_backend_t backend) {
    const auto end = sched->backends + sched->n_backends;
    return (int32_t) (std::find(sched->backends, end, backend) - sched->backends);
}

// Records a call of compute_splits. Opened before its events, so that they find its number.
struct timed_compute {
    run *   to;
    int32_t index = -1;

    explicit timed_compute(ggml_backend_sched_t sched) : to(running(sched)) {
        if (to) {
            gp_run_event event = {};
            event.kind    = GP_RUN_COMPUTE;
            event.compute = to->computes++;
            event.split   = event.input = event.backend = event.first = event.last = event.inside = event.by = -1;
            event.copy    = sched->cur_copy;
            event.start   = event.end = run_now();
            index = to->add(event);
        }
    }

    ~timed_compute() {
        if (to && index >= 0) {
            to->events[index].end = run_now();
        }
    }
};

// Records the copy of one input of a split. Upstream leaves the scope in several places.
struct timed_copy {
    run *               to;
    const ggml_tensor * input;
    int32_t             index = -1;

    timed_copy(ggml_backend_sched_t sched, const ggml_backend_sched_split * split, const ggml_tensor * input)
        : to(running(sched)), input(input) {
        if (to) {
            gp_run_event event = {};
            event.kind    = GP_RUN_COPY;
            event.compute = to->computes - 1;
            event.split   = (int32_t) (split - sched->splits);
            event.backend = split->backend_id;
            event.copy    = sched->cur_copy;
            event.first   = event.last = event.inside = event.by = -1;
            event.input   = (int32_t) (std::find(split->inputs, split->inputs + split->n_inputs, input) - split->inputs);
            event.start   = event.end = run_now();
            index = to->copying = to->add(event);
            to->tried = to->at_once = to->in_parts = false;
        }
    }

    static int32_t how(const run & r) {
        return r.in_parts ? GP_RUN_PARTS : r.at_once ? (r.tried ? GP_RUN_REFUSED : GP_RUN_AT_ONCE)
            : r.tried ? GP_RUN_ASYNC : GP_RUN_CALLBACK;
    }

    ~timed_copy() {
        if (to && index >= 0) {
            gp_run_event & event = to->events[index];
            event.end   = run_now();
            event.how   = how(*to);
            event.bytes = event.bytes ? event.bytes : ggml_nbytes(input); // set_async counts parts
            to->copying = -1;
        }
    }
};

static void wait(ggml_backend_sched_t sched, ggml_backend_t backend) {
    timed t(sched, GP_RUN_WAIT, running(sched) ? index_of(sched, backend) : -1);
    t.event.how = GP_RUN_SYNCHRONIZE;
    ggml_backend_synchronize(backend);
}

// The backend on which an event of this scheduler's copies is recorded.
static int32_t event_of(ggml_backend_sched_t sched, ggml_backend_event_t event) {
    int32_t backend = -1;
    for (int b = 0; running(sched) && b < sched->n_backends; b++) {
        backend = sched->events[b][sched->cur_copy] == event ? b : backend;
    }
    return backend;
}

static void wait_event(ggml_backend_sched_t sched, ggml_backend_event_t event) {
    timed t(sched, GP_RUN_WAIT, event_of(sched, event));
    t.event.how = GP_RUN_EVENT;
    ggml_backend_event_synchronize(event);
}

// The caller continues. `backend` waits, after the work that it was given.
static void queue_wait(ggml_backend_sched_t sched, ggml_backend_t backend, ggml_backend_event_t event) {
    timed t(sched, GP_RUN_QUEUE, event_of(sched, event));
    t.event.by = t.to ? index_of(sched, backend) : -1;
    ggml_backend_event_wait(backend, event);
}

static void record_event(ggml_backend_sched_t sched, ggml_backend_event_t event, ggml_backend_t backend) {
    timed t(sched, GP_RUN_RECORD, event_of(sched, event));
    t.event.by = t.to ? index_of(sched, backend) : -1;
    ggml_backend_event_record(event, backend);
}

static ggml_backend_t trying(ggml_backend_sched_t sched, ggml_backend_t backend) {
    if (run * to = running(sched)) {
        to->tried = true;
    }
    return backend;
}

static void copy_at_once(ggml_backend_sched_t sched, ggml_tensor * src, ggml_tensor * dst) {
    if (run * to = running(sched)) {
        to->at_once = true;
    }
    ggml_backend_tensor_copy(src, dst);
}

static void set_async(ggml_backend_sched_t sched, ggml_backend_t backend, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    run * to = running(sched);
    if (to && to->copying >= 0) {
        to->events[to->copying].bytes += size;
        to->in_parts = true;
    }
    ggml_backend_tensor_set_async(backend, t, data, offset, size);
}

static ggml_status compute_nodes(ggml_backend_sched_t sched, ggml_backend_t backend, ggml_cgraph * graph) {
    timed t(sched, GP_RUN_NODES, running(sched) ? index_of(sched, backend) : -1);
    if (t.to) { // the graphs of splits are views of one array of nodes
        t.event.first = (int32_t) (graph->nodes - sched->splits[0].graph.nodes);
        t.event.last  = t.event.first + graph->n_nodes;
        int32_t split = 0;
        while (split + 1 < sched->n_splits && sched->splits[split + 1].i_start <= t.event.first) {
            split++;
        }
        t.event.split = split;
    }
    return ggml_backend_graph_compute_async(backend, graph);
}

} // namespace gp

extern "C" {

bool gp_run_start(ggml_backend_sched_t sched, bool per_op, size_t max_events) {
    gp_run_stop(sched);
    if (per_op && sched->callback_eval) {
        return false;
    }
    gp::trace * tr = gp::begin(sched);
    tr->recording.reset(new gp::run());
    tr->recording->max_events = max_events;
    tr->recording->per_op     = per_op;
    tr->recording->events.reserve(std::min<size_t>(max_events, 4096));
    if (per_op) {
        sched->callback_eval = gp::each_node;
    }
    return true;
}

void gp_run_stop(ggml_backend_sched_t sched) {
    gp::run * run = gp::running(sched);
    if (run) {
        run->on = false;
        if (run->per_op && sched->callback_eval == gp::each_node) {
            sched->callback_eval = nullptr;
        }
    }
}

size_t gp_run_events(ggml_backend_sched_t sched, gp_run_event * events, size_t n, size_t * lost) {
    *lost = 0;
    if (!gp::traced(sched) || !gp::traced(sched)->recording) {
        return 0;
    }
    const gp::run & run = *gp::traced(sched)->recording;
    std::copy_n(run.events.begin(), std::min(n, run.events.size()), events);
    *lost = run.lost;
    return run.events.size();
}

int32_t gp_run_computes(ggml_backend_sched_t sched) {
    return gp::traced(sched) && gp::traced(sched)->recording ? gp::traced(sched)->recording->computes : 0;
}

} // extern "C"

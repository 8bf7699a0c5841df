// What the instrumented copy of ggml-backend.cpp writes to the record (record_file.h). Included by sched_trace.cpp, last.
//
// A plan is read, which asks each backend about each node, only if its graph was not planned before: `fingerprint` is
// over all that a scheduler looks at, and is found in a tenth of the time of planning. Without a record each hook costs
// one test of a flag.
#pragma once

#include "record_file.h"

#include <exception>

namespace gp {

struct sched_record {
    uint64_t generation = 0; // of the record that the numbers are of
    uint32_t number     = 0;
    uint64_t n_plannings = 0, n_computes = 0;
    int32_t  plan       = -1; // the plan that the scheduler holds
    int32_t  layout     = -1; // the plan in whose layout graphs get their memory
    uint64_t n_layouts  = 0;

    // A layout that was made since the last call was made for the plan that the scheduler holds.
    void look_at_layout(ggml_backend_sched_t sched) {
        const uint64_t n = gp_layout_count(sched->galloc);
        layout    = n == n_layouts ? layout : plan;
        n_layouts = n;
    }
    std::unordered_map<uint64_t, int32_t> known; // fingerprint, plan
};

// Hashes what planning depends on. Tensors are told apart by their place in the graph, since addresses change.
class fingerprinting {
    const ggml_cgraph *  graph;
    uint64_t             hash = 1469598103934665603u;
    std::vector<int32_t> place; // by slot of the graph's hash set
    std::vector<ggml_backend_buffer_t> buffers;

    void add(uint64_t value) {
        hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    template <class T> void add_all(const T * values, size_t n) {
        uint64_t words[16];
        static_assert(sizeof(T) % 4 == 0, "whole words");
        memcpy(words, values, n * sizeof(T));
        for (size_t i = 0; i < n * sizeof(T) / 8; i++) {
            add(words[i]);
        }
    }
    void add_ref(const ggml_tensor * t) {
        if (t == nullptr) {
            return;
        }
        const size_t slot = place.empty() ? GGML_HASHSET_FULL : ggml_hash_find(&graph->visited_hash_set, t);
        const bool in_graph = slot != GGML_HASHSET_FULL && ggml_bitset_get(graph->visited_hash_set.used, slot);
        add(in_graph ? 1 + (uint64_t) place[slot] : (uint64_t) (uintptr_t) t);
        if (!in_graph) {
            add_buffer(t);
        }
    }
    void add_buffer(const ggml_tensor * t) {
        if (t->buffer == nullptr) {
            return add(t->data != nullptr);
        }
        const auto found = std::find(buffers.begin(), buffers.end(), t->buffer);
        add(2 + (uint64_t) (found - buffers.begin()));
        if (found == buffers.end()) {
            buffers.push_back(t->buffer);
            add((uint64_t) (uintptr_t) ggml_backend_buffer_get_type(t->buffer));
        }
        add(ggml_backend_buffer_get_usage(t->buffer));
    }
    void note_place(const ggml_tensor * t, int32_t i) {
        const size_t slot = ggml_hash_find(&graph->visited_hash_set, t);
        if (slot != GGML_HASHSET_FULL) {
            place[slot] = i;
        }
    }
    void add_tensor(ggml_backend_sched_t sched, const ggml_tensor * t) {
        static_assert(sizeof(t->op_params) <= 128 && sizeof(t->ne) <= 128, "room in add_all");
        add((uint64_t) t->op << 40 ^ (uint64_t) t->type << 32 ^ (uint32_t) t->flags);
        add_all(t->ne, GGML_MAX_DIMS);
        add_all(t->nb, GGML_MAX_DIMS);
        add_all(t->op_params, sizeof(t->op_params) / sizeof(t->op_params[0]));
        add(t->view_offs);
        add_ref(t->view_src);
        for (int j = 0; j < GGML_MAX_SRC && t->src[j] != nullptr; j++) {
            add_ref(t->src[j]);
        }
        add_buffer(t);
        add((uint64_t) (int64_t) slot_backend(sched, t)); // a pin, or what an earlier plan left
        const size_t length = strnlen(t->name, sizeof(t->name));
        for (size_t i = 0; i < length; i += 8) {
            uint64_t word = 0;
            memcpy(&word, t->name + i, std::min<size_t>(8, length - i));
            add(word);
        }
    }

  public:
    explicit fingerprinting(const ggml_cgraph * graph) : graph(graph) {}

    uint64_t operator()(ggml_backend_sched_t sched) {
        place.assign(graph->visited_hash_set.size, -1);
        for (int i = 0; i < graph->n_leafs && !place.empty(); i++) {
            note_place(graph->leafs[i], graph->n_nodes + i);
        }
        for (int i = 0; i < graph->n_nodes && !place.empty(); i++) {
            note_place(graph->nodes[i], i);
        }
        add((uint64_t) graph->n_nodes << 32 ^ (uint64_t) graph->n_leafs);
        add((uint64_t) sched->cur_copy << 1 ^ (uint64_t) sched->op_offload);
        for (int i = 0; i < graph->n_nodes; i++) {
            add_tensor(sched, graph->nodes[i]);
        }
        for (int i = 0; i < graph->n_leafs; i++) {
            add_tensor(sched, graph->leafs[i]);
        }
        return hash;
    }
};

GP_COLD static sched_record & recorded_of(ggml_backend_sched_t sched) {
    trace * tr = begin(sched);
    if (!tr->recorded) {
        tr->recorded.reset(new sched_record());
    }
    sched_record & r = *tr->recorded;
    if (r.generation != record_generation()) {
        std::string backends;
        for (int b = 0; b < sched->n_backends; b++) {
            ggml_backend_dev_t dev = ggml_backend_get_device(sched->backends[b]);
            ggml_backend_dev_props props = {};
            if (dev != nullptr) {
                ggml_backend_dev_get_props(dev, &props);
            }
            backends += std::string(b ? "," : "") + "{\"name\":" + json_text(ggml_backend_name(sched->backends[b])) +
                ",\"device\":" + json_text(dev ? ggml_backend_dev_name(dev) : "") +
                ",\"description\":" + json_text(dev && props.description ? props.description : "") +
                ",\"async\":" + (props.caps.async ? "true" : "false") +
                ",\"memory\":" + std::to_string(props.memory_total) + "}";
        }
        r = sched_record();
        r.generation = record_generation();
        r.number = record_scheduler(sched, "\"backends\":[" + backends + "],\"n_copies\":" + std::to_string(sched->n_copies) +
            ",\"op_offload\":" + (sched->op_offload ? "true" : "false") +
            ",\"hash_set_size\":" + std::to_string(sched->hash_set.size));
    }
    if (record_times() && !running(sched)) {
        gp_run_start(sched, false, SIZE_MAX);
    }
    return r;
}

static uint64_t this_thread() {
    static thread_local char here;
    return (uint64_t) (uintptr_t) &here;
}

// What differs each time is not written: addresses, and the size of the compute buffers, which grow from plan to plan.
static void without_addresses(gp_plan * plan) {
    for (int i = 0; i < plan->n_tensors; i++) {
        plan->tensors[i].addr = plan->tensors[i].data = 0;
    }
    for (int i = 0; i < plan->n_buffers; i++) {
        plan->buffers[i].addr = 0;
    }
    for (int i = 0; i < plan->n_backends; i++) {
        plan->backends[i].gallocr_size = 0;
    }
}

static int32_t write_plan(sched_record & r, gp_plan * plan) {
    without_addresses(plan);
    std::string why;
    const int32_t number = record_plan(*plan, r.number, this_thread(), r.plan, why);
    if (!why.empty()) {
        uint64_t bytes = 0;
        for (int i = 0; i < plan->n_inputs; i++) {
            bytes += plan->tensors[plan->inputs[i].tensor].nbytes;
        }
        char text[256];
        snprintf(text, sizeof(text), "scheduler %u, plan %d: %d node%s, %d split%s, %d cop%s (%.1f KiB); ", r.number, number, plan->n_nodes,
            plan->n_nodes == 1 ? "" : "s",
            plan->n_splits, plan->n_splits == 1 ? "" : "s", plan->n_inputs, plan->n_inputs == 1 ? "y" : "ies", bytes / 1024.0);
        const std::string than = r.plan < 0 ? "the scheduler's " : "unlike plan " + std::to_string(r.plan) + ": ";
        record_line(text + than + why);
    }
    return number;
}

// A call of split_graph.
struct planning {
    ggml_backend_sched_t sched  = nullptr;
    sched_record *           to     = nullptr;
    uint64_t             key    = 0;
    int32_t              known  = -2; // -1: was left out
    int                  unwinding = 0;

    planning(ggml_backend_sched_t sched, const ggml_cgraph * graph) {
        if (record_on() && !(traced(sched) && traced(sched)->shadow)) {
            begin_planning(sched, graph);
        }
    }
    GP_COLD void begin_planning(ggml_backend_sched_t s, const ggml_cgraph * graph) {
        sched_record & r = recorded_of(s);
        r.look_at_layout(s);
        if (!record_looks(r.n_plannings++)) {
            r.plan = -1;
            record_left_out();
            return;
        }
        sched = s;
        to    = &r;
        key   = fingerprinting(graph)(s);
        unwinding = std::uncaught_exceptions();
        const auto found = r.known.find(key);
        known = found == r.known.end() ? -2 : found->second;
#ifdef GP_RECORDER
        traced(s)->quiet = known != -2 && !s->debug;
#endif
    }
    ~planning() noexcept(false) {
        if (to != nullptr && std::uncaught_exceptions() == unwinding) {
            end_planning();
        }
    }
    GP_COLD void end_planning() {
        traced(sched)->quiet = false;
        if (known == -2) {
            gp_plan * plan = read_plan(sched);
            known = plan == nullptr ? -1 : write_plan(*to, plan);
            gp_plan_free(plan);
            to->known.emplace(key, known);
        } else if (known == -1) {
            record_left_out();
        }
        to->plan = known;
        record_seen(to->number, known, 0);
    }
};

// The scheduler's state if it is being recorded.
static sched_record * recorded_now(ggml_backend_sched_t sched) {
    trace * tr = traced(sched);
    const bool on = record_on() && tr && tr->recorded && tr->recorded->generation == record_generation();
    return on ? tr->recorded.get() : nullptr;
}

static void record_allocated(ggml_backend_sched_t sched, const gp_realloc_record & r) {
    sched_record * to = recorded_now(sched);
    if (to == nullptr) {
        return;
    }
    to->look_at_layout(sched);
    record_seen(to->number, to->plan, 1, to->layout);
    if (r.kind == GP_REALLOC_NONE) {
        return;
    }
    record_realloc(to->number, to->plan, r);
    char text[320];
    const char * than = r.kind == GP_REALLOC_BACKEND ? "moved to another backend's memory" : "needs more memory than it had";
    if (to->plan < 0) {
        return;
    }
    if (r.have == 0 && (r.kind == GP_REALLOC_NODES || r.kind == GP_REALLOC_LEAFS)) {
        return; // the first time
    }
    if (r.kind == GP_REALLOC_NODES || r.kind == GP_REALLOC_LEAFS) {
        snprintf(text, sizeof(text), "scheduler %u, plan %d: memory laid out again: %llu %s, not %llu", to->number, to->plan,
            (unsigned long long) r.need, r.kind == GP_REALLOC_NODES ? "nodes" : "leafs", (unsigned long long) r.have);
    } else {
        snprintf(text, sizeof(text), "scheduler %u, plan %d: memory laid out again: '%s' %s", to->number, to->plan, r.tensor, than);
    }
    record_line(text);
}

// A scheduler that planned its graph before the record began, or before a fork, and computes it now.
GP_COLD static sched_record * adopted(ggml_backend_sched_t sched) {
    trace * tr = traced(sched);
    if (tr == nullptr || tr->shadow) {
        return nullptr;
    }
    sched_record & r = recorded_of(sched);
#ifndef GP_RECORDER // which notes nothing about plans that it knows
    gp_plan * plan = read_plan(sched);
    if (plan != nullptr) {
        r.plan = write_plan(r, plan);
        gp_plan_free(plan);
        record_seen(r.number, r.plan, 1);
        return &r;
    }
#endif
    record_left_out();
    return &r;
}

// A call of compute_splits. Opened before the events, closed after the last.
struct computing {
    sched_record * to = nullptr;
    ggml_backend_sched_t sched = nullptr;

    explicit computing(ggml_backend_sched_t s) {
        if (record_on()) {
            sched = s;
            to    = recorded_now(s);
            if (to == nullptr) {
                to = adopted(s);
            }
            if (to != nullptr) {
                record_seen(to->number, to->plan, 2);
                if (run * r = traced(s)->recording.get()) {
                    r->on = record_times() && record_looks(to->n_computes++);
                }
            }
        }
    }
    ~computing() {
        run * r = to && record_times() ? running(sched) : nullptr;
        if (r != nullptr) {
            record_events(to->number, to->plan, r->computes - 1, r->events, r->lost);
            r->copying = -1;
            r->lost    = 0;
        }
    }
};

static void record_freed(ggml_backend_sched_t sched) {
    if (record_on()) {
        record_forget(sched);
    }
}

} // namespace gp

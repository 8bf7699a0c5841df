// Functions that the instrumented copy of ggml-backend.cpp calls while it plans (vendor/instrument.py adds the calls).
// They keep the causes of each scheduler, and remember what planning changes in a graph.
//
//   SET_CAUSE / GET_CAUSE         upstream's own macros, implemented
//   GP_SPLIT_BEGIN(sched, graph)  split_graph starts: remember what it is about to change in the graph
//   GP_STAGE(sched, graph, code)  a pass or sweep starts: note the assignment that the last one left
//   GP_REWIRE(sched, node, j)     node->src[j] is about to become a copy
//   GP_RESET / GP_FREE            the hash set is cleared / the scheduler is freed
//   GP_ALLOC_BEGIN(sched)         the planned graph is about to get memory
//   GP_ALLOCATED(sched)           the planned graph has memory; always true
//   gp::planning, gp::computing   around split_graph and compute_splits: the process's record (record_hooks.h)
//   GP_ALLOC_DEPS(sched, deps)    tensors that backends keep allocated for longer (order_hooks.h)
// With tracing off each costs one test of a pointer.
#pragma once

#include "pin_hooks.h"
#include "alloc_hooks.h"
#include "layout_hooks.h"
#include "reach.h"
#include "view_place.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// Kept out of upstream's loops, which should cost the same as without us.
#if defined(__GNUC__)
#define GP_COLD __attribute__((noinline, cold))
#else
#define GP_COLD
#endif

namespace gp {

// Some releases lack it; -1 in those releases.
template <class S> static auto inputs_capacity_of(const S * s, int) -> decltype(s->inputs_capacity) { return s->inputs_capacity; }
template <class S> static int inputs_capacity_of(const S *, long) { return -1; }

struct cause {
    const char * fmt   = nullptr; // a literal of upstream's, formatted only when it is read
    int          arg   = 0;
    int32_t      stage = 0;

    void format(char * out, size_t size) const {
        if (fmt == nullptr) {
            out[0] = '\0';
            return;
        }
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
#endif
        snprintf(out, size, fmt, arg);
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
    }
};

struct rewired {
    ggml_tensor * node;
    int           j;
    ggml_tensor * src;
};

struct run;          // run_hooks.h
struct sched_record; // record_hooks.h

struct trace {
    int32_t             stage = GP_STAGE_USER;
    std::vector<cause>  causes; // by hash slot, of the size of the hash set
    std::unordered_map<const ggml_tensor *, cause> copies; // tensors without a slot: the scheduler's copies
    std::unordered_map<ggml_tensor *, int32_t>     pins;   // by set_tensor_backend since the last reset
    // Pins that the last reset dropped and that were not made again, with the tensor's name, as addresses are reused.
    std::unordered_map<const ggml_tensor *, std::pair<int32_t, std::string>> dropped, pin_names;

    // the graph of the last split_graph, as the user built it
    ggml_cgraph *              graph = nullptr;
    std::vector<ggml_tensor *> order;
    std::vector<int32_t>       node_flags;
    std::vector<int32_t>       leaf_flags;
    std::vector<ggml_tensor *> made_outputs; // inputs that serve as their own copy, which the scheduler marks as outputs
    int32_t                    left_backend = 0; // backend of split 0 in the last plan: a graph of views keeps it
    std::vector<int32_t>       capacities; // of the splits' inputs, in releases that keep them from plan to plan
    std::vector<rewired>       rewires;
    std::vector<std::pair<const ggml_tensor *, const ggml_tensor *>> alloc_deps; // tensor, and node until which it is kept
    std::string                unreached; // why the allocated graph cannot be computed
    std::vector<gp_memory>     unallocated; // nodes and leafs that the allocator would give memory or a buffer
    std::vector<gp_memory>     lent; // the same, once it has: a plan alone neither gives nor takes memory

    std::vector<int32_t>       passes; // [GP_N_STAGES][hash set], hv_tensor_backend_ids after each stage
    int                        n_passes = 0;
    uint64_t                   n_plans  = 0;
    bool                       has_memory = false; // whether the planned graph was given any
    int32_t                    prev_n_nodes = 0, prev_n_leafs = 0; // of sched->graph, as the last plan left it

    std::deque<gp_realloc_record> reallocs; // the newest MAX_REALLOCS
    size_t                        n_reallocs = 0;
    gp_realloc_record             realloc = {}; // of the allocation in progress

    std::shared_ptr<run>          recording;    // the last recording of a run

    std::shared_ptr<sched_record> recorded;     // what the process's record knows of this scheduler
    bool                          quiet  = false; // the record knows the plan that is being made: nothing is noted
    bool                          shadow = false; // of gp_sched_plan: no scheduler of the program
};

// A scheduler's trace; NULL without one.
#ifdef GP_RECORDER
trace *& traced(ggml_backend_sched_t sched); // below: the struct of a program's own ggml-base has no room for it
#else
static inline trace *& traced(ggml_backend_sched_t sched) {
    return sched->trace;
}
#endif

static trace * begin(ggml_backend_sched_t sched) {
#ifdef GP_RECORDER // the program's own ggml-base may have freed a scheduler, and another is in its place
    if (traced(sched) != nullptr && traced(sched)->causes.size() != sched->hash_set.size) {
        delete traced(sched);
        traced(sched) = nullptr;
    }
#endif
    if (traced(sched) == nullptr) {
        traced(sched) = new trace();
        traced(sched)->causes.resize(sched->hash_set.size);
        gp_layout_watch(sched->galloc);
    }
    return traced(sched);
}

// A tensor's backend; -1 if it has no slot. Upstream's macros would insert a slot.
static int32_t slot_backend(ggml_backend_sched_t sched, const ggml_tensor * t) {
    const size_t id = ggml_hash_find(&sched->hash_set, t);
    return id != GGML_HASHSET_FULL && ggml_bitset_get(sched->hash_set.used, id) ? sched->hv_tensor_backend_ids[id] : -1;
}

// Copies are asked first: upstream's debug print, of a program that is recorded, gives the copies that it meets a slot.
static cause * find_cause(ggml_backend_sched_t sched, const ggml_tensor * t) {
    const auto copy = traced(sched)->copies.find(t);
    if (copy != traced(sched)->copies.end()) {
        return &copy->second;
    }
    const size_t id = ggml_hash_find(&sched->hash_set, t);
    return id != GGML_HASHSET_FULL && ggml_bitset_get(sched->hash_set.used, id) ? &traced(sched)->causes[id] : nullptr;
}

GP_COLD static void set_cause(ggml_backend_sched_t sched, ggml_tensor * t, const char * fmt, int arg = 0) {
    trace * tr = begin(sched);
    cause * c  = find_cause(sched, t);
    if (c == nullptr) {
        c = &tr->copies[t]; // never insert into the hash set: users can reach its size limit
    }
    if (fmt[0] == 'u') { // usr: pass 3 may move a pinned node and overwrite its cause, so the pin itself is kept
        tr->pins[t] = sched->hv_tensor_backend_ids[ggml_hash_find(&sched->hash_set, t)];
        tr->pin_names[t] = { tr->pins[t], t->name };
        tr->dropped.erase(t);
        *c = { fmt, arg, GP_STAGE_USER };
    } else if (fmt[0] != '6' || c->fmt == nullptr || tr->copies.count(t)) {
        // Pass 6, which comes after upstream's print, says 6.cpy also of an input that is its own current copy. That
        // does not say why the input is where it is.
        *c = { fmt, arg, tr->stage };
    }
}

// With upstream's debug print on, split_begin starts the trace, but pins come earlier.
static inline bool wants_cause(ggml_backend_sched_t sched, const char * fmt) {
    return __builtin_expect(traced(sched) != nullptr && (!traced(sched)->quiet || fmt[0] == 'u'), 0) || (fmt[0] == 'u' && sched->debug);
}
static inline bool wants_cause(ggml_backend_sched_t sched, const char * fmt, int) {
    return wants_cause(sched, fmt);
}

static const char * get_cause(ggml_backend_sched_t sched, const ggml_tensor * t) {
    static thread_local char text[4][16]; // the debug print asks once per printf argument
    static thread_local int  next = 0;
    char * out = text[next++ % 4];
    const cause * c = traced(sched) ? find_cause(sched, t) : nullptr;
    (c ? *c : cause{}).format(out, sizeof(text[0]));
    return out;
}

// A view of allocated memory has data but no buffer until the allocator gives it one. If it kept the buffer, a view of
// a weight would count as a weight in the next plan.
static void note_memory(trace * tr, ggml_tensor * t) {
    if (t->data == nullptr || t->buffer == nullptr) {
        tr->unallocated.push_back({ t, t->data, t->buffer });
    }
}

static void note_output(ggml_backend_sched_t sched, ggml_tensor * t) {
    if (sched->n_copies > 1 && (t->flags & (GGML_TENSOR_FLAG_INPUT | GGML_TENSOR_FLAG_OUTPUT)) == GGML_TENSOR_FLAG_INPUT) {
        traced(sched)->made_outputs.push_back(t);
    }
}

GP_COLD static void split_begin(ggml_backend_sched_t sched, ggml_cgraph * graph) {
#ifndef GP_RECORDER // which changes nothing
    gp_point_views(graph->leafs, graph->n_leafs);
    gp_point_views(graph->nodes, graph->n_nodes);
#endif
    trace * tr = begin(sched);
    tr->stage  = GP_STAGE_PASS_1;
    tr->graph  = graph;
    tr->order.assign(graph->nodes, graph->nodes + graph->n_nodes);
    tr->node_flags.clear();
    tr->leaf_flags.clear();
    tr->made_outputs.clear();
    tr->unallocated.clear();
    tr->lent.clear();
    tr->capacities.clear();
    tr->left_backend = sched->splits[0].backend_id;
    for (int i = 0; i < sched->splits_capacity && inputs_capacity_of(sched->splits, 0) >= 0; i++) {
        tr->capacities.push_back(inputs_capacity_of(&sched->splits[i], 0));
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        tr->leaf_flags.push_back(graph->leafs[i]->flags);
        note_output(sched, graph->leafs[i]);
        note_memory(tr, graph->leafs[i]);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        tr->node_flags.push_back(graph->nodes[i]->flags);
        note_output(sched, graph->nodes[i]);
        note_memory(tr, graph->nodes[i]);
    }
    tr->rewires.clear();
    tr->alloc_deps.clear();
    tr->unreached.clear();
    tr->copies.clear();
    tr->n_passes = 0;
    tr->n_plans++;
    tr->has_memory = false;
}

GP_COLD static void enter_stage(ggml_backend_sched_t sched, int32_t code) {
    trace * tr = traced(sched);
    tr->stage  = code;
    if (code == GP_STAGE_PASS_5) { // after it, the last plan's ids become the prev_ ids
        tr->prev_n_nodes = sched->graph.n_nodes;
        tr->prev_n_leafs = sched->graph.n_leafs;
    }
    if (code == GP_STAGE_GPU_DOWN || tr->n_passes == GP_N_STAGES) {
        return; // directly follows GP_STAGE_PASS_2: nothing was assigned in between
    }
    const size_t n = sched->hash_set.size;
    tr->passes.resize(GP_N_STAGES * n); // once
    std::copy(sched->hv_tensor_backend_ids, sched->hv_tensor_backend_ids + n, tr->passes.data() + tr->n_passes++ * n);
}

static void reset(ggml_backend_sched_t sched) {
    std::fill(traced(sched)->causes.begin(), traced(sched)->causes.end(), cause{});
    traced(sched)->copies.clear();
    if (!traced(sched)->pins.empty()) {
        traced(sched)->dropped = std::move(traced(sched)->pin_names);
    }
    traced(sched)->pins.clear();
    traced(sched)->pin_names.clear();
}

static void restore(trace * tr) {
    if (tr->graph == nullptr) {
        return;
    }
    for (auto it = tr->rewires.rbegin(); it != tr->rewires.rend(); ++it) {
        it->node->src[it->j] = it->src;
    }
    // Unchanged entries are not written, because other threads may read them.
    for (size_t i = 0; i < tr->order.size(); i++) {
        if (tr->graph->nodes[i] != tr->order[i]) {
            tr->graph->nodes[i] = tr->order[i];
        }
    }
    // The other flags belong to the user, who may have set some while the graph was lent.
    for (ggml_tensor * input : tr->made_outputs) {
        input->flags &= ~GGML_TENSOR_FLAG_OUTPUT;
    }
    // Lent memory goes back to the scheduler. A node that kept its address would look pre-allocated to the next plan,
    // which would leave it where it is (1.dst).
    gp_lock_tensors();
    for (const gp_memory & m : tr->lent) {
        m.t->data   = m.data;
        m.t->buffer = m.buffer;
    }
    gp_unlock_tensors();
    tr->graph = nullptr;
    tr->rewires.clear();
}

static constexpr size_t MAX_REALLOCS = 256;

static void buffer_sizes(ggml_backend_sched_t sched, uint64_t * sizes) {
    for (int b = 0; b < sched->n_backends; b++) {
        sizes[b] = ggml_gallocr_get_buffer_size(sched->galloc, b);
    }
}

// Notes the first tensor whose backend has another buffer type than the last time. Returns whether there is one.
static bool moved(ggml_backend_sched_t sched, int n, ggml_tensor ** tensors, const int * ids, const int * prev, gp_realloc_record & r) {
    for (int i = 0; i < n; i++) {
        // a leaf that no node reads may have had no backend
        const auto buft = [sched](int id) { return id < 0 ? nullptr : sched->bufts[id]; };
        if (ids[i] != prev[i] && buft(ids[i]) != buft(prev[i])) {
            r.kind = GP_REALLOC_BACKEND;
            r.need = ids[i];
            r.have = prev[i];
            snprintf(r.tensor, sizeof(r.tensor), "%s", tensors[i]->name);
            return true;
        }
    }
    return false;
}

static void alloc_begin(ggml_backend_sched_t sched) {
    if (traced(sched)->lent.empty()) {
        traced(sched)->lent.swap(traced(sched)->unallocated);
    }
    const ggml_cgraph & g = sched->graph;
    gp_realloc_record & r = traced(sched)->realloc = {};
    moved(sched, g.n_nodes, g.nodes, sched->node_backend_ids, sched->prev_node_backend_ids, r) ||
    moved(sched, g.n_leafs, g.leafs, sched->leaf_backend_ids, sched->prev_leaf_backend_ids, r);
    buffer_sizes(sched, r.before);
    gp_alloc_note(GP_REALLOC_NONE, nullptr, nullptr, -1, 0, 0);
}

// Why the allocated graph cannot be computed: a node's backend cannot reach its memory, or its write would be lost in a
// copy. Empty if it can.
GP_COLD static std::string unreached_of(ggml_backend_sched_t sched) {
    std::vector<std::pair<ggml_backend_buffer_type_t, uint32_t>> known; // bits: the backends that reach the type
    const auto reachers = [&](ggml_backend_buffer_type_t buft) {
        for (const auto & one : known) {
            if (one.first == buft) {
                return one.second;
            }
        }
        uint32_t bits = 0;
        for (int b = 0; b < sched->n_backends; b++) {
            bits |= (uint32_t) ggml_backend_supports_buft(sched->backends[b], buft) << b;
        }
        known.push_back({ buft, bits });
        return bits;
    };
    for (int i = 0; i < sched->n_splits; i++) {
        const ggml_backend_sched_split & split = sched->splits[i];
        const auto reaches = [&](ggml_backend_buffer_type_t buft) { return reachers(buft) >> split.backend_id & 1; };
        for (int j = 0; j < split.graph.n_nodes; j++) {
            const ggml_tensor * node = split.graph.nodes[j];
            if (const ggml_tensor * t = unreached(node, reaches)) {
                return unreached_text(node, t, ggml_backend_name(sched->backends[split.backend_id]));
            }
        }
    }
    for (const rewired & w : traced(sched)->rewires) {
        if (writes_source(w.node->op, w.j)) {
            return std::string("node '") + w.node->name + "' (" + ggml_op_desc(w.node) + ") updates '" + w.src->name +
                "' in a copy, '" + w.node->src[w.j]->name + "', which is thrown away: the update is lost";
        }
    }
    return {};
}

static void check_reach(ggml_backend_sched_t sched) {
    if (__builtin_expect(traced(sched) != nullptr && !traced(sched)->unreached.empty(), 0)) {
        GGML_ABORT("%s", traced(sched)->unreached.c_str());
    }
}

static void record_allocated(ggml_backend_sched_t sched, const gp_realloc_record & r); // record_hooks.h
static void record_freed(ggml_backend_sched_t sched);

static bool allocated(ggml_backend_sched_t sched) {
    trace * tr = traced(sched);
#ifndef GP_RECORDER
    if (gp_reach_foreign()) {
        tr->unreached = unreached_of(sched);
    }
#endif
    tr->has_memory = true;
    gp_realloc_record r = tr->realloc;
    if (r.kind == GP_REALLOC_NONE) {
        r = gp_alloc_note_realloc;
        std::copy(std::begin(tr->realloc.before), std::end(tr->realloc.before), r.before);
    }
    if (r.kind != GP_REALLOC_NONE) {
        buffer_sizes(sched, r.after);
        tr->n_reallocs++;
        tr->reallocs.push_back(r);
        if (tr->reallocs.size() > MAX_REALLOCS) {
            tr->reallocs.pop_front();
        }
    }
    record_allocated(sched, r);
    return true;
}

#ifdef GP_RECORDER
// A process may have the program's own ggml-base, too, and call either: so schedulers are upstream's structs, and their
// traces are kept beside them.
struct traces {
    std::mutex                                       mutex;
    std::unordered_map<ggml_backend_sched_t, trace *> all; // a reference to a value stays valid
    std::atomic<uint64_t>                            epoch{1}; // changes when one is erased
};

static traces & kept_traces() {
    static traces & it = *new traces(); // threads may outlive static objects
    return it;
}

trace *& traced(ggml_backend_sched_t sched) {
    struct found { ggml_backend_sched_t sched; trace ** at; uint64_t epoch; };
    static thread_local found last = { nullptr, nullptr, 0 };
    traces & kept = kept_traces();
    const uint64_t epoch = kept.epoch.load(std::memory_order_acquire);
    if (last.sched != sched || last.epoch != epoch) {
        std::lock_guard<std::mutex> guard(kept.mutex);
        last = { sched, &kept.all[sched], epoch };
    }
    return *last.at;
}
#endif

static void forget(ggml_backend_sched_t sched) {
    record_freed(sched);
    delete traced(sched);
    traced(sched) = nullptr;
#ifdef GP_RECORDER
    traces & kept = kept_traces();
    std::lock_guard<std::mutex> guard(kept.mutex);
    kept.all.erase(sched);
    kept.epoch++;
#endif
}

} // namespace gp

extern "C" int gp_sched_lent(ggml_backend_sched_t sched, ggml_tensor ** tensors) {
    const gp::trace * tr = gp::traced(sched);
    if (tr == nullptr || tr->graph == nullptr) {
        return 0;
    }
    if (tensors != nullptr) {
        for (const gp_memory & m : tr->lent) {
            *tensors++ = m.t;
        }
        for (const gp::rewired & w : tr->rewires) {
            *tensors++ = w.node;
        }
    }
    return (int) (tr->lent.size() + tr->rewires.size());
}

#define GP_KNOWN(sched)                (__builtin_expect(gp::traced(sched) != nullptr, 0))
#define GP_TRACING(sched)              (GP_KNOWN(sched) && !gp::traced(sched)->quiet)
#define GP_NEW(sched)                  do { if (gp::record_on()) { gp::begin(sched); } } while (0) // its pins come before its first plan
#define SET_CAUSE(node, ...)           do { if (gp::wants_cause(sched, __VA_ARGS__)) { gp::set_cause(sched, node, __VA_ARGS__); } } while (0)
#define GET_CAUSE(node)                gp::get_cause(sched, node)
#define GP_SPLIT_BEGIN(sched, graph)   do { if (GP_TRACING(sched) || sched->debug) { gp::split_begin(sched, graph); } } while (0)
#define GP_STAGE(sched, graph, code)   do { if (GP_TRACING(sched)) { gp::enter_stage(sched, code); } } while (0)
#define GP_REWIRE(sched, node, j)      do { if (GP_TRACING(sched)) { gp::traced(sched)->rewires.push_back({ node, j, (node)->src[j] }); } } while (0)
#define GP_RESET(sched)                do { if (GP_KNOWN(sched)) { gp::reset(sched); } } while (0)
#define GP_FREE(sched)                 gp::forget(sched)
#define GP_ALLOC_BEGIN(sched)          do { if (GP_KNOWN(sched)) { gp::alloc_begin(sched); } } while (0)
#define GP_ALLOCATED(sched)            (!GP_KNOWN(sched) || gp::allocated(sched))

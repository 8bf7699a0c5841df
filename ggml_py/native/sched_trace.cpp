// Included by the instrumented copy of ggml-backend.cpp at the place of its `#if 0 ... SET_CAUSE` block,
// where the scheduler's private structs and its hash_id() macros are visible.
//
// Hooks (the edits of vendor/instrument.py call them):
//   SET_CAUSE / GET_CAUSE         upstream's own macros, filled in
//   GP_SPLIT_BEGIN(sched, graph)  split_graph starts: remember what it is about to change in the graph
//   GP_STAGE(sched, graph, code)  a pass or sweep starts: note the assignment that the last one left
//   GP_REWIRE(sched, node, j)     node->src[j] is about to become a copy
//   GP_RESET / GP_FREE            the hash set is cleared / the scheduler goes
// With tracing off each costs one test of a pointer.

#include "sched_trace.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace gp {

// Where in split_graph a cause was set. 2.sup is set in five places; the stage tells them apart.
enum stage_code : int32_t {
    STAGE_USER = 0, STAGE_1 = 10, STAGE_2 = 20, STAGE_GPU_DOWN = 21, STAGE_GPU_UP = 22,
    STAGE_REST_DOWN = 23, STAGE_REST_UP = 24, STAGE_3 = 30, STAGE_4 = 40, STAGE_5 = 50,
};

struct cause {
    const char * fmt   = nullptr; // a literal of upstream's; formatted only when it is read
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

struct trace {
    int32_t             stage = STAGE_USER;
    std::vector<cause>  causes; // by hash slot, as long as the hash set
    std::unordered_map<const ggml_tensor *, cause> copies; // what has no slot: the scheduler's copies
    std::unordered_map<ggml_tensor *, int32_t>     pins;   // set_tensor_backend since the last reset

    // the graph of the last split_graph, as the user built it
    ggml_cgraph *              graph = nullptr;
    std::vector<ggml_tensor *> order;
    std::vector<int32_t>       leaf_flags;
    std::vector<rewired>       rewires;
    std::vector<ggml_tensor *> unallocated; // nodes and leafs that had no memory of their own

    std::vector<size_t>        slots;  // of the nodes
    std::vector<int32_t>       passes; // [GP_N_STAGES][n_nodes]
    int                        n_passes = 0;
};

static trace * begin(ggml_backend_sched_t sched) {
    if (sched->trace == nullptr) {
        sched->trace = new trace();
        sched->trace->causes.resize(sched->hash_set.size);
    }
    return sched->trace;
}

static cause * find_cause(ggml_backend_sched_t sched, const ggml_tensor * t) {
    const size_t id = ggml_hash_find(&sched->hash_set, t);
    if (id != GGML_HASHSET_FULL && ggml_bitset_get(sched->hash_set.used, id)) {
        return &sched->trace->causes[id];
    }
    auto it = sched->trace->copies.find(t);
    return it == sched->trace->copies.end() ? nullptr : &it->second;
}

static void set_cause(ggml_backend_sched_t sched, ggml_tensor * t, const char * fmt, int arg = 0) {
    trace * tr = begin(sched);
    cause * c  = find_cause(sched, t);
    if (c == nullptr) {
        c = &tr->copies[t]; // never insert into the hash set: its size is a limit that users can hit
    }
    if (fmt[0] == 'u') { // usr: pass 3 may move a pinned node and overwrite its cause, so keep the pin itself
        tr->pins[t] = sched->hv_tensor_backend_ids[ggml_hash_find(&sched->hash_set, t)];
        *c = { fmt, arg, STAGE_USER };
    } else {
        *c = { fmt, arg, tr->stage };
    }
}

static const char * get_cause(ggml_backend_sched_t sched, const ggml_tensor * t) {
    static thread_local char text[4][16]; // the debug print asks once per printf argument
    static thread_local int  next = 0;
    char * out = text[next++ % 4];
    const cause * c = sched->trace ? find_cause(sched, t) : nullptr;
    (c ? *c : cause{}).format(out, sizeof(text[0]));
    return out;
}

static void split_begin(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    trace * tr = begin(sched);
    tr->stage  = STAGE_1;
    tr->graph  = graph;
    tr->order.assign(graph->nodes, graph->nodes + graph->n_nodes);
    tr->leaf_flags.clear();
    tr->unallocated.clear();
    for (int i = 0; i < graph->n_leafs; i++) {
        tr->leaf_flags.push_back(graph->leafs[i]->flags);
        if (graph->leafs[i]->data == nullptr) {
            tr->unallocated.push_back(graph->leafs[i]);
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->data == nullptr) {
            tr->unallocated.push_back(graph->nodes[i]);
        }
    }
    tr->rewires.clear();
    tr->copies.clear();
    tr->slots.clear();
    tr->passes.clear();
    tr->n_passes = 0;
}

static void enter_stage(ggml_backend_sched_t sched, const ggml_cgraph * graph, int32_t code) {
    trace * tr = sched->trace;
    tr->stage  = code;
    if (code == STAGE_GPU_DOWN || tr->n_passes == GP_N_STAGES) {
        return; // follows STAGE_2 at once: nothing was assigned in between
    }
    const size_t n = graph->n_nodes;
    if (tr->slots.empty()) {
        tr->slots.reserve(n);
        for (size_t i = 0; i < n; i++) {
            tr->slots.push_back(ggml_hash_find(&sched->hash_set, graph->nodes[i]));
        }
        tr->passes.resize(GP_N_STAGES * n);
    }
    int32_t * row = tr->passes.data() + tr->n_passes++ * n;
    for (size_t i = 0; i < n; i++) {
        row[i] = sched->hv_tensor_backend_ids[tr->slots[i]];
    }
}

static void reset(ggml_backend_sched_t sched) {
    std::fill(sched->trace->causes.begin(), sched->trace->causes.end(), cause{});
    sched->trace->copies.clear();
    sched->trace->pins.clear();
}

static void restore(trace * tr) {
    if (tr->graph == nullptr) {
        return;
    }
    for (auto it = tr->rewires.rbegin(); it != tr->rewires.rend(); ++it) {
        it->node->src[it->j] = it->src;
    }
    std::copy(tr->order.begin(), tr->order.end(), tr->graph->nodes);
    for (size_t i = 0; i < tr->leaf_flags.size(); i++) {
        tr->graph->leafs[i]->flags = tr->leaf_flags[i];
    }
    // Memory that the scheduler lent goes back to it. A node that kept its address would look pre-allocated
    // to the next plan, which would leave it where it is (1.dst).
    for (ggml_tensor * t : tr->unallocated) {
        t->data   = nullptr;
        t->buffer = nullptr;
    }
    tr->graph = nullptr;
    tr->rewires.clear();
}

} // namespace gp

#define GP_TRACING(sched)              (__builtin_expect((sched)->trace != nullptr, 0))
#define SET_CAUSE(node, ...)           do { if (GP_TRACING(sched) || sched->debug) { gp::set_cause(sched, node, __VA_ARGS__); } } while (0)
#define GET_CAUSE(node)                gp::get_cause(sched, node)
#define GP_SPLIT_BEGIN(sched, graph)   do { if (GP_TRACING(sched) || sched->debug) { gp::split_begin(sched, graph); } } while (0)
#define GP_STAGE(sched, graph, code)   do { if (GP_TRACING(sched)) { gp::enter_stage(sched, graph, code); } } while (0)
#define GP_REWIRE(sched, node, j)      do { if (GP_TRACING(sched)) { (sched)->trace->rewires.push_back({ node, j, (node)->src[j] }); } } while (0)
#define GP_RESET(sched)                do { if (GP_TRACING(sched)) { gp::reset(sched); } } while (0)
#define GP_FREE(sched)                 do { delete (sched)->trace; (sched)->trace = nullptr; } while (0)

namespace gp {

// Fields that some releases lack: -1 there.
#define GP_OPTIONAL_FIELD(field) \
    template <class S> static auto field##_of(const S * s, int) -> decltype((int32_t) s->field) { return (int32_t) s->field; } \
    template <class S> static int32_t field##_of(const S *, long) { return -1; }
GP_OPTIONAL_FIELD(next_copy)
GP_OPTIONAL_FIELD(graph_inputs_capacity)
GP_OPTIONAL_FIELD(debug_realloc)
GP_OPTIONAL_FIELD(debug_graph_size)
GP_OPTIONAL_FIELD(debug_prev_graph_size)
GP_OPTIONAL_FIELD(inputs_capacity)
#undef GP_OPTIONAL_FIELD

template <class S> static auto has_copy_callback(const S * s, int) -> decltype(s->callback_copy, int32_t()) {
    return s->callback_copy != nullptr;
}
template <class S> static int32_t has_copy_callback(const S *, long) {
    return -1;
}

// Numbers the tensors of a planned graph and writes their records.
struct reader {
    ggml_backend_sched_t sched = nullptr;
    ggml_cgraph *        graph = nullptr;
    trace *              tr    = nullptr;

    std::unordered_map<const ggml_tensor *, int32_t>     ids;
    std::vector<const ggml_tensor *>                     tensors;
    std::unordered_map<ggml_backend_buffer_t, int32_t>   buffer_ids;
    std::vector<gp_tensor_record>                        records;
    std::vector<gp_split_record>                         splits;
    std::vector<gp_input_record>                         inputs;
    std::vector<gp_buffer_record>                        buffers;
    std::vector<gp_backend_record>                       backends;
    std::vector<int32_t>                                 leafs;
    std::unordered_set<const ggml_tensor *>              lent; // live in the scheduler's own buffers, if anywhere

    int32_t id_of(const ggml_tensor * t) {
        if (t == nullptr) {
            return -1;
        }
        auto found = ids.emplace(t, (int32_t) tensors.size());
        if (found.second) {
            tensors.push_back(t);
        }
        return found.first->second;
    }

    int32_t buffer_of(const ggml_tensor * t) {
        ggml_backend_buffer_t buf = t->buffer;
        if (buf == nullptr) {
            return -1;
        }
        auto found = buffer_ids.emplace(buf, (int32_t) buffers.size());
        if (found.second) {
            gp_buffer_record r = {};
            r.addr    = (uint64_t) (uintptr_t) buf;
            r.size    = ggml_backend_buffer_get_size(buf);
            r.usage   = ggml_backend_buffer_get_usage(buf);
            r.is_host = ggml_backend_buffer_is_host(buf);
            snprintf(r.buft, sizeof(r.buft), "%s", ggml_backend_buffer_name(buf));
            buffers.push_back(r);
        }
        return found.first->second;
    }

    int32_t slot_backend(const ggml_tensor * t) const { // never inserts
        const size_t id = ggml_hash_find(&sched->hash_set, t);
        return id != GGML_HASHSET_FULL && ggml_bitset_get(sched->hash_set.used, id) ? sched->hv_tensor_backend_ids[id] : -1;
    }

    void fill(int32_t id, int32_t kind) {
        const ggml_tensor * t = tensors[id];
        gp_tensor_record    r = {};
        r.addr      = (uint64_t) (uintptr_t) t;
        r.data      = lent.count(t) ? 0 : (uint64_t) (uintptr_t) t->data;
        r.view_offs = t->view_offs;
        r.nbytes    = ggml_nbytes(t);
        for (int i = 0; i < 4; i++) {
            r.ne[i] = t->ne[i];
            r.nb[i] = t->nb[i];
        }
        static_assert(sizeof(r.op_params) == sizeof(t->op_params), "op_params");
        static_assert(sizeof(r.name) == sizeof(t->name), "name");
        static_assert(GP_MAX_SRC == GGML_MAX_SRC, "src");
        memcpy(r.op_params, t->op_params, sizeof(r.op_params));
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            r.src[j] = r.planned_src[j] = id_of(t->src[j]);
        }
        r.view_src   = id_of(t->view_src);
        r.buffer     = lent.count(t) || kind == GP_KIND_COPY ? -1 : buffer_of(t);
        r.kind       = kind;
        r.type       = t->type;
        r.op         = t->op;
        r.flags      = t->flags;
        r.backend    = slot_backend(t);
        const auto pin = tr->pins.find(const_cast<ggml_tensor *>(t));
        r.pin        = pin == tr->pins.end() ? -1 : pin->second;
        r.copy_of    = -1;
        r.copy_index = -1;
        const size_t pos = ggml_hash_find(&graph->visited_hash_set, t);
        if (pos != GGML_HASHSET_FULL && ggml_bitset_get(graph->visited_hash_set.used, pos)) {
            r.use_count = graph->use_counts[pos];
        }
        if (const cause * c = find_cause(sched, t)) {
            c->format(r.cause, sizeof(r.cause));
            r.stage = c->stage;
        }
        memcpy(r.name, t->name, sizeof(r.name));
        snprintf(r.op_desc, sizeof(r.op_desc), "%s", t->op == GGML_OP_NONE ? "NONE" : ggml_op_desc(t));
        std::fill(r.passes, r.passes + GP_N_STAGES, -1);
        if (kind == GP_KIND_NODE) {
            const size_t n = tr->order.size();
            for (int s = 0; s < tr->n_passes; s++) {
                r.passes[s] = tr->passes[s * n + id];
            }
        }
        records.push_back(r);
    }

    void read_tensors() {
        lent.insert(tr->unallocated.begin(), tr->unallocated.end());
        for (ggml_tensor * node : tr->order) {
            id_of(node);
        }
        for (int i = 0; i < graph->n_leafs; i++) {
            leafs.push_back(id_of(graph->leafs[i]));
        }
        const int32_t n_nodes = (int32_t) tr->order.size();
        const int32_t n_graph = (int32_t) tensors.size();
        // originals of rewired sources get their ids before the copies do
        for (const rewired & w : tr->rewires) {
            id_of(w.src);
        }
        for (int32_t id = 0; id < (int32_t) tensors.size(); id++) {
            fill(id, id < n_nodes ? GP_KIND_NODE : id < n_graph ? GP_KIND_LEAF : GP_KIND_OTHER);
        }
        for (const rewired & w : tr->rewires) {
            records[ids[w.node]].src[w.j] = ids[w.src];
        }
        for (size_t i = 0; i < tr->leaf_flags.size(); i++) {
            records[leafs[i]].flags = tr->leaf_flags[i];
        }
    }

    void read_copies() {
        const size_t per_tensor = (size_t) sched->n_backends * sched->n_copies;
        for (size_t slot = 0; slot < sched->hash_set.size; slot++) {
            if (!ggml_bitset_get(sched->hash_set.used, slot) || sched->hash_set.keys[slot] == nullptr) {
                continue;
            }
            for (size_t k = 0; k < per_tensor; k++) {
                const ggml_tensor * copy = sched->hv_tensor_copies[slot * per_tensor + k];
                if (copy == nullptr || copy == sched->hash_set.keys[slot]) {
                    continue;
                }
                const int32_t id = id_of(copy);
                while (records.size() < tensors.size()) {
                    fill((int32_t) records.size(), GP_KIND_COPY);
                }
                records[id].kind       = GP_KIND_COPY;
                records[id].copy_of    = id_of(sched->hash_set.keys[slot]);
                records[id].copy_index = (int32_t) (k % sched->n_copies);
                records[id].backend    = (int32_t) (k / sched->n_copies);
            }
        }
    }

    void read_splits() {
        for (int i = 0; i < sched->n_splits; i++) {
            const ggml_backend_sched_split & s = sched->splits[i];
            splits.push_back({ s.backend_id, s.i_start, s.i_end, (int32_t) inputs.size(), s.n_inputs, inputs_capacity_of(&s, 0) });
            for (int j = 0; j < s.n_inputs; j++) {
                const size_t slot = ggml_hash_find(&sched->hash_set, s.inputs[j]);
                const size_t per_tensor = (size_t) sched->n_backends * sched->n_copies;
                const ggml_tensor * copy = sched->hv_tensor_copies[slot * per_tensor + s.backend_id * sched->n_copies + sched->cur_copy];
                inputs.push_back({ id_of(s.inputs[j]), id_of(copy) });
            }
        }
    }

    void read_backends() {
        for (int b = 0; b < sched->n_backends; b++) {
            ggml_backend_dev_t dev = ggml_backend_get_device(sched->backends[b]);
            gp_backend_record r = {};
            r.device_type  = dev ? ggml_backend_dev_type(dev) : -1;
            r.buft_is_host = ggml_backend_buft_is_host(sched->bufts[b]);
            r.buft_addr    = (uint64_t) (uintptr_t) sched->bufts[b];
            r.gallocr_size = ggml_gallocr_get_buffer_size(sched->galloc, b);
            snprintf(r.name, sizeof(r.name), "%s", ggml_backend_name(sched->backends[b]));
            snprintf(r.device, sizeof(r.device), "%s", dev ? ggml_backend_dev_name(dev) : "");
            snprintf(r.buft, sizeof(r.buft), "%s", ggml_backend_buft_name(sched->bufts[b]));
            backends.push_back(r);
        }
    }
};

static gp_plan * read_plan(ggml_backend_sched_t sched) {
    trace * tr = sched->trace;
    if (tr == nullptr || tr->graph == nullptr || sched->n_splits == 0) {
        return nullptr;
    }
    reader * r = new reader();
    r->sched = sched;
    r->graph = tr->graph;
    r->tr    = tr;
    r->read_tensors();
    r->read_copies();
    r->read_splits();
    r->read_backends();

    gp_plan * plan   = new gp_plan{};
    plan->n_tensors  = (int32_t) r->records.size();
    plan->n_nodes    = (int32_t) tr->order.size();
    plan->n_leafs    = (int32_t) r->leafs.size();
    plan->n_splits   = (int32_t) r->splits.size();
    plan->n_inputs   = (int32_t) r->inputs.size();
    plan->n_buffers  = (int32_t) r->buffers.size();
    plan->n_backends = (int32_t) r->backends.size();
    plan->n_copies   = sched->n_copies;
    plan->cur_copy   = sched->cur_copy;
    plan->op_offload = sched->op_offload;
    plan->is_alloc   = sched->is_alloc;
    plan->tensors    = r->records.data();
    plan->splits     = r->splits.data();
    plan->inputs     = r->inputs.data();
    plan->buffers    = r->buffers.data();
    plan->backends   = r->backends.data();
    plan->leafs      = r->leafs.data();
    plan->impl       = r;
    return plan;
}

// A scheduler that goes when the scope does, also when ggml aborts and the stack is unwound.
struct shadow {
    ggml_backend_sched_t sched;

    explicit shadow(ggml_backend_sched_t of, size_t graph_size)
        : sched(ggml_backend_sched_new(of->backends, of->bufts, of->n_backends, graph_size, of->n_copies > 1, of->op_offload)) {
        begin(sched);
        sched->debug = of->debug;
    }
    ~shadow() {
        restore(sched->trace);
        ggml_backend_sched_free(sched);
    }
    shadow(const shadow &) = delete;
    shadow & operator=(const shadow &) = delete;
};

} // namespace gp

extern "C" {

void gp_sched_trace(ggml_backend_sched_t sched, bool on) {
    if (on) {
        gp::begin(sched);
    } else {
        GP_FREE(sched);
    }
}

gp_plan * gp_sched_plan(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    // A fresh scheduler each time: some releases plan differently after an earlier plan (UPSTREAM.md), and
    // the caller's own may hold an allocated graph, whose copies live in memory that planning overwrites.
    gp::shadow own(sched, sched->hash_set.size);
    GGML_ASSERT((int) own.sched->hash_set.size >= graph->n_nodes + graph->n_leafs);
    if (sched->trace) {
        for (const auto & pin : sched->trace->pins) {
            ggml_backend_sched_set_tensor_backend(own.sched, pin.first, sched->backends[pin.second]);
        }
    }
    ggml_backend_sched_split_graph(own.sched, graph);
    return gp::read_plan(own.sched);
}

gp_plan * gp_sched_read(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    return sched->trace && sched->trace->graph == graph ? gp::read_plan(sched) : nullptr;
}

void gp_plan_free(gp_plan * plan) {
    if (plan != nullptr) {
        delete (gp::reader *) plan->impl;
        delete plan;
    }
}

void gp_sched_restore(ggml_backend_sched_t sched) {
    if (sched->trace) {
        gp::restore(sched->trace);
    }
}

void gp_sched_forget(ggml_backend_sched_t sched) {
    if (sched->trace) {
        sched->trace->graph = nullptr;
        sched->trace->rewires.clear();
    }
}

void gp_sched_state(ggml_backend_sched_t sched, struct gp_sched_state * state) {
    uint64_t used = 0;
    for (size_t slot = 0; slot < sched->hash_set.size; slot++) {
        used += ggml_bitset_get(sched->hash_set.used, slot) ? 1 : 0;
    }
    *state = {};
    state->is_reset              = sched->is_reset;
    state->is_alloc              = sched->is_alloc;
    state->n_backends            = sched->n_backends;
    state->n_splits              = sched->n_splits;
    state->splits_capacity       = sched->splits_capacity;
    state->n_copies              = sched->n_copies;
    state->cur_copy              = sched->cur_copy;
    state->next_copy             = gp::next_copy_of(sched, 0);
    state->n_graph_inputs        = sched->n_graph_inputs;
    state->graph_inputs_capacity = gp::graph_inputs_capacity_of(sched, 0);
    state->op_offload            = sched->op_offload;
    state->debug                 = sched->debug;
    state->debug_realloc         = gp::debug_realloc_of(sched, 0);
    state->debug_graph_size      = gp::debug_graph_size_of(sched, 0);
    state->debug_prev_graph_size = gp::debug_prev_graph_size_of(sched, 0);
    state->callback_eval         = sched->callback_eval != nullptr;
    state->callback_copy         = gp::has_copy_callback(sched, 0);
    state->n_graph_nodes         = sched->graph.n_nodes;
    state->n_graph_leafs         = sched->graph.n_leafs;
    state->graph_size            = sched->graph.size;
    state->hash_set_size         = sched->hash_set.size;
    state->hash_set_used         = used;
    state->context_buffer_size   = sched->context_buffer_size;
}

size_t gp_sched_slots(ggml_backend_sched_t sched, gp_slot_record * slots, size_t n) {
    const size_t per_tensor = (size_t) sched->n_backends * sched->n_copies;
    size_t count = 0;
    for (size_t slot = 0; slot < sched->hash_set.size; slot++) {
        if (!ggml_bitset_get(sched->hash_set.used, slot)) {
            continue;
        }
        if (count < n) {
            gp_slot_record & r = slots[count];
            r = {};
            r.addr    = (uint64_t) (uintptr_t) sched->hash_set.keys[slot];
            r.slot    = slot;
            r.backend = sched->hv_tensor_backend_ids[slot];
            for (size_t k = 0; k < per_tensor; k++) {
                r.n_copies += sched->hv_tensor_copies[slot * per_tensor + k] != nullptr;
            }
            if (sched->trace) {
                sched->trace->causes[slot].format(r.cause, sizeof(r.cause));
            }
        }
        count++;
    }
    return count;
}

size_t gp_sched_ids(ggml_backend_sched_t sched, int which, int32_t * ids, size_t n) {
    const int * from[4] = { sched->node_backend_ids, sched->prev_node_backend_ids, sched->leaf_backend_ids, sched->prev_leaf_backend_ids };
    GGML_ASSERT(which >= 0 && which < 4);
    const size_t size = which < 2 ? sched->graph.n_nodes : sched->graph.n_leafs;
    std::copy(from[which], from[which] + std::min(n, size), ids);
    return size;
}

void gp_sched_events(ggml_backend_sched_t sched, int32_t * present) {
    for (int b = 0; b < sched->n_backends; b++) {
        for (int c = 0; c < sched->n_copies; c++) {
            present[b * sched->n_copies + c] = sched->events[b][c] != nullptr;
        }
    }
}

} // extern "C"

// Included by the instrumented copy of ggml-backend.cpp in place of its `#if 0 ... SET_CAUSE` block, where the
// scheduler's private structs are visible. Has the hooks, and the readers of sched_trace.h.

#include "sched_trace.h"

#include "sched_fields.h"
#include "sched_hooks.h"
#include "as_built.h"
#include "order_hooks.h"
#include "cpu_read.h"
#include "layout_read.h"
#include "refusals.h"
#include "run_hooks.h"

#include <memory>

// Missing in the oldest releases.
extern "C" __attribute__((weak)) void ggml_gallocr_reserve_n_size(ggml_gallocr_t galloc, ggml_cgraph * graph,
    const int * node_buffer_ids, const int * leaf_buffer_ids, size_t * sizes);

namespace gp {

static uint64_t slots_used(ggml_backend_sched_t sched) {
    uint64_t used = 0;
    for (size_t slot = 0; slot < sched->hash_set.size; slot++) {
        used += ggml_bitset_get(sched->hash_set.used, slot) ? 1 : 0;
    }
    return used;
}

static bool has_slot(ggml_backend_sched_t sched, const ggml_tensor * t) {
    const size_t slot = ggml_hash_find(&sched->hash_set, t);
    return slot != GGML_HASHSET_FULL && ggml_bitset_get(sched->hash_set.used, slot);
}

struct plan_arrays {
#define GP_VECTOR(type, name, tag, differs) std::vector<type> name;
    GP_PLAN_ARRAYS(GP_VECTOR)
#undef GP_VECTOR
};

// Numbers the tensors of a planned graph and writes their records.
struct reader : plan_arrays {
    ggml_backend_sched_t sched = nullptr;
    ggml_cgraph *        graph = nullptr;
    trace *              tr    = nullptr;

    std::unordered_map<const ggml_tensor *, int32_t>     ids;
    std::vector<const ggml_tensor *>                     by_id;
    std::unordered_map<ggml_backend_buffer_t, int32_t>   buffer_ids;
    std::unordered_map<ggml_backend_buffer_type_t, int32_t> buft_ids;

    int32_t id_of(const ggml_tensor * t) {
        if (t == nullptr) {
            return -1;
        }
        auto found = ids.emplace(t, (int32_t) by_id.size());
        if (found.second) {
            by_id.push_back(t);
        }
        return found.first->second;
    }

    // Bit b is set for each backend b for which `f` is true.
    template <class F> int32_t mask(F f) const {
        int32_t bits = 0;
        for (int b = 0; b < sched->n_backends; b++) {
            bits |= (f(sched->backends[b]) ? 1 : 0) << b;
        }
        return bits;
    }

    int32_t buft_of(ggml_backend_buffer_type_t buft) {
        auto found = buft_ids.emplace(buft, (int32_t) bufts.size());
        if (found.second) {
            gp_buft_record r = {};
            r.is_host = ggml_backend_buft_is_host(buft);
            r.readers = mask([buft](ggml_backend_t b) { return ggml_backend_supports_buft(b, buft); });
            snprintf(r.name, sizeof(r.name), "%s", ggml_backend_buft_name(buft));
            bufts.push_back(r);
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
            r.addr  = (uint64_t) (uintptr_t) buf;
            r.size  = ggml_backend_buffer_get_size(buf);
            r.usage = ggml_backend_buffer_get_usage(buf);
            r.buft  = buft_of(ggml_backend_buffer_get_type(buf));
            buffers.push_back(r);
        }
        return found.first->second;
    }

    void fill(int32_t id, int32_t kind) {
        const ggml_tensor * t = by_id[id];
        gp_tensor_record    r = {};
        r.addr      = (uint64_t) (uintptr_t) t;
        r.data      = kind == GP_KIND_COPY ? 0 : (uint64_t) (uintptr_t) t->data;
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
        r.buffer     = kind == GP_KIND_COPY ? -1 : buffer_of(t);
        r.kind       = kind;
        r.type       = t->type;
        r.op         = t->op;
        r.flags      = t->flags;
        r.backend    = slot_backend(sched, t);
        const auto pin = tr->pins.find(const_cast<ggml_tensor *>(t));
        r.pin         = pin == tr->pins.end() ? -1 : pin->second;
        const auto dropped = tr->dropped.find(t);
        r.dropped_pin = dropped == tr->dropped.end() || dropped->second.second != t->name ? -1 : dropped->second.first;
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
        snprintf(r.name, sizeof(r.name), "%s", t->name); // an older, longer name may be left after the NUL
        snprintf(r.op_desc, sizeof(r.op_desc), "%s", t->op == GGML_OP_NONE ? "NONE" : ggml_op_desc(t));
        std::fill(r.passes, r.passes + GP_N_STAGES, -1);
        if (kind == GP_KIND_NODE || kind == GP_KIND_LEAF) {
            const size_t n = sched->hash_set.size, slot = ggml_hash_find(&sched->hash_set, t);
            for (int s = 0; s < tr->n_passes; s++) {
                r.passes[s] = tr->passes[s * n + slot];
            }
        }
        tensors.push_back(r);
    }

    // Reads the tensors of the graph and those that they refer to, as the user built them: without the copies and the
    // memory that planning gave them. The backends are also asked about them in this state.
    void read_tensors() {
        const as_built graph_as_built(tr->rewires, tr->lent); // undone also if a backend's answer is an abort

        for (ggml_tensor * node : tr->order) {
            id_of(node);
        }
        for (int i = 0; i < graph->n_leafs; i++) {
            leafs.push_back(id_of(graph->leafs[i]));
        }
        const size_t n_nodes = tr->order.size(), n_graph = by_id.size();
        for (size_t id = 0; id < by_id.size(); id++) {
            fill((int32_t) id, id < n_nodes ? GP_KIND_NODE : id < n_graph ? GP_KIND_LEAF : GP_KIND_OTHER);
            const ggml_tensor * t = by_id[id];
            tensors[id].supports = mask([t](ggml_backend_t b) { return ggml_backend_supports_op(b, t); });
            if (t->op != GGML_OP_NONE) {
                tensors[id].offload = mask([t](ggml_backend_t b) { return ggml_backend_offload_op(b, t); });
            }
            read_refusals(sched->backends, sched->n_backends, t, (int32_t) id, tensors[id].supports, refusals);
        }
        for (size_t i = 0; i < n_nodes; i++) {
            tensors[i].flags = tr->node_flags[i];
        }
        for (size_t i = 0; i < leafs.size(); i++) {
            tensors[leafs[i]].flags = tr->leaf_flags[i];
        }
    }

    // Calls f(tensor, copy, backend * n_copies + copy_index) for each copy that is a separate tensor.
    template <class F> void for_each_copy(F f) const {
        const size_t per_tensor = (size_t) sched->n_backends * sched->n_copies;
        for (size_t slot = 0; slot < sched->hash_set.size; slot++) {
            const ggml_tensor * of = ggml_bitset_get(sched->hash_set.used, slot) ? sched->hash_set.keys[slot] : nullptr;
            for (size_t k = 0; of != nullptr && k < per_tensor; k++) {
                const ggml_tensor * copy = sched->hv_tensor_copies[slot * per_tensor + k];
                if (copy != nullptr && copy != of) {
                    f(of, copy, k);
                }
            }
        }
    }

    void read_copies() {
        struct found { int32_t of; size_t k; const ggml_tensor * copy; };
        std::vector<found> copies;
        for_each_copy([&](const ggml_tensor * of, const ggml_tensor * copy, size_t k) { copies.push_back({ id_of(of), k, copy }); });
        // the order of the hash set depends on addresses
        std::sort(copies.begin(), copies.end(), [](const found & a, const found & b) {
            return a.of != b.of ? a.of < b.of : a.k < b.k;
        });
        for (const found & c : copies) {
            const int32_t id = id_of(c.copy);
            fill(id, GP_KIND_COPY);
            tensors[id].copy_of    = c.of;
            tensors[id].copy_index = (int32_t) (c.k % sched->n_copies);
            tensors[id].backend    = (int32_t) (c.k / sched->n_copies);
        }
        for (const rewired & w : tr->rewires) {
            tensors[ids[w.node]].planned_src[w.j] = ids[w.node->src[w.j]];
        }
    }

    void read_splits() {
        for (int i = 0; i < sched->n_splits; i++) {
            const ggml_backend_sched_split & s = sched->splits[i];
            splits.push_back({ s.backend_id, s.i_start, s.i_end, (int32_t) inputs.size(), s.n_inputs });
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
            r.buft         = buft_of(sched->bufts[b]);
            r.gallocr_size = ggml_gallocr_get_buffer_size(sched->galloc, b);
            snprintf(r.name, sizeof(r.name), "%s", ggml_backend_name(sched->backends[b]));
            snprintf(r.device, sizeof(r.device), "%s", dev ? ggml_backend_dev_name(dev) : "");
            backends.push_back(r);
        }
    }
};

static gp_plan * read_plan(ggml_backend_sched_t sched) {
    trace * tr = traced(sched);
    if (tr == nullptr || tr->graph == nullptr || sched->n_splits == 0) {
        return nullptr;
    }
    std::unique_ptr<reader> r(new reader()); // freed also if a backend's answer is an abort
    r->sched = sched;
    r->graph = tr->graph;
    r->tr    = tr;
    r->capacities = tr->capacities;
    r->read_backends();
    r->read_tensors();
    r->read_copies();
    r->read_splits();
    read_cpu(sched, r->ids, r->cpu_nodes, r->cpu);
    layout_reader layout{ r->layout, r->layout_order, r->layout_buffers };
    layout.read(sched, r->ids);
    const int32_t optimizers = r->mask([](ggml_backend_t b) { return optimizes(b->iface, 0); });
    if (optimizers != 0) {
        read_order(tr, r->ids, r->order, r->alloc_deps);
    }

    gp_plan * plan     = new gp_plan{};
    plan->n_nodes      = (int32_t) tr->order.size();
    plan->layout_of    = layout.of;
    plan->optimizers   = optimizers;
    plan->n_copies     = sched->n_copies;
    plan->cur_copy     = sched->cur_copy;
    plan->op_offload   = sched->op_offload;
    plan->left_backend = tr->left_backend;
    plan->n_pins_elsewhere = (int32_t) std::count_if(tr->pins.begin(), tr->pins.end(),
        [&r](const std::pair<ggml_tensor * const, int32_t> & p) { return r->ids.count(p.first) == 0; });
    plan->hash_set_size = sched->hash_set.size;
    plan->hash_set_used = slots_used(sched) - std::count_if(tr->copies.begin(), tr->copies.end(),
        [sched](const auto & copy) { return has_slot(sched, copy.first); }); // the debug print's
#define GP_GIVE(type, name, tag, differs) plan->n_##name = (int32_t) r->name.size(); plan->name = r->name.data();
    GP_PLAN_ARRAYS(GP_GIVE)
#undef GP_GIVE
    plan->impl = r.release();
    return plan;
}

static void pin(ggml_backend_sched_t to, ggml_backend_sched_t from, const std::unordered_map<ggml_tensor *, int32_t> & pins) {
    for (const auto & p : pins) {
        ggml_backend_sched_set_tensor_backend(to, p.first, from->backends[p.second]);
    }
}

// A scheduler that is freed at the end of the scope, also if ggml aborts and the stack is unwound.
struct shadow {
    ggml_backend_sched_t sched;

    explicit shadow(ggml_backend_sched_t of, size_t graph_size)
        : sched(ggml_backend_sched_new(of->backends, of->bufts, of->n_backends, graph_size, of->n_copies > 1, of->op_offload)) {
        begin(sched)->shadow = true;
        sched->debug = of->debug;
    }
    // Plans `graph` as `of` would, including its pins.
    void split(ggml_backend_sched_t of, ggml_cgraph * graph) {
        GGML_ASSERT((int) sched->hash_set.size >= graph->n_nodes + graph->n_leafs);
        if (traced(of)) {
            pin(sched, of, traced(of)->pins);
            traced(sched)->dropped = traced(of)->dropped;
        }
        ggml_backend_sched_split_graph(sched, graph);
    }
    ~shadow() {
        restore(traced(sched));
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

void gp_sched_plan(ggml_backend_sched_t sched, ggml_cgraph * graph, gp_plan ** plan) {
    // A new scheduler each time: some releases plan differently after an earlier plan, and the caller's own may
    // hold an allocated graph, whose copies are in memory that planning overwrites.
    gp::shadow own(sched, sched->hash_set.size);
    own.split(sched, graph);
    *plan = gp::read_plan(own.sched);
}

bool gp_sched_measure(ggml_backend_sched_t sched, ggml_cgraph * graph, size_t * sizes) {
    if (&ggml_gallocr_reserve_n_size == nullptr) {
        return false;
    }
    gp::shadow own(sched, sched->hash_set.size);
    own.split(sched, graph);
    ggml_backend_sched_t s = own.sched;
    ggml_gallocr_reserve_n_size(s->galloc, &s->graph, s->node_backend_ids, s->leaf_backend_ids, sizes);
    for (int b = 0; b < s->n_backends; b++) {
        if (std::find(s->bufts, s->bufts + b, s->bufts[b]) != s->bufts + b) {
            sizes[b] = 0; // counted for the earlier backend that has the same buffer type
        }
    }
    return true;
}

void gp_sched_unplan(ggml_backend_sched_t sched) {
    gp_sched_restore(sched);
    const auto pins = gp::traced(sched) ? gp::traced(sched)->pins : decltype(gp::trace::pins){};
    ggml_backend_sched_reset(sched);
    gp::pin(sched, sched, pins);
}

size_t gp_sched_reallocs(ggml_backend_sched_t sched, gp_realloc_record * records, size_t n) {
    if (gp::traced(sched) == nullptr) {
        return 0;
    }
    const auto & all = gp::traced(sched)->reallocs;
    const size_t m   = std::min(n, all.size());
    std::copy(all.end() - m, all.end(), records);
    return gp::traced(sched)->n_reallocs;
}

void gp_sched_read(ggml_backend_sched_t sched, ggml_cgraph * graph, gp_plan ** plan) {
    *plan = gp::traced(sched) && gp::traced(sched)->graph == graph ? gp::read_plan(sched) : nullptr;
}

ggml_cgraph * gp_sched_graph(ggml_backend_sched_t sched) {
    return gp::traced(sched) ? gp::traced(sched)->graph : nullptr;
}

ggml_cgraph * gp_sched_runs(ggml_backend_sched_t sched) {
    return &sched->graph;
}

void gp_plan_free(gp_plan * plan) {
    if (plan != nullptr) {
        delete (gp::reader *) plan->impl;
        delete plan;
    }
}

void gp_sched_restore(ggml_backend_sched_t sched) {
    if (gp::traced(sched)) {
        gp::restore(gp::traced(sched));
    }
}

void gp_sched_forget(ggml_backend_sched_t sched) {
    if (gp::traced(sched)) {
        gp::traced(sched)->graph = nullptr;
        gp::traced(sched)->rewires.clear();
    }
}

void gp_sched_causes(ggml_backend_sched_t sched, char * causes) {
    for (size_t slot = 0; slot < sched->hash_set.size; slot++) {
        if (gp::traced(sched) && ggml_bitset_get(sched->hash_set.used, slot)) {
            gp::traced(sched)->causes[slot].format(causes + 16 * slot, 16);
        }
    }
}

} // extern "C"

#include "record_hooks.h"
#include "sched_fields.cpp"

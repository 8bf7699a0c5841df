// Records how backends reorder the nodes of their splits (graph_optimize), as far as the instrumented copy of
// ggml-backend.cpp needs hooks for it. Included by sched_trace.cpp, after sched_hooks.h.
//
// The order itself needs no hook: backends reorder the nodes in place, in a part of the user's graph, and
// `trace::order` has the original order.
#pragma once

namespace gp {

// Also works for releases without graph_optimize, where no backend reorders nodes.
template <class I> static auto optimizes(const I & iface, int) -> decltype(iface.graph_optimize != nullptr) {
    return iface.graph_optimize != nullptr;
}
template <class I> static bool optimizes(const I &, long) {
    return false;
}

// `deps` is upstream's own table: for each node, the tensors that are kept allocated for it.
template <class Deps> GP_COLD static void note_alloc_deps(trace * tr, const Deps & deps) {
    for (const auto & of : deps) {
        for (ggml_tensor * kept : of.second) {
            tr->alloc_deps.push_back({ kept, of.first });
        }
    }
}

// Reads the order and the dependencies as ids, for the graph that was planned last.
static void read_order(const trace * tr, const std::unordered_map<const ggml_tensor *, int32_t> & ids,
        std::vector<int32_t> & order, std::vector<gp_dep_record> & alloc_deps) {
    for (size_t i = 0; i < tr->order.size(); i++) {
        order.push_back(ids.at(tr->graph->nodes[i]));
    }
    for (const auto & dep : tr->alloc_deps) { // each has an id, because it is a node or a source of one
        alloc_deps.push_back({ ids.at(dep.first), ids.at(dep.second) });
    }
    std::sort(alloc_deps.begin(), alloc_deps.end(), [](const gp_dep_record & a, const gp_dep_record & b) {
        return a.until != b.until ? a.until < b.until : a.tensor < b.tensor; // not in a hash table's order
    });
}

} // namespace gp

#define GP_ALLOC_DEPS(sched, deps) do { if (GP_TRACING(sched)) { gp::note_alloc_deps(gp::traced(sched), deps); } } while (0)

#include "sim_graph.h"

#include "ggml-impl.h" // struct ggml_cgraph
#include "sim_backend.h"

#include <unordered_map>

namespace gp {

sim_graph::sim_graph(const ggml_cgraph * from, ggml_backend_buffer_t buffer) {
    std::unordered_map<const ggml_tensor *, ggml_tensor *> copies;
    const auto copy = [&](ggml_tensor * t) {
        ggml_tensor *& made = copies[t];
        if (made == nullptr) {
            tensors.push_back(*t);
            made = &tensors.back();
            made->buffer = t->buffer == nullptr ? nullptr : buffer;
            ggml_backend_buffer_t place = t->view_src == nullptr ? t->buffer : t->view_src->buffer;
            if (place != nullptr && t->data != nullptr && sim_is_buffer(place)) {
                made->data = sim_here(t->data);
            }
        }
        return made;
    };
    for (int i = 0; i < from->n_nodes; i++) {
        copy(from->nodes[i]);
    }
    for (int i = 0; i < from->n_nodes; i++) {
        for (ggml_tensor *& src : copies[from->nodes[i]]->src) {
            src = src == nullptr ? nullptr : copy(src);
        }
    }
    for (size_t i = 0; i < tensors.size(); i++) { // the loop adds tensors
        ggml_tensor & t = tensors[i];
        t.view_src = t.view_src == nullptr ? nullptr : copy(t.view_src);
        if (i >= (size_t) from->n_nodes) { // not computed here, so its sources may be gone
            for (ggml_tensor *& src : t.src) {
                src = nullptr;
            }
        }
    }

    context = ggml_init({ggml_graph_overhead_custom(tensors.size(), false), nullptr, true});
    GGML_ASSERT(context != nullptr && "out of memory");
    graph = ggml_new_graph_custom(context, tensors.size(), false);
    graph->order = from->order;
    for (int i = 0; i < from->n_nodes; i++) {
        graph->nodes[graph->n_nodes++] = copies[from->nodes[i]];
    }
    // The CPU fuses nodes if no other node uses the result between them.
    const ggml_hash_set & known = from->visited_hash_set;
    for (const auto & [original, made] : copies) {
        const size_t i = known.size == 0 ? GGML_HASHSET_FULL : ggml_hash_find(&known, original);
        if (i != GGML_HASHSET_FULL && ggml_bitset_get(known.used, i)) {
            graph->use_counts[ggml_hash_insert(&graph->visited_hash_set, made)] = from->use_counts[i];
        }
    }
}

sim_graph::~sim_graph() {
    ggml_free(context);
}

} // namespace gp

// Reads what the graph allocator decided about a planned graph: see layout_hooks.h. Included by sched_trace.cpp, where
// the scheduler's private structs are visible.
#pragma once

#include "layout_hooks.h"
#include "sched_hooks.h"

#include <unordered_map>
#include <vector>

namespace gp {

struct layout_reader {
    std::vector<gp_layout_record> &        records;
    std::vector<int32_t> &                 order;
    std::vector<gp_layout_buffer_record> & buffers;
    int32_t                                of = GP_LAYOUT_UNKNOWN;

    using ids_of = std::unordered_map<const ggml_tensor *, int32_t>;

    void read(ggml_backend_sched_t sched, const ids_of & ids) {
        const ggml_cgraph & graph = sched->graph;
        if (traced(sched)->has_memory) {
            if (take(sched->galloc, graph)) {
                of = as_needed(sched) ? GP_LAYOUT_OWN : GP_LAYOUT_EARLIER;
            }
        } else if (can_be_laid_out(sched)) {
            scratch own(sched);
            gp_gallocr_lay_out(own.galloc, &sched->graph, sched->node_backend_ids, sched->leaf_backend_ids);
            of = take(own.galloc, graph) ? GP_LAYOUT_OWN : GP_LAYOUT_UNKNOWN;
        }
        const auto id = [&ids](const ggml_tensor * t) {
            const auto found = ids.find(t);
            return found == ids.end() ? -1 : found->second;
        };
        std::vector<int> first; // backend with the same buffer type
        for (int b = 0; b < sched->n_backends; b++) {
            first.push_back((int) (std::find(sched->bufts, sched->bufts + b, sched->bufts[b]) - sched->bufts));
            if (first[b] == b) {
                buffers.push_back({ ggml_backend_buft_get_alignment(sched->bufts[b]), ggml_backend_buft_get_max_size(sched->bufts[b]), b });
            }
        }
        const auto place = [&](int32_t i) {
            return i < 0 ? -1 : id(i < graph.n_nodes ? graph.nodes[i] : graph.leafs[i - graph.n_nodes]);
        };
        for (gp_layout_record & r : records) {
            r.tensor  = place(r.tensor);
            r.of      = place(r.of);
            r.backend = (int16_t) first[r.backend];
        }
        for (int i = 0; i < graph.n_nodes; i++) {
            const ggml_tensor * node = graph.nodes[i];
            const int32_t found = id(node);
            order.push_back(found < 0 && node->src[0] != nullptr ? -2 - id(node->src[0]) : found);
        }
    }

private:
    struct scratch {
        ggml_gallocr_t galloc;

        explicit scratch(ggml_backend_sched_t of) : galloc(ggml_gallocr_new_n(of->bufts, of->n_backends)) { gp_layout_watch(galloc); }
        ~scratch() { ggml_gallocr_free(galloc); }
        scratch(const scratch &) = delete;
        scratch & operator=(const scratch &) = delete;
    };

    // A leaf without memory that only views read has no backend: upstream's allocator aborts.
    static bool can_be_laid_out(ggml_backend_sched_t sched) {
        const ggml_cgraph & g = sched->graph;
        const auto placed = [](ggml_tensor * const * tensors, const int * ids, int n) {
            for (int i = 0; i < n; i++) {
                const ggml_tensor * t = tensors[i];
                if (ids[i] < 0 && t->data == nullptr && t->buffer == nullptr && t->view_src == nullptr) {
                    return false;
                }
            }
            return true;
        };
        return placed(g.nodes, sched->node_backend_ids, g.n_nodes) && placed(g.leafs, sched->leaf_backend_ids, g.n_leafs);
    }

    // Whether each tensor has exactly the room that it needs. If so, the layout made for this graph would be the same.
    bool as_needed(ggml_backend_sched_t sched) const {
        const ggml_cgraph & g = sched->graph;
        for (const gp_layout_record & r : records) {
            if (r.kind == GP_LAYOUT_ALLOC || r.kind == GP_LAYOUT_REUSE) {
                const ggml_tensor * t = r.tensor < 0 ? nullptr : r.tensor < g.n_nodes ? g.nodes[r.tensor] : g.leafs[r.tensor - g.n_nodes];
                if (t == nullptr || ggml_backend_buft_get_alloc_size(sched->bufts[r.backend], t) != r.size) {
                    return false;
                }
            }
        }
        return true;
    }

    // The allocator's last layout, if it fits this graph.
    bool take(ggml_gallocr_t galloc, const ggml_cgraph & graph) {
        int32_t n_nodes = 0, n_leafs = 0;
        const int64_t n = gp_layout_read(galloc, nullptr, 0, &n_nodes, &n_leafs);
        if (n < 0 || n_nodes != graph.n_nodes || n_leafs != graph.n_leafs) {
            return false;
        }
        records.resize((size_t) n);
        gp_layout_read(galloc, records.data(), (size_t) n, &n_nodes, &n_leafs);
        return true;
    }
};

} // namespace gp

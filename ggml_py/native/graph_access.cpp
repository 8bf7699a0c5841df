#include "graph_access.h"

#include "cpu_trace.h"
#include "pins.h"
#include "view_place.h"

#include "ggml-impl.h" // struct ggml_cgraph

#include <algorithm>
#include <unordered_set>
#include <vector>

#pragma weak gp_take_tensors

namespace {

// Calls f(tensor) for leafs, then nodes, until it returns true. Returns that tensor, or NULL.
template <class F> ggml_tensor * find_tensor(const ggml_cgraph * cgraph, F f) {
    for (int i = 0; i < cgraph->n_leafs; i++) {
        if (f(cgraph->leafs[i])) {
            return cgraph->leafs[i];
        }
    }
    for (int i = 0; i < cgraph->n_nodes; i++) {
        if (f(cgraph->nodes[i])) {
            return cgraph->nodes[i];
        }
    }
    return nullptr;
}

} // namespace

void gp_graph_fill(ggml_cgraph * cgraph, ggml_tensor ** nodes, int n_nodes, ggml_tensor ** leafs, int n_leafs, const int32_t * use_counts) {
    GGML_ASSERT(n_nodes <= cgraph->size && n_leafs <= cgraph->size);
    cgraph->n_nodes = n_nodes;
    cgraph->n_leafs = n_leafs;
    std::copy(nodes, nodes + n_nodes, cgraph->nodes);
    std::copy(leafs, leafs + n_leafs, cgraph->leafs);
    for (int i = 0; i < n_nodes + n_leafs; i++) {
        ggml_tensor * t = i < n_nodes ? nodes[i] : leafs[i - n_nodes];
        const size_t slot = ggml_hash_find_or_insert(&cgraph->visited_hash_set, t);
        cgraph->use_counts[slot] = use_counts[i];
    }
}

int gp_graph_leafs(const ggml_cgraph * cgraph, ggml_tensor ** leafs) {
    if (leafs != nullptr) {
        std::copy(cgraph->leafs, cgraph->leafs + cgraph->n_leafs, leafs);
    }
    return cgraph->n_leafs;
}

ggml_tensor * gp_graph_without_data(ggml_cgraph * cgraph) {
    const auto empty = [](const ggml_tensor * t) { return t->data == nullptr && ggml_nelements(t) > 0; };
    ggml_tensor * missing = nullptr;
    find_tensor(cgraph, [&](ggml_tensor * t) {
        const auto lacks = [&](ggml_tensor * one) {
            if (one->view_src != nullptr) {
                gp_point_view(one);
            }
            missing = empty(one) ? one : nullptr;
            return missing != nullptr;
        };
        if (lacks(t)) {
            return true;
        }
        // a source that was set after the graph was built is not in the graph
        return std::any_of(std::begin(t->src), std::end(t->src), [&](ggml_tensor * src) { return src != nullptr && lacks(src); });
    });
    return missing;
}

int gp_graph_buffers(const ggml_cgraph * cgraph, ggml_backend_buffer_t * buffers, int n) {
    std::vector<ggml_backend_buffer_t> found;
    find_tensor(cgraph, [&](const ggml_tensor * t) {
        ggml_backend_buffer_t buffer = t->view_src != nullptr ? t->view_src->buffer : t->buffer;
        if (buffer != nullptr && std::find(found.rbegin(), found.rend(), buffer) == found.rend()) {
            found.push_back(buffer);
        }
        return false;
    });
    std::copy_n(found.begin(), std::min<size_t>(n, found.size()), buffers);
    return (int) found.size();
}

uint64_t gp_graph_state(const ggml_cgraph * cgraph) {
    uint64_t state = 0xcbf29ce484222325; // FNV-1a, a word at a time
    const auto mix = [&](const void * p) { state = (state ^ (uint64_t) (uintptr_t) p) * 0x100000001b3; };
    find_tensor(cgraph, [&](const ggml_tensor * t) {
        mix(t);
        mix(t->data);
        mix(t->buffer);
        mix(t->extra);
        return false;
    });
    return state;
}

int gp_graph_unallocated(const ggml_cgraph * cgraph, ggml_tensor ** tensors, int n) {
    gp_point_views(cgraph->leafs, cgraph->n_leafs);
    gp_point_views(cgraph->nodes, cgraph->n_nodes);
    std::unordered_set<ggml_tensor *> found;
    const auto look_at = [&](ggml_tensor * t) {
        if (t != nullptr && t->data == nullptr && t->buffer == nullptr) {
            found.insert(t);
        }
    };
    find_tensor(cgraph, [&](ggml_tensor * t) {
        look_at(t);
        std::for_each(std::begin(t->src), std::end(t->src), look_at);
        return false;
    });
    std::copy_n(found.begin(), std::min<size_t>(n, found.size()), tensors);
    return (int) found.size();
}

void gp_take_memory(ggml_tensor ** tensors, int n) {
    if (gp_take_tensors != nullptr) {
        gp_take_tensors(tensors, n);
        return;
    }
    for (int i = 0; i < n; i++) { // a pristine build
        tensors[i]->buffer = nullptr;
        tensors[i]->data   = nullptr;
    }
}

bool gp_graph_uses(const ggml_cgraph * cgraph, ggml_tensor ** tensors, int n) {
    const std::unordered_set<const ggml_tensor *> wanted(tensors, tensors + n);
    const auto is_wanted = [&](const ggml_tensor * t) { return t != nullptr && wanted.count(t) > 0; };
    return find_tensor(cgraph, [&](const ggml_tensor * t) {
        return is_wanted(t) || is_wanted(t->view_src) || std::any_of(std::begin(t->src), std::end(t->src), is_wanted);
    }) != nullptr;
}

bool gp_graph_shares(const ggml_cgraph * cgraph, const ggml_cgraph * other) {
    return gp_graph_uses(cgraph, other->nodes, other->n_nodes);
}

bool gp_graph_has(const ggml_cgraph * cgraph, const ggml_tensor * tensor) {
    const auto in = [tensor](ggml_tensor ** tensors, int n) { return std::find(tensors, tensors + n, tensor) != tensors + n; };
    return in(cgraph->nodes, cgraph->n_nodes) || in(cgraph->leafs, cgraph->n_leafs);
}

bool gp_view_fits(const ggml_tensor * a, int n, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, size_t nb1, size_t nb2,
                  size_t nb3, size_t offset) {
    const size_t  all   = ggml_nbytes(a->view_src != nullptr ? a->view_src : a);
    const size_t  start = a->view_src != nullptr ? a->view_offs : 0;
    const int64_t block = ggml_blck_size(a->type), ne[] = { ne0, ne1, ne2, ne3 };
    const size_t  nb[]  = { 0, nb1, nb2, nb3 };
    if (start > all || offset > all - start || ne0 <= 0 || ne0 % block != 0) {
        return false;
    }
    const size_t room = all - start - offset, type_size = ggml_type_size(a->type), blocks = (size_t) (ne0 / block);
    if (blocks > room / type_size) {
        return false;
    }
    size_t last = blocks * type_size, nbytes = last;
    for (int i = 1; i < n; i++) {
        const size_t more = (size_t) ne[i] - 1;
        if (ne[i] <= 0 || more > (nb[i] == 0 ? more : (room - last) / nb[i]) || (size_t) ne[i] > room / nbytes) {
            return false;
        }
        last += more * nb[i];
        nbytes *= (size_t) ne[i];
    }
    return true;
}

bool gp_graph_cpu_nodes(const ggml_cgraph * graph, int n_threads, bool use_ref, gp_cpu_record * records) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_reg_t reg = cpu ? ggml_backend_dev_backend_reg(cpu) : nullptr;
    const auto nodes = reg ? (gp_cpu_nodes_t) ggml_backend_reg_get_proc_address(reg, "gp_cpu_nodes") : nullptr;
    if (nodes == nullptr) {
        return false;
    }
    nodes(graph, n_threads, use_ref, records);
    return true;
}

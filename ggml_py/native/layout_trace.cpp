// Keeps what graph allocators decide: see layout_hooks.h.
#include "layout_hooks.h"

#include "ggml-impl.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

// In events that are being noted, tensors are pointers; in a finished layout they are places in its graph.
struct gp_layout {
    struct event {
        const ggml_tensor * tensor;
        const ggml_tensor * of;
        gp_layout_record    record;
    };
    std::vector<event>            events;
    std::vector<gp_layout_record> records;
    int32_t                       n_nodes = 0, n_leafs = 0;
    int32_t                       step    = -1;
};

namespace {

struct kept {
    std::shared_ptr<gp_layout> last;
    uint64_t                   n_layouts = 0;
};

struct watching {
    std::mutex                               mutex;
    std::unordered_map<ggml_gallocr_t, kept> all;
};

watching & watched() {
    static watching & it = *new watching(); // threads may outlive static objects
    return it;
}

std::atomic<size_t> n_watched{0};
thread_local std::shared_ptr<gp_layout> current; // of the layout that this thread is making

std::shared_ptr<gp_layout> find(ggml_gallocr_t galloc) {
    std::lock_guard<std::mutex> guard(watched().mutex);
    const auto found = watched().all.find(galloc);
    return found == watched().all.end() ? nullptr : found->second.last;
}

// Nodes are 0 to n_nodes - 1; leafs come after them; -1 is a tensor that is neither. A tensor that is both, such as a
// copy for pipeline parallelism, is the leaf: a later graph in this layout gets its leafs' places first.
void number(gp_layout & layout, const ggml_cgraph * graph) {
    std::unordered_map<const ggml_tensor *, int32_t> places;
    places.reserve((size_t) (graph->n_nodes + graph->n_leafs));
    for (int i = 0; i < graph->n_leafs; i++) {
        places.emplace(graph->leafs[i], graph->n_nodes + i);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        places.emplace(graph->nodes[i], i);
    }
    const auto place = [&places](const ggml_tensor * t) {
        const auto found = places.find(t);
        return found == places.end() ? -1 : found->second;
    };
    for (const gp_layout::event & e : layout.events) {
        layout.records.push_back(e.record);
        layout.records.back().tensor = place(e.tensor);
        layout.records.back().of     = place(e.of);
    }
    layout.n_nodes = graph->n_nodes;
    layout.n_leafs = graph->n_leafs;
    layout.events.clear();
}

} // namespace

extern "C" {

void gp_layout_watch(ggml_gallocr_t galloc) {
    std::lock_guard<std::mutex> guard(watched().mutex);
    if (watched().all.emplace(galloc, kept()).second) {
        n_watched++;
    }
}

void gp_layout_forget(ggml_gallocr_t galloc) {
    if (n_watched.load(std::memory_order_relaxed) == 0) {
        return;
    }
    std::lock_guard<std::mutex> guard(watched().mutex);
    n_watched -= watched().all.erase(galloc);
}

void gp_layout_begin(ggml_gallocr_t galloc) {
    current.reset(); // of a layout that ended in an abort
    if (n_watched.load(std::memory_order_relaxed) == 0) {
        return;
    }
    std::lock_guard<std::mutex> guard(watched().mutex);
    const auto found = watched().all.find(galloc);
    if (found != watched().all.end()) {
        found->second.last.reset();
        current = std::make_shared<gp_layout>();
    }
}

uint64_t gp_layout_count(ggml_gallocr_t galloc) {
    std::lock_guard<std::mutex> guard(watched().mutex);
    const auto found = watched().all.find(galloc);
    return found == watched().all.end() ? 0 : found->second.n_layouts;
}

void gp_layout_step(int node) {
    if (current) {
        current->step = node;
    }
}

void gp_layout_note(gp_layout_kind kind, const ggml_tensor * t, const ggml_tensor * of, int buffer, int chunk, size_t offset,
        size_t size) {
    if (!current) {
        return;
    }
    gp_layout_record r = {};
    r.offset  = offset;
    r.size    = size;
    r.step    = current->step;
    r.backend = (int16_t) buffer;
    r.chunk   = (int8_t) chunk;
    r.kind    = (int8_t) kind;
    current->events.push_back({ t, of, r });
}

void gp_layout_end(ggml_gallocr_t galloc, const ggml_cgraph * graph) {
    if (!current) {
        return;
    }
    number(*current, graph);
    std::lock_guard<std::mutex> guard(watched().mutex);
    const auto found = watched().all.find(galloc);
    if (found != watched().all.end()) {
        found->second.last = current;
        found->second.n_layouts++;
    }
    current.reset();
}

int64_t gp_layout_read(ggml_gallocr_t galloc, gp_layout_record * records, size_t n, int32_t * n_nodes, int32_t * n_leafs) {
    const std::shared_ptr<gp_layout> found = find(galloc);
    if (!found) {
        return -1;
    }
    std::copy(found->records.begin(), found->records.begin() + std::min(n, found->records.size()), records);
    *n_nodes = found->n_nodes;
    *n_leafs = found->n_leafs;
    return (int64_t) found->records.size();
}

} // extern "C"

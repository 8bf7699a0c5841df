// The graph allocator's notes: see alloc_hooks.h and the end of sched_trace.h.
#include "alloc_hooks.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstdio>
#include <vector>

thread_local gp_realloc_record gp_alloc_note_realloc = {};

void gp_reach_made(ggml_backend_buffer_type_t buft); // reach.cpp

namespace {

thread_local char   failed_buft[GP_MAX_NAME];
thread_local size_t failed_size = 0;
thread_local bool   note_kept   = false;

thread_local bool                               watching = false;
thread_local std::vector<ggml_backend_buffer_t> watched;

// Numbers tensors by address, in the order in which they are first looked up.
class numbering {
    struct entry { const ggml_tensor * key; uint64_t value; };
    std::vector<entry> table; // its size is a power of two
    uint64_t           used = 0;

    entry & find(const ggml_tensor * t) {
        const size_t mask = table.size() - 1;
        size_t i = ((uintptr_t) t >> 4) & mask;
        while (table[i].key != t && table[i].key != nullptr) {
            i = (i + 1) & mask;
        }
        return table[i];
    }
    void grow() {
        std::vector<entry> old(table.size() * 2);
        old.swap(table);
        for (const entry & e : old) {
            if (e.key != nullptr) {
                find(e.key) = e;
            }
        }
    }

  public:
    void clear(size_t n) {
        size_t size = 64;
        while (size < 2 * n) {
            size *= 2;
        }
        table.assign(size, entry{});
        used = 0;
    }
    uint64_t operator()(const ggml_tensor * t) {
        entry & e = find(t);
        if (e.key == t) {
            return e.value;
        }
        const uint64_t value = used++;
        e = { t, value };
        if (2 * used > table.size()) {
            grow();
        }
        return value;
    }
};

// How a tensor affects the layout of the tensors that refer to it. All tensors that already have memory count as
// one. So do all tensors that are kept to the end, such as the copies of an input: each graph reads another copy.
uint64_t role(numbering & number, const ggml_tensor * t) {
    return t == nullptr ? 0 : t->data != nullptr ? 1 : t->flags & GGML_TENSOR_FLAG_OUTPUT ? 2 : 3 + number(t);
}

} // namespace

// Called by ggml_backend_buffer_init.
void gp_buffer_made(ggml_backend_buffer_t buffer) {
    gp_reach_made(buffer->buft);
    if (watching) {
        watched.push_back(buffer);
    }
}

extern "C" {

uint64_t gp_graph_edges(const ggml_cgraph * graph) {
    static thread_local numbering number;
    number.clear((size_t) (graph->n_nodes + graph->n_leafs));
    uint64_t hash = 14695981039346656037u;
    const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    const int32_t lasting = GGML_TENSOR_FLAG_INPUT | GGML_TENSOR_FLAG_OUTPUT;
    for (int i = 0; i < graph->n_leafs; i++) {
        const ggml_tensor * leaf = graph->leafs[i];
        add((uint64_t) (leaf->flags & lasting) << 1 | (leaf->data != nullptr));
        add(role(number, leaf));
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        add((uint64_t) node->op << 8 | (uint64_t) (node->flags & lasting) << 1 | (node->data != nullptr));
        add(role(number, node));
        add(role(number, node->view_src));
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            add(role(number, node->src[j]));
        }
    }
    return hash;
}

void gp_alloc_note(int32_t kind, const ggml_tensor * tensor, const ggml_tensor * node, int32_t src, uint64_t need, uint64_t have) {
    if (note_kept) {
        return;
    }
    gp_realloc_record r = {};
    r.kind = kind;
    r.src  = src;
    r.need = need;
    r.have = have;
    snprintf(r.tensor, sizeof(r.tensor), "%s", tensor ? tensor->name : "");
    snprintf(r.node, sizeof(r.node), "%s", node ? node->name : "");
    gp_alloc_note_realloc = r;
}

void gp_alloc_note_keep(bool keep) {
    note_kept = keep;
}

void gp_alloc_note_ours(void) {
    gp_alloc_note_realloc.ours = true;
}

void gp_alloc_note_read(gp_realloc_record * note) {
    *note = gp_alloc_note_realloc;
}

void gp_alloc_note_failure(const char * buft, size_t size) {
    snprintf(failed_buft, sizeof(failed_buft), "%s", buft);
    failed_size = size;
}

void gp_buffers_watch(void) {
    watched.clear();
    watching = true;
}

void gp_buffers_free(bool all) {
    watching = false;
    std::vector<ggml_backend_buffer_t> made;
    made.swap(watched);
    for (ggml_backend_buffer_t buffer : made) {
        if (all) {
            ggml_backend_buffer_free(buffer);
        }
    }
}

void gp_buffer_unwatch(ggml_backend_buffer_t buffer) {
    if (watching) {
        watched.erase(std::remove(watched.begin(), watched.end(), buffer), watched.end());
    }
}

size_t gp_alloc_failed(char * buft, size_t size) {
    snprintf(buft, size, "%s", failed_buft);
    return failed_size;
}
} // extern "C"

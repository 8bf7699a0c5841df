// What the graph allocator tells and keeps: see alloc_hooks.h and the end of sched_trace.h.
#include "alloc_hooks.h"

#include <cstdio>
#include <mutex>
#include <unordered_map>

thread_local gp_realloc_record gp_alloc_note_realloc = {};

namespace {

thread_local char   failed_buft[GP_MAX_NAME];
thread_local size_t failed_size = 0;

struct pinned_buffer {
    int  pins  = 0;
    bool freed = false; // by its owner: the last pin does it
};

std::mutex                                               pinned_mutex;
std::unordered_map<ggml_backend_buffer_t, pinned_buffer> pinned;

} // namespace

extern "C" {

void gp_alloc_note(int32_t kind, const ggml_tensor * tensor, const ggml_tensor * node, int32_t src, uint64_t need, uint64_t have) {
    gp_realloc_record r = {};
    r.kind = kind;
    r.src  = src;
    r.need = need;
    r.have = have;
    snprintf(r.tensor, sizeof(r.tensor), "%s", tensor ? tensor->name : "");
    snprintf(r.node, sizeof(r.node), "%s", node ? node->name : "");
    gp_alloc_note_realloc = r;
}

void gp_alloc_note_failure(const char * buft, size_t size) {
    snprintf(failed_buft, sizeof(failed_buft), "%s", buft);
    failed_size = size;
}

void gp_buffer_pin(ggml_backend_buffer_t buffer) {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned[buffer].pins++;
}

void gp_buffer_unpin(ggml_backend_buffer_t buffer) {
    bool freed = false;
    {
        std::lock_guard<std::mutex> lock(pinned_mutex);
        auto found = pinned.find(buffer);
        GGML_ASSERT(found != pinned.end());
        if (--found->second.pins == 0) {
            freed = found->second.freed;
            pinned.erase(found);
        }
    }
    if (freed) {
        ggml_backend_buffer_free(buffer);
    }
}

bool gp_buffer_keep(ggml_backend_buffer_t buffer) {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    auto found = pinned.find(buffer);
    if (found == pinned.end()) {
        return false;
    }
    found->second.freed = true;
    return true;
}

size_t gp_alloc_failed(char * buft, size_t size) {
    snprintf(buft, size, "%s", failed_buft);
    return failed_size;
}
} // extern "C"

#include "pins.h"

#include "alloc_hooks.h"
#include "pin_hooks.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

struct pinned_buffer {
    int  pins  = 0;
    bool freed = false; // by its owner; the last unpin will do it
};

std::mutex                                               mutex; // protects all variables below, and tensors' memory
std::unordered_map<ggml_backend_buffer_t, pinned_buffer> pinned;
gp_call_pin *                                           calls = nullptr; // nearly always none or one
std::vector<ggml_context *>                              held;
std::vector<std::pair<const gp_memory *, size_t>>        aside;

bool is_used(ggml_backend_buffer_t buffer) {
    for (gp_call_pin * pin = calls; pin != nullptr; pin = pin->next) {
        if (pin->buffer == buffer) {
            return true;
        }
    }
    return false;
}

// After a pin has gone: whether the buffer must be freed now. Call it with the lock held.
bool is_last(ggml_backend_buffer_t buffer) {
    const auto found = pinned.find(buffer);
    if (found == pinned.end() || found->second.pins > 0) {
        return false;
    }
    const bool freed = found->second.freed;
    if (freed && is_used(buffer)) {
        return false;
    }
    pinned.erase(found);
    return freed;
}

// The tensor's real memory, even if it is temporarily set aside. Call it with the lock held.
gp_memory memory_of(const ggml_tensor * tensor) {
    for (const auto & some : aside) {
        const gp_memory * end = some.first + some.second;
        const gp_memory * found = std::find_if(some.first, end, [tensor](const gp_memory & m) { return m.t == tensor; });
        if (found != end) {
            return *found;
        }
    }
    return { nullptr, tensor->data, tensor->buffer };
}

void set_memory(ggml_tensor * copy, const gp_memory & memory) {
    copy->data   = memory.data;
    copy->buffer = memory.buffer;
}

} // namespace

extern "C" int gp_n_held_contexts = 0;

extern "C" {

void gp_call_begin(gp_call_pin * pin, const ggml_tensor * tensor, ggml_tensor * copy, ggml_tensor * source) {
    const std::lock_guard<std::mutex> lock(mutex);
    *copy = *tensor;
    set_memory(copy, memory_of(tensor));
    if (tensor->view_src != nullptr) {
        *source = *tensor->view_src;
        set_memory(source, memory_of(tensor->view_src));
        copy->view_src = source;
        // A view that was made after the allocation has data but no buffer, and upstream's copy reads the buffer.
        copy->buffer   = source->buffer;
    }
    pin->buffer   = copy->buffer;
    pin->previous = nullptr;
    pin->next     = calls;
    if (calls != nullptr) {
        calls->previous = pin;
    }
    calls = pin;
}

void gp_call_end(gp_call_pin * pin) {
    bool freed = false;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        (pin->previous != nullptr ? pin->previous->next : calls) = pin->next;
        if (pin->next != nullptr) {
            pin->next->previous = pin->previous;
        }
        freed = !pinned.empty() && is_last(pin->buffer);
    }
    if (freed) {
        ggml_backend_buffer_free(pin->buffer);
    }
}

void gp_buffer_pin(ggml_backend_buffer_t buffer) {
    const std::lock_guard<std::mutex> lock(mutex);
    pinned[buffer].pins++;
}

void gp_buffer_unpin(ggml_backend_buffer_t buffer) {
    bool freed = false;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = pinned.find(buffer);
        GGML_ASSERT(found != pinned.end() && found->second.pins > 0);
        found->second.pins--;
        freed = is_last(buffer);
    }
    if (freed) {
        ggml_backend_buffer_free(buffer);
    }
}

ggml_backend_buffer_t gp_tensor_pin(const ggml_tensor * tensor, void ** data) {
    const std::lock_guard<std::mutex> lock(mutex);
    *data = memory_of(tensor).data;
    const ggml_backend_buffer_t buffer = memory_of(tensor->view_src != nullptr ? tensor->view_src : tensor).buffer;
    if (buffer == nullptr || *data == nullptr) {
        return nullptr;
    }
    pinned[buffer].pins++;
    return buffer;
}

bool gp_buffer_is_pinned(ggml_backend_buffer_t buffer) {
    const std::lock_guard<std::mutex> lock(mutex);
    return pinned.count(buffer) > 0 || is_used(buffer);
}

bool gp_buffer_keep(ggml_backend_buffer_t buffer) {
    gp_buffer_unwatch(buffer);
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = pinned.find(buffer);
    if (found == pinned.end() && !is_used(buffer)) {
        return false;
    }
    pinned[buffer].freed = true;
    return true;
}

void gp_take_tensors(ggml_tensor ** tensors, int n) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < n; i++) {
        tensors[i]->buffer = nullptr;
        tensors[i]->data   = nullptr;
    }
}

void gp_set_aside(const gp_memory * all, size_t n, bool begin) {
    const std::pair<const gp_memory *, size_t> one(all, n);
    if (begin) {
        aside.push_back(one);
    } else {
        aside.erase(std::find(aside.begin(), aside.end(), one));
    }
}

void gp_lock_tensors(void)   { mutex.lock(); }
void gp_unlock_tensors(void) { mutex.unlock(); }

int gp_context_hold(ggml_context * ctx) {
    const std::lock_guard<std::mutex> lock(mutex);
    const int before = (int) std::count(held.begin(), held.end(), ctx);
    held.push_back(ctx);
    __atomic_add_fetch(&gp_n_held_contexts, 1, __ATOMIC_RELAXED);
    return before;
}

void gp_context_let_go(ggml_context * ctx) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = std::find(held.begin(), held.end(), ctx);
    if (found != held.end()) {
        held.erase(found);
        __atomic_sub_fetch(&gp_n_held_contexts, 1, __ATOMIC_RELAXED);
    }
}

bool gp_context_is_held(const ggml_context * ctx) {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::find(held.begin(), held.end(), ctx) != held.end();
}

} // extern "C"

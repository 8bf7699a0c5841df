#include "graph_access.h"

#include "alloc_hooks.h"
#include "blank.h"
#include "ggml-impl.h"
#include "view_place.h"

#include <unordered_set>
#include <vector>

// Older releases lack this function, and a pristine build has no hooks.
extern "C" __attribute__((weak)) ggml_backend_buffer_t ggml_backend_buft_alloc_buffer_n(
    ggml_backend_buffer_type_t buft, struct ggml_tensor ** tensors, int n_tensors);
#pragma weak gp_buffers_watch
#pragma weak gp_buffers_free

namespace {

struct place {
    ggml_tensor *         t;
    void *                data;
    ggml_backend_buffer_t buffer;
};

} // namespace

ggml_backend_buffer_t gp_alloc_tensors(ggml_context * ctx, ggml_backend_buffer_type_t buft) {
    std::vector<ggml_tensor *> tensors;
    std::vector<place>         before;
    std::unordered_set<const ggml_tensor *> mine;
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); t != nullptr; t = ggml_get_next_tensor(ctx, t)) {
        mine.insert(t);
        if (t->data == nullptr || t->buffer == nullptr) {
            before.push_back({ t, t->data, t->buffer });
        }
        const bool homeless = t->view_src != nullptr && t->view_src->buffer == nullptr && mine.count(t->view_src) == 0;
        if (!homeless) { // upstream would abort; gp_view_place places such a view when asked
            tensors.push_back(t);
        }
    }
    const auto undo = [&before] {
        for (const place & p : before) {
            p.t->data   = p.data;
            p.t->buffer = p.buffer;
        }
    };
    if (gp_buffers_watch != nullptr) {
        gp_buffers_watch();
    }
    try {
        ggml_backend_buffer_t buffer = nullptr;
        if (&ggml_backend_buft_alloc_buffer_n == nullptr) {
            buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft);
        } else if (!tensors.empty()) {
            buffer = ggml_backend_buft_alloc_buffer_n(buft, tensors.data(), (int) tensors.size());
        }
        if (buffer == nullptr) {
            undo(); // upstream frees the buffers but leaves the tensors pointing into them
        }
        for (const place & p : before) {
            if (p.data == nullptr && p.t->data != nullptr) {
                gp_blank_add(p.t);
            }
        }
        if (gp_buffers_free != nullptr) {
            gp_buffers_free(false);
        }
        return buffer;
    } catch (...) {
        undo();
        if (gp_buffers_free != nullptr) {
            gp_buffers_free(true);
        }
        throw;
    }
}

void gp_views_place(ggml_tensor * tensor) {
    gp_point_views(&tensor, 1);
}

void gp_view_place(ggml_tensor * view) {
    gp_point_view(view);
}

// Upstream points a view to its source's memory only once, when the view is made or allocated. If the source then loses
// its memory or gets other memory, a view of it in another graph or context would keep the old address.
#pragma once

#include "ggml.h"

// Points a view to the current memory of its source.
static inline void gp_point_view(struct ggml_tensor * view) {
    const struct ggml_tensor * src = view->view_src;
    void * data = src->data == NULL ? NULL : (char *) src->data + view->view_offs;
    if (view->data != data) {
        view->data = data;
    }
    if (view->buffer != NULL && view->buffer != src->buffer) { // a view that was never allocated has no buffer
        view->buffer = src->buffer;
    }
}

// Updates views that were allocated before. Called before a graph is planned or laid out.
static inline void gp_point_views(struct ggml_tensor ** tensors, int n) {
    for (int i = 0; i < n; i++) {
        struct ggml_tensor * t = tensors[i];
        if (t->view_src != NULL && t->buffer != NULL) {
            gp_point_view(t);
        }
        for (int j = 0; j < GGML_MAX_SRC; j++) { // a source that was set later is not in the graph
            struct ggml_tensor * src = t->src[j];
            if (src != NULL && src->view_src != NULL && src->buffer != NULL) {
                gp_point_view(src);
            }
        }
    }
}

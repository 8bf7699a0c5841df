// Checks for memory that a backend cannot reach. Upstream's scheduler copies the tensors that a node reads, not those
// that it writes. An op in place or on a view writes to its source's memory, but a pin or a fallback may put it on
// another backend. A discrete GPU then ends the process or loses the write. So do simulated devices, whose addresses
// only they can use (sim_device.cpp). These checks abort before anything is computed.
#pragma once

#include <stdbool.h>

struct ggml_cgraph;

#ifdef __cplusplus
extern "C" {
#endif

// Aborts if a graph for the CPU uses memory of another device.
__attribute__((visibility("default"))) void gp_reach_check_cpu(const struct ggml_cgraph * graph);
// Whether there ever was a buffer in another device's memory. Without one, no checks are needed.
__attribute__((visibility("default"))) bool gp_reach_foreign(void);

#ifdef __cplusplus
}

#include "ggml-impl.h"
#include "ggml-backend-impl.h"

#include <string>

namespace gp {

inline ggml_backend_buffer_t buffer_of(const ggml_tensor * t) {
    return t->view_src != nullptr ? t->view_src->buffer : t->buffer;
}

inline bool is_view_op(enum ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_RESHAPE || op == GGML_OP_VIEW || op == GGML_OP_PERMUTE || op == GGML_OP_TRANSPOSE;
}

// Since 0.9.7 backends skip nodes without this flag, which are those of branches that were not selected.
template <class E> constexpr int32_t compute_flag(decltype(E::GGML_TENSOR_FLAG_COMPUTE) *) { return E::GGML_TENSOR_FLAG_COMPUTE; }
template <class E> constexpr int32_t compute_flag(...) { return 0; }

inline bool is_computed(const ggml_tensor * node) {
    constexpr int32_t flag = compute_flag<enum ggml_tensor_flag>(nullptr);
    return !is_view_op(node->op) && !ggml_is_empty(node) && (flag == 0 || (node->flags & flag) != 0);
}

// A tensor that the node writes or reads and whose memory is out of reach: reaches(buffer type) is false. Or NULL.
template <class F> const ggml_tensor * unreached(const ggml_tensor * node, F reaches) {
    if (!is_computed(node)) {
        return nullptr;
    }
    const auto lacks = [&](const ggml_tensor * t) {
        ggml_backend_buffer_t buffer = t == nullptr || ggml_is_empty(t) ? nullptr : buffer_of(t);
        return buffer != nullptr && !reaches(buffer->buft);
    };
    if (lacks(node)) {
        return node;
    }
    for (const ggml_tensor * src : node->src) {
        if (lacks(src)) {
            return src;
        }
    }
    return nullptr;
}

inline std::string unreached_text(const ggml_tensor * node, const ggml_tensor * t, const char * backend) {
    const ggml_tensor * root = t->view_src != nullptr ? t->view_src : t;
    std::string text = std::string("node '") + node->name + "' (" + ggml_op_desc(node) + ") on " + backend;
    text += t == node ? " writes to '" : " reads '";
    text += std::string(root->name) + "', which is in " + ggml_backend_buft_name(buffer_of(t)->buft) + " memory: " + backend + " cannot reach it";
    return text;
}

// Optimizer steps write to their sources, the weights and the momenta, not to their result.
inline bool writes_source(enum ggml_op op, int src) {
    return (op == GGML_OP_OPT_STEP_ADAMW && (src == 0 || src == 2 || src == 3)) || (op == GGML_OP_OPT_STEP_SGD && src == 0);
}

} // namespace gp
#endif

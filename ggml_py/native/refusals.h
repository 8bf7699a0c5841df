// Why a backend does not support an op: because of the op, or because of the memory that its sources are in. Upstream's
// supports_op answers both with the same "no": CUDA's, for one, refuses sources in another card's memory.
#pragma once

#include "sched_trace.h"

#include <vector>

namespace gp {

// A copy of an op whose sources have no memory but source `kept`, like results of other nodes before they are allocated.
class without_memory {
public:
    explicit without_memory(const ggml_tensor * op, int kept = -1) : op(*op) {
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            if (op->src[j] && op->src[j]->buffer && j != kept) {
                srcs[j]           = *op->src[j];
                srcs[j].buffer    = nullptr;
                srcs[j].data      = nullptr;
                this->op.src[j]   = &srcs[j];
            }
        }
    }
    without_memory(const without_memory &) = delete;
    without_memory & operator=(const without_memory &) = delete;

    const ggml_tensor * get() const { return &op; }

private:
    ggml_tensor op;
    ggml_tensor srcs[GGML_MAX_SRC];
};

static inline bool has_placed_source(const ggml_tensor * op) {
    for (const ggml_tensor * src : op->src) {
        if (src && src->buffer) {
            return true;
        }
    }
    return false;
}

// Adds a record for each backend that refuses `op` only because of its sources' memory. `supports`: the backends that do
// not refuse it.
static inline void read_refusals(const ggml_backend_t * backends, int n_backends, const ggml_tensor * op, int32_t id,
        int32_t supports, std::vector<gp_refusal_record> & found) {
    if (op->op == GGML_OP_NONE || !has_placed_source(op)) {
        return;
    }
    for (int b = 0; b < n_backends; b++) {
        if (supports >> b & 1 || !ggml_backend_supports_op(backends[b], without_memory(op).get())) {
            continue;
        }
        gp_refusal_record r = { id, b, 0 };
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            if (op->src[j] && op->src[j]->buffer && !ggml_backend_supports_op(backends[b], without_memory(op, j).get())) {
                r.srcs |= 1 << j;
            }
        }
        found.push_back(r);
    }
}

} // namespace gp

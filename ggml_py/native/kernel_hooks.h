// Included by the instrumented copy of ggml-cpu.c before ggml_graph_compute (vendor/instrument.py), which calls
// gp_check_graph first. What is asked and why here: kernel_check.h.
#pragma once

#define GP_WRITES(type) (ggml_get_type_traits_cpu(type)->from_float != NULL)

#include "kernel_rules.h"

static gp_rules_fn gp_kernel_of[GGML_OP_COUNT];
static size_t      gp_odd_bits[GGML_TYPE_COUNT]; // that addresses and strides of the type do not have

__attribute__((constructor)) static void gp_index_kernel_rules(void) {
    gp_index_rules(gp_kernel_of, kernel_rules, sizeof(kernel_rules)/sizeof(kernel_rules[0]));
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const size_t size = ggml_type_size((enum ggml_type) type);
        gp_odd_bits[type] = ggml_blck_size((enum ggml_type) type) == 1 && size > 0 ? size - 1 : 0;
    }
}

// Whether all its numbers begin at multiples of their size. Blocks of quantized types have no such size.
static inline bool gp_is_aligned(const struct ggml_tensor * t) {
    const size_t odd = gp_odd_bits[t->type];
    if (__builtin_expect((((uintptr_t) t->data | t->nb[0] | t->nb[1] | t->nb[2] | t->nb[3]) & odd) == 0, 1)) {
        return true;
    }
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        if (t->ne[i] > 1 && (t->nb[i] & odd) != 0) {
            return false;
        }
    }
    return ((uintptr_t) t->data & odd) == 0 || ggml_is_empty(t);
}

static const struct gp_rule * gp_broken_rule(const struct ggml_tensor * node) {
    const struct gp_rule * rule = gp_broken_made_rule(node);
    if (rule == NULL && gp_kernel_of[node->op] != NULL) {
        rule = gp_ask(gp_kernel_of[node->op], node);
    }
    if (rule != NULL) {
        return rule;
    }
    RULE(gp_is_aligned(node), "a result at an address and with strides that are multiples of its elements' size");
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        RULE(node->src[i] == NULL || gp_is_aligned(node->src[i]), "operands at addresses and with strides that are multiples of their elements' size (an offset is in bytes)");
    }
    return NULL;
}

// Releases that can leave nodes of a graph out mark those that are computed.
static bool gp_is_left_out(const struct ggml_cgraph * graph, const struct ggml_tensor * node) {
    const int32_t computed = 16; // GGML_TENSOR_FLAG_COMPUTE
    for (int i = 0; i < graph->n_nodes; i++) {
        if ((graph->nodes[i]->flags & computed) != 0) {
            return (node->flags & computed) == 0;
        }
    }
    return false;
}

static void gp_check_graph(const struct ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        switch (node->op) {
            case GGML_OP_NONE:
            case GGML_OP_RESHAPE:
            case GGML_OP_VIEW:
            case GGML_OP_PERMUTE:
            case GGML_OP_TRANSPOSE:
                continue;
            default:
                break;
        }
        const struct gp_rule * rule = gp_broken_rule(node);
        if (__builtin_expect(rule != NULL, 0) && !ggml_is_empty(node) && !gp_is_left_out(graph, node)) {
            gp_refuse(node, rule);
        }
    }
}

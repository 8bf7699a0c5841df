// Included by the instrumented copy of ggml-cpu.c before ggml_graph_compute (vendor/instrument.py), which calls
// gp_check_graph first. What is asked and why here: kernel_check.h.
#pragma once

#define GP_WRITES(type) (ggml_get_type_traits_cpu(type)->from_float != NULL)

#include "kernel_rules.h"
#include "made_rules.h"
#include "overlap.h"

// By number of the op: of made_rules, then of kernel_rules.
static struct {
    gp_rules_fn made, kernel;
    uint32_t    in_place; // overlap.h
    bool        computes, region, some_rows;
} gp_rules_of[GGML_OP_COUNT];

__attribute__((constructor)) static void gp_index_kernel_rules(void) {
    gp_rules_fn made[GGML_OP_COUNT] = { NULL }, kernel[GGML_OP_COUNT] = { NULL };
    gp_index_rules(made, made_rules, sizeof(made_rules)/sizeof(made_rules[0]));
    gp_index_rules(kernel, kernel_rules, sizeof(kernel_rules)/sizeof(kernel_rules[0]));
    for (int op = 0; op < GGML_OP_COUNT; op++) {
        if (op != GGML_OP_VIEW) { // computes nothing
            gp_rules_of[op].made   = made[op];
            gp_rules_of[op].kernel = kernel[op];
        }
        const char * name = ggml_op_name((enum ggml_op) op);
        for (size_t i = 0; i < sizeof(gp_in_place)/sizeof(gp_in_place[0]); i++) {
            if (strcmp(name, gp_in_place[i].op) == 0) {
                gp_rules_of[op].in_place = gp_in_place[i].operands;
            }
        }
        gp_rules_of[op].region    = strcmp(name, "ACC") == 0 || strcmp(name, "SET") == 0;
        gp_rules_of[op].some_rows = strcmp(name, "SET_ROWS") == 0;
        gp_rules_of[op].computes  = !gp_is_view_or_custom(name);
    }
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
        const struct ggml_tensor * node   = graph->nodes[i];
        const gp_rules_fn          made   = gp_rules_of[node->op].made;
        const gp_rules_fn          kernel = gp_rules_of[node->op].kernel;
        const struct gp_rule     * rule   = NULL;
        if (made != NULL) {
            rule = gp_ask(made, node);
        }
        if (kernel != NULL && rule == NULL) {
            rule = gp_ask(kernel, node);
        }
        if (rule == NULL && gp_rules_of[node->op].computes && gp_may_overlap(node, gp_rules_of[node->op].in_place)) {
            const int i = gp_written_operand(node, gp_rules_of[node->op].in_place, gp_rules_of[node->op].region, gp_rules_of[node->op].some_rows);
            if (__builtin_expect(i >= 0, 0)) {
                rule = gp_overlap_rule(i);
            }
        }
        if (__builtin_expect(rule != NULL, 0) && !ggml_is_empty(node) && !gp_is_left_out(graph, node)) {
            gp_refuse(node, rule);
        }
    }
}

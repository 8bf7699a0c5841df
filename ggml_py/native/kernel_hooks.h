// Included by the instrumented copy of ggml-cpu.c before ggml_graph_compute (vendor/op_edits.py), which calls
// gp_check_graph first. kernel_check.h says what is checked, and why here.
#pragma once

#define GP_WRITES(type) (ggml_get_type_traits_cpu(type)->from_float != NULL)

#include "kernel_rules.h"
#include "made_rules.h"
#include "overlap.h"

// The rules of an op, by its number: from made_rules, then from kernel_rules.
struct gp_op_rules {
    gp_rules_fn made, kernel;
    uint32_t    in_place; // overlap.h
    bool        computes, region, some_rows;
} __attribute__((aligned(32)));

static struct gp_op_rules gp_rules_of[GGML_OP_COUNT];

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

// Releases that can skip nodes of a graph mark the nodes to compute.
static bool gp_is_left_out(const struct ggml_cgraph * graph, const struct ggml_tensor * node) {
    const int32_t computed = 16; // GGML_TENSOR_FLAG_COMPUTE
    for (int i = 0; i < graph->n_nodes; i++) {
        if ((graph->nodes[i]->flags & computed) != 0) {
            return (node->flags & computed) == 0;
        }
    }
    return false;
}

// A graph allocator puts a result where no data is still needed, or in the memory of an operand of the same layout if
// the op can work in place. So only results that a user placed, and results of in-place ops, need a check.
static inline bool gp_is_placed(const struct ggml_tensor * node) {
    return node->view_src != NULL || node->buffer == NULL || node->buffer->usage != GGML_BACKEND_BUFFER_USAGE_COMPUTE;
}

static __attribute__((noinline)) const struct gp_rule * gp_ask_place(const struct ggml_tensor * node) {
    const struct gp_op_rules * of = &gp_rules_of[node->op];
    if (!of->computes || !gp_may_overlap(node, of->in_place)) {
        return NULL;
    }
    const int i = gp_written_operand(node, of->in_place, of->region, of->some_rows);
    return i < 0 ? NULL : gp_overlap_rule(i);
}

static __attribute__((noinline, cold)) void gp_broken_rule(
        const struct ggml_cgraph * graph, const struct ggml_tensor * node, const struct gp_rule * rule) {
    if (!ggml_is_empty(node) && !gp_is_left_out(graph, node)) {
        gp_refuse(node, rule);
    }
}

static void gp_check_graph(const struct ggml_cgraph * graph) {
    if (gp_rules_are_known()) {
        return;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        const struct gp_op_rules * of   = &gp_rules_of[node->op];
        const struct gp_rule     * rule = NULL;
        if (of->made != NULL) {
            rule = gp_ask(of->made, node);
        }
        if (of->kernel != NULL && rule == NULL) {
            rule = gp_ask(of->kernel, node);
        }
        if (gp_is_placed(node) && rule == NULL) {
            rule = gp_ask_place(node);
        }
        if (__builtin_expect(rule != NULL, 0)) {
            gp_broken_rule(graph, node, rule);
        }
    }
}

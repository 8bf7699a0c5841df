// Included by the instrumented copy of ggml-cpu.c before ggml_graph_plan, which notes its findings on request
// (cpu_trace.h), and again with GP_CPU_READ before ggml_graph_compute.
#ifndef GP_CPU_READ

#include "blank.h"
#include "cpu_trace.h"

static _Thread_local struct gp_cpu_record * gp_cpu_asked = NULL; // for the graph being planned on this thread

#else

// Records what ggml_graph_plan finds for each node, and which nodes are fused.
void gp_cpu_plan(const struct ggml_cgraph * graph, int n_threads, struct ggml_threadpool * pool, bool use_ref,
        struct gp_cpu_record * records) {
    gp_cpu_asked = records;
    struct ggml_cplan plan = ggml_graph_plan(graph, n_threads, pool);
    gp_cpu_asked = NULL;
    for (int i = 0; i < graph->n_nodes; i++) {
        records[i].n_threads = plan.n_threads;
    }
#ifdef GP_CPU_FUSES
    plan.use_ref = use_ref;
    for (int i = 0; i < graph->n_nodes; i++) { // in the same way as the compute
        if (!ggml_op_is_empty(graph->nodes[i]->op) && (graph->nodes[i]->flags & GGML_TENSOR_FLAG_COMPUTE) != 0) {
            records[i].n_fused = ggml_cpu_try_fuse_ops(graph, i, NULL, &plan);
            i += records[i].n_fused;
        }
    }
#else
    (void) use_ref;
#endif
}

// Marks the nodes whose values are not written, because each is computed with the next (GP_FUSED). Only the first node
// of those that are fused needs it: RMS_NORM.
static void gp_cpu_mark_fused(const struct ggml_cgraph * graph, const struct ggml_cplan * plan) {
#ifdef GP_CPU_FUSES
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->op == GGML_OP_RMS_NORM) {
            GP_FUSED(graph->nodes[i]) = ggml_cpu_try_fuse_ops(graph, i, NULL, plan) > 0;
        }
    }
#else
    (void) graph; (void) plan;
#endif
}

#endif

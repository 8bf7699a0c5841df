// How the CPU computes the nodes of a graph, as flat records, by upstream's own code: ggml_graph_plan, the extra
// buffer types, and what fuses nodes. Implemented in the instrumented copies of ggml-cpu.c (cpu_hooks.h) and
// ggml-cpu.cpp (cpu_kernels.h); the registry of the CPU hands the functions out as "gp_cpu_nodes" and
// "gp_cpu_backend_nodes". A build made with --pristine has neither.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gp_cpu_record {
    uint64_t work_size;  // bytes of scratch memory that it asks for
    int32_t  n_threads;  // of the compute: its graph's or split's
    int32_t  n_tasks;    // among how many of them upstream divides it
    int32_t  n_fused;    // nodes after it that are computed with it
    char     buft[32];   // the extra buffer type whose kernel computes it, "" for ggml-cpu's own
    char     kernel[64]; // that kernel: "q4_0_8x8_q8_0", or upstream's class
    char     layout[32]; // in which its weight lies there: "q4_0_8x8"; "" where upstream has no name for it
};

// Fills a record for each node. n_threads as in ggml_graph_plan.
typedef void (*gp_cpu_nodes_t)(const struct ggml_cgraph * graph, int n_threads, bool use_ref, struct gp_cpu_record * records);
// The same with the threads of a CPU backend.
typedef void (*gp_cpu_backend_nodes_t)(ggml_backend_t backend, const struct ggml_cgraph * graph, struct gp_cpu_record * records);

// By the CPU backend that is there; false where it does not tell.
bool gp_graph_cpu_nodes(const struct ggml_cgraph * graph, int n_threads, bool use_ref, struct gp_cpu_record * records);

#ifdef __cplusplus
}
#endif

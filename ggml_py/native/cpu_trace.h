// How the CPU computes the nodes of a graph, as flat records made by upstream's own code: ggml_graph_plan, the extra
// buffer types, and the code that fuses nodes. Implemented in the instrumented copies of ggml-cpu.c (cpu_hooks.h) and
// ggml-cpu.cpp (cpu_kernels.h). The CPU's registry returns the functions as "gp_cpu_nodes" and
// "gp_cpu_backend_nodes". A build made with --pristine has neither.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include "recorded_struct.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

GP_STRUCT(gp_cpu_record,
    uint64_t work_size;  // bytes of scratch memory that the node asks for
    int32_t  n_threads;  // threads of the compute of its graph or split
    int32_t  n_tasks;    // number of threads that upstream divides the node among
    int32_t  n_fused;    // number of following nodes that are computed with it
    char     buft[32];   // the extra buffer type whose kernel computes it, "" for ggml-cpu's own kernel
    char     kernel[64]; // that kernel: "q4_0_8x8_q8_0", or upstream's class
    char     layout[32]; // the layout of its weight there: "q4_0_8x8"; "" if upstream has no name for it
);

// Fills a record for each node. n_threads as in ggml_graph_plan.
typedef void (*gp_cpu_nodes_t)(const struct ggml_cgraph * graph, int n_threads, bool use_ref, struct gp_cpu_record * records);
// The same, with the threads of a CPU backend.
typedef void (*gp_cpu_backend_nodes_t)(ggml_backend_t backend, const struct ggml_cgraph * graph, struct gp_cpu_record * records);

// Lets the work of each compute begin so many bytes behind a cache line ("gp_cpu_set_work_offset"): upstream's begins
// where `new` put it.
typedef void (*gp_cpu_set_work_offset_t)(size_t offset);

// Asks this process's CPU backend. False if it does not have the function.
bool gp_graph_cpu_nodes(const struct ggml_cgraph * graph, int n_threads, bool use_ref, struct gp_cpu_record * records);

#ifdef __cplusplus
}
#endif

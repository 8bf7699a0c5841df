// Simulated devices: the backend registry "SIM". To upstream each is a device like any other, with memory
// that nobody else reads (its addresses fault elsewhere); it computes with the CPU's kernels, so results are the CPU's bit for bit.
//
// 1. Devices are made and listed at run time, by name. What a device is (gp_sim_settings) stays as long as a
//    backend or buffer of it is alive; what it wants (gp_sim_decisions) may change at any time.
// 2. What the CPU cannot compute is never supported, whatever the decisions say, and neither are the ops
//    whose function is the caller's own (MAP_CUSTOM, CUSTOM), as on a GPU.
// 3. A closed device is listed no longer. Its native object stays: the same name gets it again.
#pragma once

#include "ggml-backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GP_SIM_OPS   128 // at least GGML_OP_COUNT, and the counts of unary and GLU ops
#define GP_SIM_TYPES 64  // at least GGML_TYPE_COUNT

#ifdef __cplusplus
extern "C" {
#endif

// Who orders the nodes of its splits (graph_optimize).
enum gp_sim_order {
    GP_SIM_ORDER_NONE  = 0,
    GP_SIM_ORDER_ASK   = 1, // gp_sim_decisions.optimizer
    GP_SIM_ORDER_METAL = 2, // upstream's own for Metal
};

struct gp_sim_settings {
    int32_t            type;        // enum ggml_backend_dev_type
    bool               host;        // computes in the CPU's memory, as BLAS does
    bool               host_buffer; // has a type of pinned host memory
    bool               async_;      // computes and copies while the caller goes on; has events
    int32_t            optimize;    // enum gp_sim_order
    size_t             memory;      // bytes of the device
    size_t             max_size;    // bytes of a buffer
    size_t             alignment;   // of buffers and tensors, a power of two
    ggml_backend_dev_t buft_of;     // the device whose buffer type it shares, NULL for its own
};

enum gp_sim_mode {
    GP_SIM_NONE  = 0,
    GP_SIM_ALL   = 1,
    GP_SIM_TABLE = 2,
    GP_SIM_ASK   = 3,
};

// What counts as the batch where ops are wanted although their weights are in host memory.
enum gp_sim_batch {
    GP_SIM_ROWS     = 0, // as CUDA, Vulkan and SYCL count
    GP_SIM_PRODUCTS = 1, // as Metal: rows of MUL_MAT and MUL_MAT_ID, others are not wanted
    GP_SIM_NE1      = 2, // as CANN: ne[1], of all but GET_ROWS
};

// What it supports, and which ops it wants although their weights are in host memory.
struct gp_sim_decisions {
    char     description[128];
    int32_t  mode;                // enum gp_sim_mode
    int32_t  batch;               // enum gp_sim_batch
    int64_t  offload_min_batch;   // 0: wants none
    void *   predicate;           // GP_SIM_ASK: for gp_sim_ask
    void *   optimizer;           // GP_SIM_ORDER_ASK: for gp_sim_ask_order
    uint64_t ops[GP_SIM_OPS];     // GP_SIM_TABLE: bits are types of src[0], or of the result where there is none
    uint64_t unary[GP_SIM_OPS];   // by enum ggml_unary_op, beside ops[GGML_OP_UNARY]
    uint64_t glu[GP_SIM_OPS];
};

// What is alive of a device.
struct gp_sim_state {
    int32_t n_backends;
    int32_t n_buffers; // its host buffers included
    int32_t n_shared;  // open devices that share its buffer type
    size_t  used;      // bytes of its memory
};

// The device of that name, listed, with these settings; NULL when it has others and is in use.
ggml_backend_dev_t gp_sim_open(const char * name, const struct gp_sim_settings * settings);
void               gp_sim_decide(ggml_backend_dev_t dev, const struct gp_sim_decisions * decisions);
void               gp_sim_state(ggml_backend_dev_t dev, struct gp_sim_state * state);
// It is listed no longer. Close its backends and buffers before.
void               gp_sim_close(ggml_backend_dev_t dev);
// Whether this build has that order: of Metal's from the releases on whose part of it stands alone.
bool               gp_sim_can_order(int32_t optimize);
// add_alloc_dep, for whom gp_sim_ask_order asked. False in releases that have none.
bool               gp_sim_keep(void * keep, struct ggml_tensor * tensor, struct ggml_tensor * until);

#ifdef __cplusplus
}
#endif

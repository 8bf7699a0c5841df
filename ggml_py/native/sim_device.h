// Simulated devices: the backend registry "SIM". To upstream each is a device like any other, with memory that only it
// can read (its addresses fault elsewhere). It computes with the CPU's kernels, so results equal the CPU's bit for bit.
//
// 1. Devices are made and listed at run time, by name. The settings of a device (gp_sim_settings) are fixed while it
//    has a backend or buffer; its decisions (gp_sim_decisions) may change at any time.
// 2. Ops that the CPU cannot compute are never supported, unless a card decides, nor are ops that call a function of the
//    caller (MAP_CUSTOM, CUSTOM), as on a GPU.
// 3. A closed device is no longer listed. Its native object stays and is reused for the same name.
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

// How the nodes of its splits are ordered (graph_optimize).
enum gp_sim_order {
    GP_SIM_ORDER_NONE  = 0,
    GP_SIM_ORDER_ASK   = 1, // by gp_sim_decisions.optimizer
    GP_SIM_ORDER_METAL = 2, // by upstream's own function for Metal
    GP_SIM_ORDER_CARD  = 3, // by upstream's own function for its card's backend
};

struct gp_sim_settings {
    int32_t            type;        // enum ggml_backend_dev_type
    bool               host;        // computes in the CPU's memory, as BLAS does
    bool               host_buffer; // has a buffer type of pinned host memory
    bool               async_;      // computes and copies while the caller continues; has events
    int32_t            optimize;    // enum gp_sim_order
    int32_t            wrong;       // enum ggml_op: its f32 results are 1 % too large; GGML_OP_NONE: all are right
    size_t             memory;      // bytes of the device
    size_t             max_size;    // bytes that ggml puts into one buffer, unless a tensor is larger
    size_t             largest;     // maximum bytes of a buffer; 0: max_size
    size_t             alignment;   // of buffers and tensors, a power of two
    ggml_backend_dev_t buft_of;     // the device whose buffer type it shares; NULL if it has its own
    ggml_backend_dev_t card;        // the card that it is (cards/card.h); NULL if it is none
};

enum gp_sim_mode {
    GP_SIM_NONE  = 0,
    GP_SIM_ALL   = 1,
    GP_SIM_TABLE = 2,
    GP_SIM_ASK   = 3,
    GP_SIM_CARD  = 4, // as its card says
};

// What counts as the batch when deciding whether to offload an op whose weights are in host memory.
enum gp_sim_batch {
    GP_SIM_ROWS     = 0, // rows, as for CUDA, Vulkan and SYCL
    GP_SIM_PRODUCTS = 1, // as for Metal: rows of MUL_MAT and MUL_MAT_ID; other ops are not offloaded
    GP_SIM_NE1      = 2, // as for CANN: ne[1] of all ops but GET_ROWS
    GP_SIM_BY_CARD  = 3, // its card decides, whatever offload_min_batch says
};

// Which ops the device supports, and which it offloads if their weights are in host memory.
struct gp_sim_decisions {
    char     description[128];
    int32_t  mode;                // enum gp_sim_mode
    int32_t  batch;               // enum gp_sim_batch
    int64_t  offload_min_batch;   // 0: offloads no op
    void *   predicate;           // GP_SIM_ASK: for gp_sim_ask
    void *   optimizer;           // GP_SIM_ORDER_ASK: for gp_sim_ask_order
    uint64_t ops[GP_SIM_OPS];     // GP_SIM_TABLE: bits are types of src[0], or of the result if there is no src[0]
    uint64_t unary[GP_SIM_OPS];   // by enum ggml_unary_op, in addition to ops[GGML_OP_UNARY]
    uint64_t glu[GP_SIM_OPS];
};

// The live objects of a device.
struct gp_sim_state {
    int32_t n_backends;
    int32_t n_buffers; // including its host buffers
    int32_t n_shared;  // open devices that share its buffer type
    size_t  used;      // bytes of its memory
};

// Lists the device of that name with these settings and returns it. NULL if it has other settings and is in use.
ggml_backend_dev_t gp_sim_open(const char * name, const struct gp_sim_settings * settings);
void               gp_sim_decide(ggml_backend_dev_t dev, const struct gp_sim_decisions * decisions);
void               gp_sim_state(ggml_backend_dev_t dev, struct gp_sim_state * state);
// Removes the device from the list. Close its backends and buffers first.
void               gp_sim_close(ggml_backend_dev_t dev);
// The registry that lists them.
ggml_backend_reg_t gp_sim_registry(void);
// Whether this build has that order. It has Metal's for releases in which that code can be compiled alone.
bool               gp_sim_can_order(int32_t optimize);
// Calls add_alloc_dep for the function that gp_sim_ask_order asked. False in releases that have no add_alloc_dep.
bool               gp_sim_keep(void * keep, struct ggml_tensor * tensor, struct ggml_tensor * until);

#ifdef __cplusplus
}
#endif

// The C interface of our instrumentation: a scheduler's plan as flat records.
//
// Implemented by sched_trace.cpp, which is compiled into the instrumented copy of upstream's
// ggml-backend.cpp, because the scheduler's structs are private to that file. A build made with
// --pristine has none of these functions: callers declare them weak and ask gp_trace_present() first.
//
// Everything here is plain data without pointers into the scheduler. Tensors are numbered, and records
// refer to each other by these ids. In every int32_t, -1 means "none".
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include "cpu_trace.h"
#include "recorded_struct.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stages.h"

#define GP_MAX_SRC   10
#define GP_MAX_NAME  128

#ifdef __cplusplus
extern "C" {
#endif

enum gp_tensor_kind {
    GP_KIND_NODE  = 0, // in graph->nodes; its id is its index there
    GP_KIND_LEAF  = 1, // in graph->leafs
    GP_KIND_OTHER = 2, // reached only through src or view_src
    GP_KIND_COPY  = 3, // made by the scheduler for a split's backend
};

GP_STRUCT(gp_tensor_record,
    uint64_t addr;                    // struct ggml_tensor *
    uint64_t data;                    // tensor->data
    uint64_t view_offs;               // bytes
    uint64_t nbytes;
    int64_t  ne[4];
    uint64_t nb[4];
    int32_t  op_params[16];
    int32_t  src[GP_MAX_SRC];         // ids of the sources as the user built them
    int32_t  planned_src[GP_MAX_SRC]; // ids of the sources in the planned graph (copies)
    int32_t  view_src;                // id
    int32_t  buffer;                  // index into gp_plan.buffers
    int32_t  kind;                    // enum gp_tensor_kind
    int32_t  type;
    int32_t  op;
    int32_t  flags;
    int32_t  use_count;               // graph->use_counts; 0 for tensors outside the graph
    int32_t  backend;                 // assigned backend
    int32_t  copy_of;                 // copies: id of the copied tensor
    int32_t  copy_index;              // copies: which of the n_copies
    int32_t  stage;                   // gp_plan.stages code of the rule that assigned it
    char     cause[16];               // upstream's cause code, "" if none was set
    char     name[GGML_MAX_NAME];     // 64, but in recorders of programs that were built with another
    char     op_desc[32];
    int32_t  passes[GP_N_STAGES];     // nodes and leafs: backend after pass 1, each sweep of 2, 3 and 4
    int32_t  pin;                     // backend that set_tensor_backend asked for
    int32_t  dropped_pin;             // the same, if a reset has dropped it since
    int32_t  supports;                // bit b: backend b supports the op (asked about the graph as built)
    int32_t  offload;                 // bit b: backend b wants the op when its weights are in host memory
);

GP_STRUCT(gp_split_record,
    int32_t backend;
    int32_t start;                    // node range [start, end)
    int32_t end;
    int32_t first_input;              // the inputs are gp_plan.inputs[first_input, first_input + n_inputs)
    int32_t n_inputs;
);

GP_STRUCT(gp_input_record,
    int32_t tensor;                   // id of the source
    int32_t copy;                     // id of the copy that the split reads
);

// add_alloc_dep of a backend's graph_optimize: `tensor` keeps its memory until node `until` is computed.
GP_STRUCT(gp_dep_record,
    int32_t tensor;
    int32_t until;
);

// A backend that does not support an op only because of the memory that the op's sources are in.
GP_STRUCT(gp_refusal_record,
    int32_t tensor;                   // id of the op
    int32_t backend;
    int32_t srcs;                     // bit j: it refuses source j's memory; 0: only several together
);

GP_STRUCT(gp_buft_record,
    int32_t  is_host;
    int32_t  readers;                 // bit b: backend b supports it
    char     name[GP_MAX_NAME];
);

GP_STRUCT(gp_buffer_record,
    uint64_t addr;
    uint64_t size;                    // bytes
    int32_t  usage;                   // enum ggml_backend_buffer_usage
    int32_t  buft;                    // index into gp_plan.bufts
);

// What the graph allocator decided about the memory of a tensor (struct gp_layout_record.kind).
enum gp_layout_kind {
    GP_LAYOUT_ALLOC = 0, // a place of its own
    GP_LAYOUT_REUSE = 1, // the place of `of`, which no later node reads
    GP_LAYOUT_TRIM  = 2, // after such a reuse: the end of the place of `of`, which is larger, is free
    GP_LAYOUT_FREE  = 3, // no later node reads it
};

GP_STRUCT(gp_layout_record,
    uint64_t offset;                  // bytes, in its chunk
    uint64_t size;                    // bytes, before they are rounded up to the alignment
    int32_t  tensor;                  // id; from gp_layout_read its place in the graph: nodes, then leafs
    int32_t  of;                      // the same
    int32_t  step;                    // index into gp_plan.layout_order: the node whose turn it is; -1: before all nodes
    int16_t  backend;                 // whose buffer type's memory it is; from gp_layout_read the buffer's id
    int8_t   chunk;                   // of the buffer
    int8_t   kind;                    // enum gp_layout_kind
);

// Of each buffer type that the scheduler allocates from.
GP_STRUCT(gp_layout_buffer_record,
    uint64_t alignment;               // bytes
    uint64_t max_size;                // bytes of a chunk
    int32_t  backend;                 // the first that has it
);

// Whose layout gp_plan.layout is.
enum gp_layout_of {
    GP_LAYOUT_UNKNOWN = 0,
    GP_LAYOUT_OWN     = 1,            // made for this graph
    GP_LAYOUT_EARLIER = 2,            // made for an earlier, larger graph, and this one fits into it
};

GP_STRUCT(gp_backend_record,
    int32_t  device_type;             // enum ggml_backend_dev_type
    int32_t  buft;                    // index into gp_plan.bufts: the type that the scheduler allocates from
    uint64_t gallocr_size;            // bytes of the compute buffer reserved so far
    char     name[GP_MAX_NAME];
    char     device[GP_MAX_NAME];
);

// The numbers of a plan: X(type, name, differs). Plans that differ in a number with `differs` are different plans.
#define GP_PLAN_NUMBERS(X) \
    X(uint64_t, hash_set_size, false) \
    X(uint64_t, hash_set_used, false) \
    X(int32_t,  n_nodes, true) \
    X(int32_t,  n_copies, true) \
    X(int32_t,  cur_copy, true) \
    X(int32_t,  op_offload, true) \
    X(int32_t,  left_backend, false)    /* backend of split 0 in the plan before this one */ \
    X(int32_t,  optimizers, true)       /* bit b: backend b has a graph_optimize */ \
    X(int32_t,  n_pins_elsewhere, true) /* pins of tensors outside the graph: each takes a slot of the hash set */ \
    X(int32_t,  layout_of, false)       /* enum gp_layout_of */

// The arrays of a plan: X(type, name, tag, differs). The tag names the array in a record. A graph whose tensors have
// memory already is laid out otherwise, and is the same plan.
#define GP_PLAN_ARRAYS(X) \
    X(struct gp_tensor_record,        tensors,        "tensors",  true) \
    X(struct gp_split_record,         splits,         "splits",   true) \
    X(struct gp_input_record,         inputs,         "inputs",   true) \
    X(struct gp_buft_record,          bufts,          "bufts",    true) \
    X(struct gp_buffer_record,        buffers,        "buffers",  true) \
    X(struct gp_backend_record,       backends,       "backends", true) \
    X(int32_t,                        leafs,          "leafs",    true)  /* ids */ \
    X(int32_t,                        order,          "order",    true)  /* ids of the nodes in computing order; none without optimizers */ \
    X(struct gp_dep_record,           alloc_deps,     "deps",     true) \
    X(int32_t,                        cpu_nodes,      "cpunodes", true)  /* ids of the CPU's nodes; `cpu` says how they are computed */ \
    X(struct gp_cpu_record,           cpu,            "cpu",      true) \
    X(int32_t,                        capacities,     "capacity", true)  /* inputs_capacity of each split slot before this plan */ \
    X(struct gp_refusal_record,       refusals,       "refusals", true) \
    X(struct gp_layout_record,        layout,         "layout",   false) \
    /* The allocated graph: ids of its nodes, among them the copies. Upstream keeps the source of a copy with a view \
       that is never computed: -2 - id of the source. */ \
    X(int32_t,                        layout_order,   "lorder",   false) \
    X(struct gp_layout_buffer_record, layout_buffers, "lbuffers", false)

#define GP_NUMBER(type, name, differs) type name;
#define GP_ARRAY(type, name, tag, differs) int32_t n_##name; type * name;

// One planned graph. The caller owns it and frees it with gp_plan_free.
struct gp_plan {
    GP_PLAN_NUMBERS(GP_NUMBER)
    GP_PLAN_ARRAYS(GP_ARRAY)
    void * impl;
};

// Why the allocator had to lay out the compute buffers again for a graph (struct gp_realloc_record.kind).
enum gp_realloc_kind {
    GP_REALLOC_NONE    = 0,
    GP_REALLOC_NODES   = 1, // the graph has another number of nodes (need) than before (have)
    GP_REALLOC_LEAFS   = 2, // the same for leafs
    GP_REALLOC_NODE    = 3, // a node takes more bytes (need) than it was given room for (have)
    GP_REALLOC_SRC     = 4, // a node's source does
    GP_REALLOC_EDGES   = 6, // as many nodes and leafs, but other edges between them: upstream does not check
    GP_REALLOC_BACKEND = 5, // a node or leaf moved to a backend (need) with another buffer type than before (have)
};

// One such reallocation.
GP_STRUCT(gp_realloc_record,
    int32_t  kind;                    // enum gp_realloc_kind
    int32_t  src;                     // GP_REALLOC_SRC: which source of `node`
    bool     ours;                    // upstream would have computed in the old layout
    uint64_t need, have;
    char     tensor[64];              // name of the tensor, "" if the reason is not a tensor
    char     node[64];
    uint64_t before[16];              // bytes of the compute buffer per backend, GGML_SCHED_MAX_BACKENDS
    uint64_t after[16];
);

// Starts or stops recording causes and graph changes on one scheduler.
GGML_BACKEND_API void gp_sched_trace(ggml_backend_sched_t sched, bool on);
// Plans on a scheduler of its own, with the pins of `sched`. Neither `sched` nor `graph` changes. The plan goes to
// `plan`, because a return value is lost if the call raises the exception of a Python predicate.
GGML_BACKEND_API void             gp_sched_plan(ggml_backend_sched_t sched, struct ggml_cgraph * graph, struct gp_plan ** plan);
// The current plan of `sched` for `graph`, the graph that it was last given. NULL if it has none.
GGML_BACKEND_API void             gp_sched_read(ggml_backend_sched_t sched, struct ggml_cgraph * graph, struct gp_plan ** plan);
GGML_BACKEND_API void             gp_plan_free(struct gp_plan * plan);
// The graph that `sched` was last given, NULL if it has none: ggml-opt does not return its graphs.
GGML_BACKEND_API struct ggml_cgraph * gp_sched_graph(ggml_backend_sched_t sched);
// The graph that it computes: its own copy of that one, with the copies of tensors that it makes. Always the same struct.
GGML_BACKEND_API struct ggml_cgraph * gp_sched_runs(ggml_backend_sched_t sched);
// Restores the last planned graph's own sources, node order and flags, and takes the scheduler's memory from its
// tensors.
GGML_BACKEND_API void gp_sched_restore(ggml_backend_sched_t sched);
// Forgets the last planned graph without touching it, as its tensors may be gone.
GGML_BACKEND_API void gp_sched_forget(ggml_backend_sched_t sched);
// Like ggml_backend_sched_reset after gp_sched_restore, but keeps the pins.
GGML_BACKEND_API void gp_sched_unplan(ggml_backend_sched_t sched);
// The number of tensors whose memory or sources gp_sched_restore would restore. Copies them to `tensors`, which must
// have room for all, unless it is NULL.
GGML_BACKEND_API int gp_sched_lent(ggml_backend_sched_t sched, struct ggml_tensor ** tensors);
// Bytes of compute buffer that `graph` needs per backend; 0 for a backend that shares an earlier one's buffer.
// Allocates nothing; neither `sched` nor `graph` changes. False in releases that cannot measure.
GGML_BACKEND_API bool gp_sched_measure(ggml_backend_sched_t sched, struct ggml_cgraph * graph, size_t * sizes);
// Fills the newest records, at most n, oldest first. Returns the number of all reallocations.
GGML_BACKEND_API size_t gp_sched_reallocs(ggml_backend_sched_t sched, struct gp_realloc_record * records, size_t n);
// The buffer that could not be allocated when the graph allocator last failed on this thread: returns its bytes, and
// copies the name of its type.
GGML_BACKEND_API size_t gp_alloc_failed(char * buft, size_t size);
// The last layout of an allocator that is watched. Fills at most n records and returns how many there are; -1 if it has
// laid no graph out since.
GGML_BACKEND_API int64_t gp_layout_read(ggml_gallocr_t galloc, struct gp_layout_record * records, size_t n, int32_t * n_nodes, int32_t * n_leafs);
GGML_BACKEND_API void gp_layout_watch(ggml_gallocr_t galloc);
// Whether the allocator's last layout does not fit `graph`, and why. Changes nothing.
GGML_BACKEND_API bool gp_gallocr_unfit(ggml_gallocr_t galloc, struct ggml_cgraph * graph, struct gp_realloc_record * reason);
// The causes of the tensors in the scheduler's hash set: 16 bytes for each slot that is used, others stay as they are.
GGML_BACKEND_API void gp_sched_causes(ggml_backend_sched_t sched, char * causes);

#ifdef __cplusplus
}
#endif

// The private structs of ggml's scheduler as the compiler laid them out: names, types and places of their fields.
//
// Implemented by sched_fields.cpp in the instrumented copy of ggml-backend.cpp, where they are visible. scheduler/view.py
// reads the fields of a live scheduler with it.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gp_struct {
    GP_STRUCT_SCHED    = 0, // ggml_backend_sched
    GP_STRUCT_SPLIT    = 1, // ggml_backend_sched_split
    GP_STRUCT_HASH_SET = 2, // ggml_hash_set
    GP_STRUCT_CGRAPH   = 3, // ggml_cgraph
};

enum gp_field_kind {
    GP_FIELD_ABSENT  = 0, // this release has no such field
    GP_FIELD_BOOL    = 1,
    GP_FIELD_INT     = 2, // enums too
    GP_FIELD_UINT    = 3,
    GP_FIELD_POINTER = 4,
    GP_FIELD_STRUCT  = 5,
};

struct gp_field_record {
    char     name[40];
    char     type[120];    // as the compiler writes it
    uint64_t offset;       // bytes
    uint64_t size;         // of all of it, bytes
    uint64_t element_size; // of an array's elements, else the same
    int32_t  kind;         // enum gp_field_kind; of an array's elements
    int32_t  dims[2];      // of an array, 0 where there is none
};

// Fills at most n records, in the struct's order; returns how many there are, those included that only other
// releases have. `size` becomes that of the struct.
GGML_BACKEND_API size_t gp_struct_fields(int which, struct gp_field_record * records, size_t n, uint64_t * size);
// The slot of a tensor in the ggml_hash_set at that address; -1 where it is not in there. Inserts nothing.
GGML_BACKEND_API int64_t gp_hash_find(const void * hash_set, const struct ggml_tensor * tensor);
// Nodes and leafs of the scheduler's copy of the graph that it planned before the last.
GGML_BACKEND_API void gp_sched_prev(ggml_backend_sched_t sched, int32_t * n_nodes, int32_t * n_leafs);
// How often it has planned: what was read out of a plan is of no other.
GGML_BACKEND_API uint64_t gp_sched_n_plans(ggml_backend_sched_t sched);

#ifdef __cplusplus
}
#endif

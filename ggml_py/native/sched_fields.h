// The compiler's layout of the private structs of ggml's scheduler: names, types and offsets of their fields.
//
// Implemented by sched_fields.cpp in the instrumented copy of ggml-backend.cpp, where the structs are visible.
// scheduler/view.py uses it to read the fields of a live scheduler.
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
    uint64_t size;         // of the whole field, bytes
    uint64_t element_size; // of an array's elements, else the same as size
    int32_t  kind;         // enum gp_field_kind; for an array, of its elements
    int32_t  dims[2];      // dimensions of an array; 0 if there is none
};

// Fills at most n records, in the struct's order. Returns how many fields there are, including those that only other
// releases have. Sets `size` to the size of the struct.
GGML_BACKEND_API size_t gp_struct_fields(int which, struct gp_field_record * records, size_t n, uint64_t * size);
// The slot of a tensor in the ggml_hash_set at that address; -1 if it is not in the set. Inserts nothing.
GGML_BACKEND_API int64_t gp_hash_find(const void * hash_set, const struct ggml_tensor * tensor);
// Numbers of nodes and leafs in the scheduler's copy of the graph that it planned before the last one.
GGML_BACKEND_API void gp_sched_prev(ggml_backend_sched_t sched, int32_t * n_nodes, int32_t * n_leafs);
// How many times it has planned. Values read from a plan are valid only while this number is the same.
GGML_BACKEND_API uint64_t gp_sched_n_plans(ggml_backend_sched_t sched);

#ifdef __cplusplus
}
#endif

// Checks the rules of made_rules.h and kernel_rules.h, for each node:
//
// 1. After a constructor was called through its guard (bindgen.py), at the calling line: made_rules.
// 2. Before the CPU computes a graph, on the calling thread and before anything is written: made_rules again,
//    because upstream makes nodes of its own and parameters can be set later. Then kernel_rules.
//
// A compute through its guard skips the checks if this thread has computed the graph before, nothing has changed since
// (guard.h), and no rule looked at data. Other computes check each time. So rules avoid function calls where a field or
// two decide the usual case.
//
// A broken rule aborts with its text, its condition and the strides of operands that are not contiguous. The exception
// has the node and its operands (guard.h). Rules must also be safe for tensors without elements, but only a node that
// would be computed is refused.
//
// Tables use the op's name, so a row for an op that a release lacks does no harm.
#pragma once

#include "ggml.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct gp_rule {
    const char * condition;
    const char * expected;
    const char * file;
    int          line;
};

// The parameters of a block of rules: the names that made_rules.h explains.
#define GP_NODE                                                                       \
    const struct ggml_tensor * d __attribute__((unused)), struct ggml_tensor * const * s __attribute__((unused)), \
    const struct ggml_tensor * a __attribute__((unused)), const struct ggml_tensor * b __attribute__((unused)),   \
    const struct ggml_tensor * c __attribute__((unused)), const int32_t * p __attribute__((unused))

typedef const struct gp_rule * (*gp_rules_fn)(GP_NODE);

struct gp_rules {
    const char * op;
    gp_rules_fn  broken; // the first rule that this node breaks, or NULL
};

static inline const struct gp_rule * gp_ask(gp_rules_fn broken, const struct ggml_tensor * node) {
    return broken(node, node->src, node->src[0], node->src[1], node->src[2], node->op_params);
}

#define MADE(op)         static const struct gp_rule * made_##op(GP_NODE)
#define KERNEL(op)       static const struct gp_rule * kernel_##op(GP_NODE)
#define MADE_RULES(op)   { #op, made_##op }
#define KERNEL_RULES(op) { #op, kernel_##op }
#define PASSED           NULL

#define RULE(holds, expected_)                                                       \
    if (__builtin_expect(!(holds), 0)) {                                             \
        static const struct gp_rule gp_broken = { #holds, expected_, __FILE__, __LINE__ }; \
        return &gp_broken;                                                            \
    }

static inline bool gp_is_float(enum ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

static inline bool gp_is_quantized(enum ggml_type type) {
    return !gp_is_float(type) && ggml_is_quantized(type);
}

// Whether blocks of the type can be converted to f32.
static inline bool gp_reads(enum ggml_type type) {
    return ggml_get_type_traits(type)->to_float != NULL;
}

static inline bool gp_stride_is(const struct ggml_tensor * t, int dim, size_t nb) {
    return t->ne[dim] == 1 || t->nb[dim] == nb;
}

// Whether the rows of each matrix are contiguous.
static inline bool gp_plane_is_in_line(const struct ggml_tensor * t) {
    const size_t size = ggml_type_size(t->type);
    return gp_stride_is(t, 0, size) && gp_stride_is(t, 1, size*t->ne[0]);
}

// Whether those of the first n operands that exist have elements. A constructor that checks only some dimensions lets a
// 0 in the others pass.
static inline bool gp_have_elements(struct ggml_tensor * const * s, int n) {
    for (int i = 0; i < n; i++) {
        if (s[i] != NULL && ggml_is_empty(s[i])) {
            return false;
        }
    }
    return true;
}

// Whether t has at least n contiguous numbers, whatever its shape.
static inline bool gp_list_of(const struct ggml_tensor * t, int64_t n) {
    return ggml_is_contiguous(t) && ggml_nelements(t) >= n;
}

// Whether each row can be found from its number and nb[1] alone.
static inline bool gp_rows_are_even(const struct ggml_tensor * t) {
    return gp_stride_is(t, 2, t->nb[1]*t->ne[1]) && gp_stride_is(t, 3, t->nb[1]*t->ne[1]*t->ne[2]);
}

static inline bool gp_same_strides(const struct ggml_tensor * t, const struct ggml_tensor * other) {
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        if (!gp_stride_is(t, i, other->nb[i])) {
            return false;
        }
    }
    return true;
}

// Whether t is an image [width, height, ...] whose dimension `channels` is the innermost one in memory.
static inline bool gp_channels_first(const struct ggml_tensor * t, int channels) {
    const size_t pixel = ggml_type_size(t->type)*t->ne[channels];
    return gp_stride_is(t, channels, ggml_type_size(t->type)) && gp_stride_is(t, 0, pixel) &&
           gp_stride_is(t, 1, pixel*t->ne[0]) && (channels == 3 || gp_stride_is(t, 3, pixel*t->ne[0]*t->ne[1]));
}

// Whether b's rows, at the offset p[3] and with the strides p[0], p[1], p[2], start at whole elements.
static inline bool gp_region_is_aligned(const struct ggml_tensor * b, const int32_t * p) {
    const int32_t odd = (int32_t) ggml_type_size(b->type) - 1;
    for (int i = 0; i < 3; i++) {
        if (b->ne[i + 1] > 1 && (p[i] & odd) != 0) {
            return false;
        }
    }
    return (p[3] & odd) == 0;
}

// Whether b's rows, with the strides p[0], p[1], p[2], do not overlap.
static inline bool gp_region_is_apart(const struct ggml_tensor * b, const int32_t * p) {
    int64_t extent = b->ne[0]*(int64_t) ggml_type_size(b->type);
    bool    used[3] = { b->ne[1] <= 1, b->ne[2] <= 1, b->ne[3] <= 1 };
    for (int n = 0; n < 3; n++) {
        int least = -1;
        for (int i = 0; i < 3; i++) {
            if (!used[i] && (least < 0 || p[i] < p[least])) {
                least = i;
            }
        }
        if (least < 0) {
            break;
        }
        if (p[least] < extent) {
            return false;
        }
        used[least] = true;
        extent += p[least]*(b->ne[least + 1] - 1);
    }
    return true;
}

#ifdef __cplusplus
extern "C" {
#endif

// For guards: aborts if `made`, which a constructor returned, breaks a rule.
__attribute__((visibility("default"))) void gp_check_made(const struct ggml_tensor * made);
// Aborts for a node of a compute that breaks the rule.
__attribute__((visibility("default"), noreturn, cold)) void gp_refuse(const struct ggml_tensor * node, const struct gp_rule * rule);

// Sets whether the rules are known to hold for the next compute on this thread; returns the former value.
// gp_rules_are_known returns the value.
__attribute__((visibility("default"))) bool gp_rules_hold(bool now);
__attribute__((visibility("default"))) bool gp_rules_are_known(void);
// gp_rule_read_data notes that a rule looked at data, which may differ the next time. gp_rules_of_data returns whether
// one did since it was last called.
__attribute__((visibility("default"))) void gp_rule_read_data(void);
__attribute__((visibility("default"))) bool gp_rules_of_data(void);

#ifdef __cplusplus
}
#endif

// Fills `of`, a table by op number, from a table by op name.
static inline void gp_index_rules(gp_rules_fn * of, const struct gp_rules * rules, size_t n) {
    for (int op = 0; op < GGML_OP_COUNT; op++) {
        for (size_t i = 0; i < n; i++) {
            if (strcmp(ggml_op_name((enum ggml_op) op), rules[i].op) == 0) {
                of[op] = rules[i].broken;
            }
        }
    }
}

// Asks the rules of made_rules.h and kernel_rules.h, in one place for each node:
//
// 1. when a constructor was called through its guard (bindgen.py), at the line that called it: made_rules;
// 2. before the CPU computes a graph, on the thread that called and before anything is written: made_rules
//    again, for upstream makes nodes of its own and parameters can be set later, then kernel_rules.
//
// A compute of a graph that this thread has computed before, through its guard, does not ask when nothing has
// changed since (guard.h), if no rule looked at data. Others ask each time. So a rule calls nothing where the usual
// case shows in a field or two.
//
// A rule that is broken is an abort with its text, its condition and the strides of what is not in line; the
// exception has the node and its operands (guard.h). Rules hold for tensors that have no elements, too, but
// only a node that would be computed is refused.
//
// Tables go by the op's name: a release that lacks an op has no use for its row.
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

// What a block of rules sees of a node: the words of made_rules.h.
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

// Whether blocks of the type can be made f32.
static inline bool gp_reads(enum ggml_type type) {
    return ggml_get_type_traits(type)->to_float != NULL;
}

static inline bool gp_stride_is(const struct ggml_tensor * t, int dim, size_t nb) {
    return t->ne[dim] == 1 || t->nb[dim] == nb;
}

// Rows one after the other, as far as a matrix goes.
static inline bool gp_plane_is_in_line(const struct ggml_tensor * t) {
    const size_t size = ggml_type_size(t->type);
    return gp_stride_is(t, 0, size) && gp_stride_is(t, 1, size*t->ne[0]);
}

// Whether the first n operands that there are have elements. A constructor that looks at some of the dimensions
// lets a 0 in the others pass.
static inline bool gp_have_elements(struct ggml_tensor * const * s, int n) {
    for (int i = 0; i < n; i++) {
        if (s[i] != NULL && ggml_is_empty(s[i])) {
            return false;
        }
    }
    return true;
}

// At least n numbers, one after the other, whatever the shape.
static inline bool gp_list_of(const struct ggml_tensor * t, int64_t n) {
    return ggml_is_contiguous(t) && ggml_nelements(t) >= n;
}

// The row of any number is found by nb[1] alone.
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

// An image [width, height, ...] whose dimension `channels` is the innermost one in memory.
static inline bool gp_channels_first(const struct ggml_tensor * t, int channels) {
    const size_t pixel = ggml_type_size(t->type)*t->ne[channels];
    return gp_stride_is(t, channels, ggml_type_size(t->type)) && gp_stride_is(t, 0, pixel) &&
           gp_stride_is(t, 1, pixel*t->ne[0]) && (channels == 3 || gp_stride_is(t, 3, pixel*t->ne[0]*t->ne[1]));
}

// Whether rows of b's length at the offset p[3] and the distances p[0], p[1], p[2] are of whole elements.
static inline bool gp_region_is_aligned(const struct ggml_tensor * b, const int32_t * p) {
    const int32_t odd = (int32_t) ggml_type_size(b->type) - 1;
    for (int i = 0; i < 3; i++) {
        if (b->ne[i + 1] > 1 && (p[i] & odd) != 0) {
            return false;
        }
    }
    return (p[3] & odd) == 0;
}

// Whether b's rows, at the distances p[0], p[1], p[2], are apart.
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

// For guards: aborts when `made`, which a constructor gave back, breaks one.
__attribute__((visibility("default"))) void gp_check_made(const struct ggml_tensor * made);
// Aborts for the node of a compute that breaks the rule.
__attribute__((visibility("default"), noreturn, cold)) void gp_refuse(const struct ggml_tensor * node, const struct gp_rule * rule);

// Whether they hold for what is computed next on this thread; what was said before.
__attribute__((visibility("default"))) bool gp_rules_hold(bool now);
__attribute__((visibility("default"))) bool gp_rules_are_known(void);
// A rule looked at data: what it finds may be another the next time. And whether one did, since this was asked.
__attribute__((visibility("default"))) void gp_rule_read_data(void);
__attribute__((visibility("default"))) bool gp_rules_of_data(void);

#ifdef __cplusplus
}
#endif

// Fills `of`, a table by number, from one by name.
static inline void gp_index_rules(gp_rules_fn * of, const struct gp_rules * rules, size_t n) {
    for (int op = 0; op < GGML_OP_COUNT; op++) {
        for (size_t i = 0; i < n; i++) {
            if (strcmp(ggml_op_name((enum ggml_op) op), rules[i].op) == 0) {
                of[op] = rules[i].broken;
            }
        }
    }
}

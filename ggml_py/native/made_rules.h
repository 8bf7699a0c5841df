// What an op needs on every backend: sizes, parameters and types without which no kernel can work, and which upstream's
// constructors do not check. One block for each op, one RULE for each requirement; docs/KERNELS.md is made from them.
// kernel_check.h says where they are checked.
//
// In a rule `d` is the result, `a`, `b`, `c` are its operands 0, 1, 2 (`s` has all), `p` its parameters.
#pragma once

#include "kernel_check.h"

MADE(VIEW) {
    const size_t size = ggml_type_size(d->type); // of a block, where the type has blocks
    RULE(d->view_offs % size == 0, "an offset, in bytes, of whole elements or blocks");
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        RULE(d->ne[i] <= 1 || d->nb[i] % size == 0, "strides, in bytes, of whole elements or blocks");
    }
    return PASSED;
}

MADE(RMS_NORM_BACK) {
    RULE(b->type == GGML_TYPE_F32, "b in f32");
    return PASSED;
}

MADE(ADD1) {
    RULE(a->type != GGML_TYPE_F32 || b->type == GGML_TYPE_F32, "b in f32, as a");
    return PASSED;
}

MADE(ADD_ID) {
    RULE(gp_have_elements(s, 3), "operands that have elements");
    return PASSED;
}

MADE(GET_REL_POS) {
    RULE(gp_have_elements(s, 1), "operands that have elements");
    return PASSED;
}

MADE(DSV4_HC_COMB) {
    RULE(gp_have_elements(s, 3), "operands that have elements");
    RULE(p[1] <= 1 << 16, "at most 65536 iterations: 2^31 take minutes for each token");
    return PASSED;
}

MADE(DSV4_HC_PRE) {
    RULE(gp_have_elements(s, 2), "operands that have elements");
    return PASSED;
}

MADE(DSV4_HC_POST) {
    RULE(gp_have_elements(s, 4), "operands that have elements");
    return PASSED;
}

MADE(ACC) {
    RULE(gp_region_is_aligned(b, p), "an offset, nb1, nb2, nb3, in bytes, of whole elements");
    RULE(gp_region_is_apart(b, p), "nb1, nb2, nb3 that keep b's rows apart: if they overlap, the sums are random");
    return PASSED;
}

MADE(SET) {
    RULE(a->type == b->type, "b of a's type");
    RULE(gp_region_is_aligned(b, p), "an offset, nb1, nb2, nb3, in bytes, of whole elements");
    return PASSED;
}

MADE(GROUP_NORM) {
    RULE(p[0] > 0 && p[0] <= INT32_MAX - a->ne[2], "n_groups above 0");
    return PASSED;
}

MADE(GET_ROWS_BACK) {
    RULE(a->ne[1] == ggml_nelements(b), "an index in b for each row of a");
    return PASSED;
}

MADE(SOFT_MAX_BACK) {
    RULE(b->type == GGML_TYPE_F32, "b in f32");
    return PASSED;
}

MADE(ROPE) {
    const int n_dims = p[1], mode = p[2];
    // llama.cpp and our models ask devices about a rope of 0 dimensions, which is never computed.
    RULE(n_dims >= 0 && n_dims % 2 == 0, "n_dims of at least 0, in pairs");
    RULE(a->ne[0] % 2 == 0 && n_dims <= a->ne[0], "rows of an even length, of at least n_dims");
    if (mode & 8) { // GGML_ROPE_TYPE_MROPE, and modes that have its bit
        RULE(p[11] >= 0 && p[12] >= 0 && p[13] >= 0 && p[14] >= 0, "sections of at least 0");
        RULE((int64_t) p[11] + p[12] + p[13] + p[14] <= a->ne[0], "sections that are at most a row together");
        RULE(c == NULL || c->ne[0] >= a->ne[0]/2, "a frequency factor in c for each pair of a row");
    }
    return PASSED;
}

MADE(CONV_TRANSPOSE_1D) {
    RULE(p[0] > 0, "a stride above 0");
    return PASSED;
}

MADE(CONV_TRANSPOSE_2D) {
    RULE(p[0] > 0, "a stride above 0");
    return PASSED;
}

MADE(IM2COL) {
    RULE(p[6] == 1 || p[3] == 0, "p1 = 0 in one dimension");
    return PASSED;
}

MADE(IM2COL_3D) {
    RULE(p[9] > 0 && b->ne[3] % p[9] == 0 && a->ne[3] % p[9] == 0, "IC channels in a and in b, above 0");
    return PASSED;
}

MADE(CONV_3D) {
    RULE(b->type == GGML_TYPE_F32, "an image in f32");
    RULE(p[9] > 0 && p[10] > 0 && p[11] > 0, "channels and images above 0");
    return PASSED;
}

MADE(POOL_1D) {
    RULE(p[0] == GGML_OP_POOL_MAX || p[0] == GGML_OP_POOL_AVG, "max or avg");
    RULE(p[1] > 0 && p[2] > 0, "a window and a stride above 0");
    RULE(p[1] <= a->ne[0] + 2*(int64_t) p[3], "a window within the padded row");
    RULE(gp_have_elements(s, 1), "a row with elements"); // its result would not be written
    return PASSED;
}

MADE(POOL_2D) {
    RULE(p[0] == GGML_OP_POOL_MAX || p[0] == GGML_OP_POOL_AVG, "max or avg");
    RULE(p[1] > 0 && p[2] > 0 && p[3] > 0 && p[4] > 0, "windows and strides above 0");
    RULE(gp_have_elements(s, 1), "an image with elements"); // its result would not be written
    // the pads were given as floats
    RULE(p[1] <= a->ne[0] + 2*(int64_t) p[5] + 1 && p[2] <= a->ne[1] + 2*(int64_t) p[6] + 1, "windows within the padded image");
    return PASSED;
}

MADE(POOL_2D_BACK) {
    RULE(p[0] == GGML_OP_POOL_MAX || p[0] == GGML_OP_POOL_AVG, "max or avg");
    RULE(p[1] > 0 && p[2] > 0 && p[3] > 0 && p[4] > 0, "windows and strides above 0");
    RULE(p[1] <= d->ne[0] + 2*(int64_t) p[5] + 1 && p[2] <= d->ne[1] + 2*(int64_t) p[6] + 1, "windows within the padded image");
    return PASSED;
}

MADE(ROLL) {
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        RULE(p[i] > INT32_MIN, "shifts within the tensor");
    }
    return PASSED;
}

MADE(SSM_SCAN) {
    RULE(s[4]->ne[1] > 0 && b->ne[1] % s[4]->ne[1] == 0, "a number of heads that is a multiple of the number of groups");
    return PASSED;
}

MADE(RWKV_WKV6) {
    RULE(gp_have_elements(s, 6), "operands that have elements");
    return PASSED;
}

MADE(GATED_LINEAR_ATTN) {
    RULE(gp_have_elements(s, 5), "operands that have elements");
    return PASSED;
}

MADE(RWKV_WKV7) {
    RULE(gp_have_elements(s, 7), "operands that have elements");
    return PASSED;
}

MADE(GATED_DELTA_NET) {
    for (int i = 0; i < 2; i++) {
        RULE(s[i]->ne[0] == c->ne[0] && s[i]->ne[2] == c->ne[2], "q and k with v's head size and tokens");
        RULE(s[i]->ne[1] > 0 && s[i]->ne[3] > 0 && c->ne[3] % s[i]->ne[3] == 0, "q and k with v's number of sequences, or a divisor of it");
    }
    for (int i = 3; i < 5; i++) {
        RULE(s[i]->ne[1] == c->ne[1] && s[i]->ne[2] == c->ne[2] && s[i]->ne[3] == c->ne[3], "g and beta for each head, token and sequence");
    }
    return PASSED;
}

MADE(CROSS_ENTROPY_LOSS_BACK) {
    RULE(b->type == GGML_TYPE_F32 && c->type == GGML_TYPE_F32, "b and c in f32");
    return PASSED;
}

MADE(OPT_STEP_ADAMW) {
    RULE(b->type == GGML_TYPE_F32, "a gradient in f32");
    RULE(c->type == GGML_TYPE_F32 && s[3]->type == GGML_TYPE_F32, "momenta in f32");
    return PASSED;
}

MADE(OPT_STEP_SGD) {
    RULE(b->type == GGML_TYPE_F32, "a gradient in f32");
    return PASSED;
}

static const struct gp_rules made_rules[] = {
    MADE_RULES(VIEW),
    MADE_RULES(RMS_NORM_BACK),
    MADE_RULES(ADD1),
    MADE_RULES(ADD_ID),
    MADE_RULES(GET_REL_POS),
    MADE_RULES(DSV4_HC_COMB),
    MADE_RULES(DSV4_HC_PRE),
    MADE_RULES(DSV4_HC_POST),
    MADE_RULES(ACC),
    MADE_RULES(SET),
    MADE_RULES(GROUP_NORM),
    MADE_RULES(GET_ROWS_BACK),
    MADE_RULES(SOFT_MAX_BACK),
    MADE_RULES(ROPE),
    { "ROPE_BACK", made_ROPE },
    MADE_RULES(CONV_TRANSPOSE_1D),
    MADE_RULES(CONV_TRANSPOSE_2D),
    MADE_RULES(IM2COL),
    MADE_RULES(IM2COL_3D),
    MADE_RULES(CONV_3D),
    MADE_RULES(POOL_1D),
    MADE_RULES(POOL_2D),
    MADE_RULES(POOL_2D_BACK),
    MADE_RULES(ROLL),
    MADE_RULES(SSM_SCAN),
    MADE_RULES(RWKV_WKV6),
    MADE_RULES(GATED_LINEAR_ATTN),
    MADE_RULES(RWKV_WKV7),
    MADE_RULES(GATED_DELTA_NET),
    MADE_RULES(CROSS_ENTROPY_LOSS_BACK),
    MADE_RULES(OPT_STEP_ADAMW),
    MADE_RULES(OPT_STEP_SGD),
};

// Rules that the CPU's kernels rely on and do not check: types that they have code for, contiguous operands, numbers of
// rows. Taken from ops.cpp, ggml-cpu.c, sgemm.cpp and tiled.cpp of 0.26.0. The names are those of
// made_rules.h. Other backends may not need these, so they are checked where the CPU computes.
#pragma once

#include "kernel_check.h"

#define COPY "; ctx.cont() makes a contiguous copy"

KERNEL(CPY) {
    if (a->type == d->type) {
        return PASSED;
    }
    if (gp_is_quantized(a->type)) {
        RULE(d->type == GGML_TYPE_F32 && gp_reads(a->type), "an f32 result, and a type that the CPU can read");
        RULE(ggml_nelements(d) <= UINT32_MAX, "at most 2^32 - 1 elements");
    } else if (gp_is_quantized(d->type)) {
        RULE(gp_is_float(a->type) && GP_WRITES(d->type), "f32, f16 or bf16, and a result type that the CPU can quantize to");
        RULE(a->ne[0] % ggml_blck_size(d->type) == 0 && a->ne[0] <= d->ne[0], "rows of whole blocks, no longer than the result's");
    } else {
        const bool integer = (a->type == GGML_TYPE_F32 && d->type == GGML_TYPE_I32) || (a->type == GGML_TYPE_I32 && d->type == GGML_TYPE_F32);
        RULE(integer || (gp_is_float(a->type) && gp_is_float(d->type)), "f32, f16, bf16, or f32 to i32 and back");
    }
    return PASSED;
}

KERNEL(ADD) {
    if (gp_is_quantized(a->type)) {
        RULE(gp_reads(a->type) && GP_WRITES(d->type), "types that the CPU can read and quantize to");
    }
    return PASSED;
}

KERNEL(ADD1) {
    if (gp_is_quantized(a->type)) {
        RULE(gp_reads(a->type) && GP_WRITES(d->type), "a type that the CPU can read and quantize to");
        RULE(d->ne[3] == 1, "at most three dimensions: the CPU uses the first stride in place of the fourth");
    }
    return PASSED;
}

KERNEL(UNARY) {
    RULE(gp_is_float(a->type), "f32, f16 or bf16");
    return PASSED;
}

KERNEL(MUL_MAT) {
    RULE(b->type != GGML_TYPE_Q8_K || ggml_is_contiguous(b), "a contiguous b of q8_K" COPY);
    if (p[1] == 1) { // GGML_HINT_SRC0_IS_HADAMARD: a is not looked at, whatever its type
        RULE(a->ne[0] == a->ne[1], "a square a, as its hint says");
        RULE(b->nb[0] == ggml_type_size(b->type), "contiguous rows of b" COPY);
    }
    return PASSED;
}

KERNEL(MUL_MAT_ID) {
    RULE(b->type != GGML_TYPE_Q8_K || ggml_is_contiguous(b), "a contiguous b of q8_K" COPY);
    return PASSED;
}

KERNEL(OUT_PROD) {
    RULE(a->type == GGML_TYPE_F32 || gp_reads(a->type), "an a that the CPU can read");
    return PASSED;
}

KERNEL(GET_ROWS) {
    RULE(!gp_is_quantized(a->type) || gp_reads(a->type), "a type that the CPU can read");
    return PASSED;
}

KERNEL(SET_ROWS) {
    RULE((a->type == GGML_TYPE_F16 && d->type == GGML_TYPE_F16) || GP_WRITES(d->type), "a result type that the CPU can convert to");
    return PASSED;
}

KERNEL(GET_ROWS_BACK) {
    RULE(ggml_is_contiguous(b), "contiguous indices" COPY);
    return PASSED;
}

KERNEL(SOFT_MAX) {
    RULE(c == NULL || gp_list_of(c, a->ne[2]), "contiguous sinks, one for each head" COPY);
    return PASSED;
}

KERNEL(SOFT_MAX_BACK) {
    RULE(gp_rows_are_even(a) && gp_rows_are_even(b) && gp_rows_are_even(d), "evenly spaced rows" COPY);
    return PASSED;
}

KERNEL(CROSS_ENTROPY_LOSS_BACK) {
    RULE(gp_rows_are_even(b) && gp_rows_are_even(c) && gp_rows_are_even(d), "evenly spaced rows" COPY);
    return PASSED;
}

KERNEL(ROPE) {
    RULE(p[1] > 0, "n_dims above 0");
    RULE(gp_stride_is(b, 0, sizeof(int32_t)), "contiguous positions" COPY);
    RULE(c == NULL || gp_list_of(c, p[1]/2), "contiguous frequency factors" COPY);
    return PASSED;
}

KERNEL(CONV_TRANSPOSE_2D) {
    RULE(gp_plane_is_in_line(a), "contiguous rows of the kernel" COPY);
    return PASSED;
}

KERNEL(IM2COL) {
    RULE(p[6] != 1 || gp_plane_is_in_line(b), "contiguous rows of the image" COPY);
    RULE(b->nb[2] <= INT32_MAX && (b->nb[3] <= INT32_MAX || b->ne[3] == 1), "strides between images that fit into 32 bits");
    return PASSED;
}

KERNEL(IM2COL_BACK) {
    RULE(ggml_is_contiguous(a), "a contiguous gradient" COPY);
    return PASSED;
}

KERNEL(CONV_2D_DW) {
    if (ggml_is_contiguous(b)) {
        RULE(ggml_is_contiguous(a), "a contiguous kernel, as the image is contiguous" COPY);
    } else {
        RULE(gp_channels_first(a, 3), "the kernel's channels innermost in memory, as the image's are");
        RULE(gp_channels_first(b, 2), "a contiguous image, or one with its channels innermost in memory" COPY);
    }
    return PASSED;
}

KERNEL(FLASH_ATTN_EXT) {
    RULE(s[4] == NULL || gp_list_of(s[4], a->ne[2]), "contiguous sinks, one for each head" COPY);
    return PASSED;
}

// The types are rules, not assertions in the constructor: llama.cpp (and weight_ops.py) asks whether a device takes a
// model's weights with ops of the weights' types.
KERNEL(SSM_CONV) {
    RULE(b->type == GGML_TYPE_F32, "c in f32");
    RULE(ggml_is_contiguous(b), "a contiguous c" COPY);
    return PASSED;
}

KERNEL(SSM_SCAN) {
    for (int i = 0; i < 6; i++) {
        RULE(s[i]->type == GGML_TYPE_F32, "all operands but the ids in f32");
    }
    RULE(a->nb[3] == a->ne[0]*a->ne[1]*a->ne[2]*sizeof(float), "contiguous states" COPY);
    RULE(ggml_is_contiguous(s[6]), "contiguous ids" COPY);
    return PASSED;
}

KERNEL(GET_REL_POS) {
    RULE(gp_plane_is_in_line(a), "a contiguous a" COPY);
    return PASSED;
}

KERNEL(OPT_STEP_ADAMW) {
    RULE(gp_same_strides(a, b), "a gradient with the strides of a" COPY);
    RULE(gp_same_strides(a, c) && gp_same_strides(a, s[3]), "momenta with the strides of a" COPY);
    RULE(ggml_is_contiguous(s[4]), "contiguous parameters" COPY);
    return PASSED;
}

KERNEL(OPT_STEP_SGD) {
    RULE(gp_same_strides(a, b), "a gradient with the strides of a" COPY);
    RULE(ggml_is_contiguous(c), "contiguous parameters" COPY);
    return PASSED;
}

#undef COPY

static const struct gp_rules kernel_rules[] = {
    KERNEL_RULES(CPY),
    { "DUP", kernel_CPY },
    KERNEL_RULES(ADD),
    KERNEL_RULES(ADD1),
    KERNEL_RULES(UNARY),
    { "SQR", kernel_UNARY },
    { "SQRT", kernel_UNARY },
    { "LOG", kernel_UNARY },
    { "SIN", kernel_UNARY },
    { "COS", kernel_UNARY },
    KERNEL_RULES(MUL_MAT),
    KERNEL_RULES(MUL_MAT_ID),
    KERNEL_RULES(OUT_PROD),
    KERNEL_RULES(GET_ROWS),
    KERNEL_RULES(SET_ROWS),
    KERNEL_RULES(GET_ROWS_BACK),
    KERNEL_RULES(SOFT_MAX),
    KERNEL_RULES(SOFT_MAX_BACK),
    KERNEL_RULES(CROSS_ENTROPY_LOSS_BACK),
    KERNEL_RULES(ROPE),
    { "ROPE_BACK", kernel_ROPE },
    KERNEL_RULES(CONV_TRANSPOSE_2D),
    KERNEL_RULES(IM2COL),
    KERNEL_RULES(IM2COL_BACK),
    KERNEL_RULES(CONV_2D_DW),
    KERNEL_RULES(FLASH_ATTN_EXT),
    KERNEL_RULES(SSM_CONV),
    KERNEL_RULES(SSM_SCAN),
    KERNEL_RULES(GET_REL_POS),
    KERNEL_RULES(OPT_STEP_ADAMW),
    KERNEL_RULES(OPT_STEP_SGD),
};

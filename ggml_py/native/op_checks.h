// Shape checks that upstream's constructors of ops leave out (or make only with assert(), which a release
// build does not have), although the kernels read or write by them. Called by the instrumented copy of
// ggml.c; as every assertion they are an exception at the line that made the op (guard.h).
#pragma once

// Offsets are sums of bytes in 64 bits; 2048 tensors of this size do not wrap them.
#define GP_MOST_BYTES ((int64_t) 1 << 53)

static inline void gp_check_size(enum ggml_type type, int n_dims, const int64_t * ne) {
    GGML_ASSERT(ne[0] >= 0 && ne[0] <= GP_MOST_BYTES);
    int64_t bytes = (int64_t) ggml_row_size(type, ne[0]);
    for (int i = 1; i < n_dims; i++) {
        GGML_ASSERT(ne[i] >= 0 && !__builtin_mul_overflow(bytes, ne[i], &bytes));
    }
    GGML_ASSERT(bytes <= GP_MOST_BYTES);
}

// b is written into a, as if a had the strides nb1, nb2, nb3 from offset on: ggml_set, ggml_acc. Upstream
// checks the last element's start, keeps the strides in 32 bits, and this when it computes.
static inline void gp_check_region(const struct ggml_tensor * a, const struct ggml_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    GGML_ASSERT(nb1 <= INT32_MAX && nb2 <= INT32_MAX && nb3 <= INT32_MAX);
    if (ggml_nelements(b) > 0) {
        GGML_ASSERT(offset + (b->ne[3] - 1)*nb3 + (b->ne[2] - 1)*nb2 + (b->ne[1] - 1)*nb1 + b->ne[0]*ggml_type_size(a->type) <= ggml_nbytes(a));
    }
}

// a is the gradient of what ggml_im2col makes of a kernel and an image of shape ne.
static inline void gp_check_im2col_back(const struct ggml_tensor * a, const struct ggml_tensor * kernel, const int64_t * ne, int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D) {
    GGML_ASSERT(s0 > 0 && p0 >= 0 && d0 > 0 && "expected strides and dilations above 0, no negative padding");
    GGML_ASSERT(a->ne[1] == (ne[0] + 2*p0 - d0*(kernel->ne[0] - 1) - 1)/s0 + 1);
    if (is_2D) {
        GGML_ASSERT(s1 > 0 && p1 >= 0 && d1 > 0 && "expected strides and dilations above 0, no negative padding");
        GGML_ASSERT(a->ne[0] == ne[2]*kernel->ne[1]*kernel->ne[0]);
        GGML_ASSERT(a->ne[2] == (ne[1] + 2*p1 - d1*(kernel->ne[1] - 1) - 1)/s1 + 1 && a->ne[3] == ne[3]);
    } else {
        GGML_ASSERT(a->ne[0] == ne[1]*kernel->ne[0] && a->ne[2] == ne[2] && a->ne[3] == 1);
    }
}

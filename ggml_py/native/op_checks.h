// Shape checks that upstream's constructors of ops lack (or make only with assert(), which a release build disables),
// although the kernels rely on these shapes. Called by the instrumented copy of ggml.c. Like every assertion, a failed
// check becomes an exception at the line that made the op (guard.h).
#pragma once

// Offsets are sums of bytes in 64 bits. 2048 tensors of this size do not overflow them.
#define GP_MOST_BYTES ((int64_t) 1 << 53)

static inline void gp_check_size(enum ggml_type type, int n_dims, const int64_t * ne) {
    GGML_ASSERT(ne[0] >= 0 && ne[0] <= GP_MOST_BYTES);
    int64_t bytes = (int64_t) ggml_row_size(type, ne[0]);
    for (int i = 1; i < n_dims; i++) {
        GGML_ASSERT(ne[i] >= 0 && !__builtin_mul_overflow(bytes, ne[i], &bytes));
    }
    GGML_ASSERT(bytes <= GP_MOST_BYTES);
}

// For ggml_set and ggml_acc, which write b into a as if a had the strides nb1, nb2, nb3 from offset on. Upstream
// stores the strides in 32 bits, and checks only the start of the last element, when it computes.
static inline void gp_check_region(const struct ggml_tensor * a, const struct ggml_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    GGML_ASSERT(nb1 <= INT32_MAX && nb2 <= INT32_MAX && nb3 <= INT32_MAX);
    if (ggml_nelements(b) > 0) {
        GGML_ASSERT(offset + (b->ne[3] - 1)*nb3 + (b->ne[2] - 1)*nb2 + (b->ne[1] - 1)*nb1 + b->ne[0]*ggml_type_size(a->type) <= ggml_nbytes(a));
    }
}

// a must be the gradient of ggml_im2col's result for a kernel and an image of shape ne.
static inline void gp_check_im2col_back(const struct ggml_tensor * a, const struct ggml_tensor * kernel, const int64_t * ne, int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D) {
    GGML_ASSERT(s0 > 0 && p0 >= 0 && d0 > 0 && "expected strides and dilations above 0, no negative padding");
    GGML_ASSERT(a->ne[1] == (ne[0] + 2*(int64_t)p0 - d0*(kernel->ne[0] - 1) - 1)/s0 + 1);
    if (is_2D) {
        GGML_ASSERT(s1 > 0 && p1 >= 0 && d1 > 0 && "expected strides and dilations above 0, no negative padding");
        GGML_ASSERT(a->ne[0] == ne[2]*kernel->ne[1]*kernel->ne[0]);
        GGML_ASSERT(a->ne[2] == (ne[1] + 2*(int64_t)p1 - d1*(kernel->ne[1] - 1) - 1)/s1 + 1 && a->ne[3] == ne[3]);
    } else {
        GGML_ASSERT(a->ne[0] == ne[1]*kernel->ne[0] && a->ne[2] == ne[2] && a->ne[3] == 1);
    }
}

// a must be ggml_win_part's result for an image of w0 by h0: rows of windows of w by w, contiguous.
static inline void gp_check_win_unpart(const struct ggml_tensor * a, int w0, int h0, int w) {
    GGML_ASSERT(w > 0 && w0 >= 0 && h0 >= 0 && ggml_is_contiguous(a));
    GGML_ASSERT(a->ne[1] == w && a->ne[2] == w);
    GGML_ASSERT(a->ne[3] == (((int64_t)w0 + w - 1)/w)*(((int64_t)h0 + w - 1)/w));
}

// Each row must be found from its number and nb[1] alone. (ggml_is_contiguous ignores the stride of a dimension of 1.)
static inline void gp_check_rows(const struct ggml_tensor * a) {
    size_t stride = a->nb[1];
    for (int i = 2; i < GGML_MAX_DIMS; i++) {
        stride *= a->ne[i - 1];
        GGML_ASSERT(a->nb[0] == ggml_type_size(a->type) && (a->ne[i] == 1 || a->nb[i] == stride) && "expected evenly spaced rows");
    }
}

// Each matrix must be found from its number and nb[2] alone.
static inline void gp_check_planes(const struct ggml_tensor * a) {
    GGML_ASSERT((a->ne[3] == 1 || a->nb[3] == a->nb[2]*a->ne[2]) && "expected evenly spaced matrices");
}

// Must have one of these types; rows and planes are read as contiguous.
static inline void gp_check_pool(const struct ggml_tensor * a) {
    GGML_ASSERT(a->type == GGML_TYPE_F32 || a->type == GGML_TYPE_F16);
    GGML_ASSERT(a->nb[0] == ggml_type_size(a->type));
    for (int i = 1; i < GGML_MAX_DIMS; i++) {
        GGML_ASSERT(a->nb[i] == a->nb[i - 1]*a->ne[i - 1] && "expected a contiguous tensor");
    }
}

static inline void gp_check_floats(int n, ...) {
    va_list operands;
    va_start(operands, n);
    for (int i = 0; i < n; i++) {
        GGML_ASSERT(va_arg(operands, struct ggml_tensor *)->type == GGML_TYPE_F32);
    }
    va_end(operands);
}

// The tokens of each sequence follow one another, and each sequence has the same number of tokens.
static inline void gp_check_sequences(int64_t n_tokens, int64_t n_seqs) {
    GGML_ASSERT(n_seqs > 0 && n_tokens % n_seqs == 0);
}

// a must be the gradient of ggml_pool_2d's result for af. Both are read as contiguous floats, plane by plane.
static inline void gp_check_pool_2d_back(const struct ggml_tensor * a, const struct ggml_tensor * af) {
    GGML_ASSERT(a->type == GGML_TYPE_F32 && af->type == GGML_TYPE_F32);
    GGML_ASSERT(ggml_is_contiguous(a) && ggml_is_contiguous(af));
    GGML_ASSERT(a->ne[2] == af->ne[2] && a->ne[3] == af->ne[3]);
}

// The image and the result are read and written as floats, the kernel's elements as contiguous.
static inline void gp_check_conv_direct(const struct ggml_tensor * kernel, const struct ggml_tensor * image) {
    GGML_ASSERT(image->type == GGML_TYPE_F32);
    GGML_ASSERT(ggml_is_contiguously_allocated(kernel));
}

// For each row of q, all rows of k and v are read, and a mask of their length.
static inline void gp_check_flash_attn_ext(const struct ggml_tensor * q, const struct ggml_tensor * k, const struct ggml_tensor * v, const struct ggml_tensor * mask) {
    GGML_ASSERT(q->type == GGML_TYPE_F32);
    GGML_ASSERT(k->ne[1] == v->ne[1]);
    GGML_ASSERT(k->ne[2] > 0 && v->ne[2] > 0 && q->ne[2] % v->ne[2] == 0);
    if (mask) {
        GGML_ASSERT(mask->ne[0] >= k->ne[1] && mask->ne[1] >= q->ne[1]);
    }
}

// A circular pad wraps around only once.
static inline void gp_check_wraps(const struct ggml_tensor * a, int lp0, int lp1, int lp2, int lp3) {
    GGML_ASSERT(a->ne[0] > 0 && a->ne[1] > 0 && a->ne[2] > 0 && a->ne[3] > 0);
    GGML_ASSERT(lp0 <= a->ne[0] && lp1 <= a->ne[1] && lp2 <= a->ne[2] && lp3 <= a->ne[3]);
}

// Finds nodes that overwrite their own operands. Kernels process their operands on several threads and in any order, so
// a result that partly overlaps an operand gets random numbers. This happens with an in-place op on a view that
// overlaps another (ADD, CPY, SET, ...), and with a tensor that Tensor.alloc has put on top of another. Checked for
// each node of a compute (kernel_hooks.h).
//
// A result with exactly the memory and layout of an operand is fine if the kernel reads each element before it writes
// that element, and does not read it later. In-place ops rely on this. gp_in_place lists the operands.
#pragma once

#include "kernel_check.h"

#include <stdlib.h>

struct gp_box { // elements, or blocks, in memory
    uintptr_t start, end;
    size_t    size; // bytes of one
    int64_t   ne[GGML_MAX_DIMS];
    size_t    nb[GGML_MAX_DIMS];
};

static inline struct gp_box gp_box_of(const struct ggml_tensor * t) {
    struct gp_box box = { (uintptr_t) t->data, (uintptr_t) t->data, ggml_type_size(t->type), { 0 }, { 0 } };
    box.end += box.size;
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        box.ne[i] = i == 0 ? t->ne[0]/ggml_blck_size(t->type) : t->ne[i];
        box.nb[i] = t->nb[i];
        box.end  += (box.ne[i] - 1)*box.nb[i];
    }
    return box;
}

// Joins adjacent elements into runs, so that a contiguous tensor is one run.
static inline void gp_join(struct gp_box * box) {
    for (int n = 0; n < GGML_MAX_DIMS; n++) {
        for (int i = 0; i < GGML_MAX_DIMS; i++) {
            if (box->ne[i] > 1 && box->nb[i] == box->size) {
                box->size *= box->ne[i];
                box->ne[i] = 1;
            }
        }
    }
}

// Whether both repeat with the same step and lie side by side within it, as parts of the same rows do.
static inline bool gp_are_interleaved(const struct gp_box * a, const struct gp_box * b) {
    for (int k = 0; k < 2*GGML_MAX_DIMS; k++) {
        const struct gp_box * of   = k < GGML_MAX_DIMS ? a : b;
        const size_t          step = of->nb[k % GGML_MAX_DIMS];
        if (of->ne[k % GGML_MAX_DIMS] == 1 || step == 0) {
            continue;
        }
        size_t length[2] = { a->size, b->size };
        for (int i = 0; i < GGML_MAX_DIMS; i++) {
            length[0] += a->nb[i] % step == 0 ? 0 : (a->ne[i] - 1)*a->nb[i];
            length[1] += b->nb[i] % step == 0 ? 0 : (b->ne[i] - 1)*b->nb[i];
        }
        const size_t from_a = (b->start + step - a->start % step) % step; // distance from a to b
        if (length[0] <= from_a && from_a + length[1] <= step) {
            return true;
        }
    }
    return false;
}

struct gp_run {
    uintptr_t start;
    size_t    size;
    int       of;
};

static inline int gp_compare_runs(const void * a, const void * b) {
    const uintptr_t one = ((const struct gp_run *) a)->start, two = ((const struct gp_run *) b)->start;
    return one < two ? -1 : one > two;
}

static inline int64_t gp_add_runs(const struct gp_box * box, int of, struct gp_run * runs) {
    int64_t n = 0;
    for (int64_t i3 = 0; i3 < box->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < box->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < box->ne[1]; i1++) {
                for (int64_t i0 = 0; i0 < box->ne[0]; i0++) {
                    const size_t at = i0*box->nb[0] + i1*box->nb[1] + i2*box->nb[2] + i3*box->nb[3];
                    runs[n++] = (struct gp_run) { box->start + at, box->size, of };
                }
            }
        }
    }
    return n;
}

// Compares all runs of a, and of b unless it is NULL. If there are too many runs, assumes that none overlap.
static bool gp_runs_meet(const struct gp_box * a, const struct gp_box * b) {
    int64_t n = 0;
    const struct gp_box * boxes[2] = { a, b };
    for (int k = 0; k < 2 && boxes[k] != NULL; k++) {
        n += boxes[k]->ne[0]*boxes[k]->ne[1]*boxes[k]->ne[2]*boxes[k]->ne[3];
    }
    struct gp_run * runs = n > 1 << 22 ? NULL : (struct gp_run *) malloc(n*sizeof(struct gp_run));
    if (runs == NULL) {
        return false;
    }
    const int64_t n_a = gp_add_runs(a, 0, runs);
    if (b != NULL) {
        gp_add_runs(b, 1, runs + n_a);
    }
    qsort(runs, n, sizeof(struct gp_run), gp_compare_runs);
    uintptr_t ends[2] = { 0, 0 };
    bool      meet    = false;
    for (int64_t i = 0; i < n && !meet; i++) {
        meet = runs[i].start < ends[b == NULL ? 0 : 1 - runs[i].of];
        const uintptr_t end = runs[i].start + runs[i].size;
        if (end > ends[runs[i].of]) {
            ends[runs[i].of] = end;
        }
    }
    free(runs);
    return meet;
}

static bool gp_boxes_meet(struct gp_box a, struct gp_box b) {
    if (a.end <= b.start || b.end <= a.start) {
        return false;
    }
    gp_join(&a);
    gp_join(&b);
    return !gp_are_interleaved(&a, &b) && gp_runs_meet(&a, &b);
}

// Whether two elements of t share memory: a view whose strides are smaller than the data that they step over.
static bool gp_meets_itself(const struct ggml_tensor * t) {
    if (ggml_is_contiguous(t)) {
        return false;
    }
    struct gp_box box = gp_box_of(t);
    gp_join(&box);
    bool used[GGML_MAX_DIMS] = { false };
    size_t extent = box.size;
    for (int n = 0; n < GGML_MAX_DIMS; n++) {
        int least = -1;
        for (int i = 0; i < GGML_MAX_DIMS; i++) {
            if (!used[i] && box.ne[i] > 1 && (least < 0 || box.nb[i] < box.nb[least])) {
                least = i;
            }
        }
        if (least < 0) {
            return false;
        }
        if (box.nb[least] < extent) {
            return gp_runs_meet(&box, NULL);
        }
        used[least] = true;
        extent += (box.ne[least] - 1)*box.nb[least];
    }
    return false;
}

static inline bool gp_same_place(const struct ggml_tensor * d, const struct ggml_tensor * s) {
    if (d->data != s->data || d->type != s->type) {
        return false;
    }
    if (ggml_are_same_shape(d, s)) {
        return gp_same_strides(d, s);
    }
    return ggml_is_contiguous(d) && ggml_is_contiguous(s) && ggml_nelements(d) == ggml_nelements(s);
}

// The operands, as bits, whose memory the result may have.
struct gp_in_place {
    const char * op;
    uint32_t     operands;
};

#define GP_ANY_OPERAND (~0u)

static const struct gp_in_place gp_in_place[] = {
    { "DUP", 1 }, { "CPY", GP_ANY_OPERAND }, { "CONT", 1 },
    { "ADD", GP_ANY_OPERAND }, { "SUB", GP_ANY_OPERAND }, { "MUL", GP_ANY_OPERAND }, { "DIV", GP_ANY_OPERAND },
    { "SQR", 1 }, { "SQRT", 1 }, { "LOG", 1 }, { "SIN", 1 }, { "COS", 1 }, { "UNARY", 1 }, { "LEAKY_RELU", 1 },
    { "SCALE", 1 }, { "CLAMP", 1 }, { "FILL", 1 }, { "DIAG_MASK_INF", 1 }, { "DIAG_MASK_ZERO", 1 },
    { "ADD1", GP_ANY_OPERAND }, { "ADD_ID", 1 }, { "ADD_REL_POS", 1 }, { "ACC", 1 }, { "SET", 1 },
    { "NORM", 1 }, { "RMS_NORM", 1 }, { "GROUP_NORM", 1 }, { "L2_NORM", 1 }, { "ROPE", 1 | 1 << 2 }, { "ROPE_BACK", 1 | 1 << 2 },
    { "SOFT_MAX", 1 | 1 << 1 | 1 << 2 }, { "SILU_BACK", GP_ANY_OPERAND },
    // each row's sum is computed before the row is written
    { "RMS_NORM_BACK", 1 | 1 << 1 }, { "SOFT_MAX_BACK", 1 | 1 << 1 },
    { "SET_ROWS", 1 << 2 }, // sources: rows, row numbers, and the tensor that is written
    { "OPT_STEP_ADAMW", 1 }, { "OPT_STEP_SGD", 1 },
};

// Ops that compute nothing, and custom ops: their authors may know how the operands lie in memory.
static bool gp_is_view_or_custom(const char * op) {
    static const char * const names[] = { "NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM" };
    for (size_t i = 0; i < sizeof(names)/sizeof(names[0]); i++) {
        if (strcmp(op, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

// SET_ROWS writes only some rows. Their ids may not be known before they are computed.
static bool gp_rows_meet(const struct ggml_tensor * d, const struct ggml_tensor * rows, const struct ggml_tensor * ids) {
    const struct ggml_tensor * root = ids->view_src != NULL ? ids->view_src : ids;
    if (root->op != GGML_OP_NONE || !gp_is_view_or_custom(ggml_op_name(ids->op)) || (root->buffer != NULL && !ggml_backend_buffer_is_host(root->buffer))) {
        return true;
    }
    gp_rule_read_data();
    const struct gp_box all = gp_box_of(rows);
    for (int64_t i2 = 0; i2 < rows->ne[3]; i2++) {
        for (int64_t i1 = 0; i1 < rows->ne[2]; i1++) {
            for (int64_t i = 0; i < rows->ne[1]; i++) {
                const char *  at  = (const char *) ids->data + i*ids->nb[0] + (i1 % ids->ne[1])*ids->nb[1] + (i2 % ids->ne[2])*ids->nb[2];
                const int64_t id  = ids->type == GGML_TYPE_I64 ? *(const int64_t *) at : *(const int32_t *) at;
                struct ggml_tensor row = *d;
                row.data = (char *) d->data + id*d->nb[1] + i1*d->nb[2] + i2*d->nb[3];
                row.ne[1] = row.ne[2] = row.ne[3] = 1;
                if (id >= 0 && id < d->ne[1] && gp_boxes_meet(gp_box_of(&row), all)) {
                    return true;
                }
            }
        }
    }
    return false;
}

// The operand that node d overwrites while reading it; -1 if none, GGML_MAX_SRC if d's own elements overlap.
static __attribute__((noinline)) int gp_written_operand(const struct ggml_tensor * d, uint32_t in_place, bool region, bool some_rows) {
    if (d->data == NULL || ggml_is_empty(d)) {
        return -1;
    }
    struct gp_box box = gp_box_of(d);
    if (d->view_src != NULL && gp_meets_itself(d)) {
        return GGML_MAX_SRC;
    }
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        const struct ggml_tensor * s = d->src[i];
        if (s == NULL || s->data == NULL || (uintptr_t) s->data >= box.end || ggml_is_empty(s)) {
            continue;
        }
        const bool here = (in_place >> i & 1) != 0;
        if (here && s->data == d->data && gp_same_place(d, s)) {
            continue;
        }
        const struct gp_box other = gp_box_of(s);
        if (other.end <= box.start) {
            continue;
        }
        struct gp_box written = box;
        if (region && i == 1) { // ACC and SET write only b's region
            const struct ggml_tensor * b = s;
            written.start += d->op_params[3];
            written.end = written.start + ggml_row_size(b->type, b->ne[0]);
            for (int k = 0; k < GGML_MAX_DIMS; k++) {
                written.ne[k] = other.ne[k];
                written.nb[k] = k == 0 ? other.size : (size_t) d->op_params[k - 1];
                written.end += k == 0 ? 0 : (written.ne[k] - 1)*written.nb[k];
            }
            if (written.start == other.start && gp_stride_is(b, 0, written.nb[0]) && gp_stride_is(b, 1, written.nb[1]) &&
                gp_stride_is(b, 2, written.nb[2]) && gp_stride_is(b, 3, written.nb[3])) {
                continue; // b is written onto itself
            }
            if (d->op_params[4] == 0 && d->data != d->src[0]->data) {
                written = box; // all of a is copied first
            }
        }
        if (gp_boxes_meet(written, other) && !(some_rows && i == 0 && !gp_rows_meet(d, s, d->src[1]))) {
            return i;
        }
    }
    return -1;
}

// An upper bound for the end of the tensor. Computed for every node, so it calls no function; for block types it uses
// the number of elements.
static inline uintptr_t gp_end_at_most(const struct ggml_tensor * t) {
    return (uintptr_t) t->data + t->ne[0]*t->nb[0] + (t->ne[1] - 1)*t->nb[1] + (t->ne[2] - 1)*t->nb[2] + (t->ne[3] - 1)*t->nb[3];
}

// Whether gp_written_operand must be called.
static inline bool gp_may_overlap(const struct ggml_tensor * d, uint32_t in_place) {
    const uintptr_t start = (uintptr_t) d->data, end = gp_end_at_most(d);
    if (d->view_src != NULL) {
        size_t extent = d->nb[0]*d->ne[0];
        for (int i = 1; i < GGML_MAX_DIMS; i++) {
            if (d->ne[i] > 1) {
                if (d->nb[i] < extent) {
                    return true;
                }
                extent = d->nb[i]*d->ne[i];
            }
        }
    }
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        const struct ggml_tensor * s = d->src[i];
        if (s == NULL || (uintptr_t) s->data >= end || gp_end_at_most(s) <= start) {
            continue;
        }
        const bool same = s->data == d->data && s->type == d->type && memcmp(s->ne, d->ne, sizeof(d->ne) + sizeof(d->nb)) == 0;
        if (!same || (in_place >> i & 1) == 0) {
            return true;
        }
    }
    return false;
}

// The rule that a node breaks by overwriting its operand i, for gp_refuse.
static const struct gp_rule * gp_overlap_rule(int i) {
    static _Thread_local char           expected[160];
    static _Thread_local struct gp_rule rule;
    if (i == GGML_MAX_SRC) {
        snprintf(expected, sizeof(expected), "a result whose elements do not overlap: it is a view that has some of them more than once");
    } else {
        snprintf(expected, sizeof(expected), "a result that does not overwrite src[%d] while that is read; ctx.cont() makes a copy of it", i);
    }
    rule = (struct gp_rule) { "no overlap", expected, __FILE__, __LINE__ };
    return &rule;
}

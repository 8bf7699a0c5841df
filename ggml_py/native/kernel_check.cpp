#include "made_rules.h"

#include "worker_guard.h"

#include <cstdio>

namespace {

thread_local bool holds   = false;
thread_local bool of_data = false;

gp_rules_fn made_of[GGML_OP_COUNT];

const bool indexed = (gp_index_rules(made_of, made_rules, sizeof(made_rules)/sizeof(made_rules[0])), true);

// Appends "; strides in bytes: src[1] [4, 80, 640, 640]" for operands that are not contiguous
void append_strides(char * text, size_t size, const ggml_tensor * node) {
    const char * before = "; strides in bytes: ";
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        const ggml_tensor * t = node->src[i];
        if (t == nullptr || ggml_is_contiguous(t)) {
            continue;
        }
        const size_t n = strlen(text);
        snprintf(text + n, size - n, "%ssrc[%d] [%zu, %zu, %zu, %zu]", before, i, t->nb[0], t->nb[1], t->nb[2], t->nb[3]);
        before = ", ";
    }
}

[[noreturn]] void refuse(const ggml_tensor * node, const gp_rule * rule, const char * on) {
    char text[900];
    snprintf(text, sizeof(text), "%s%s: expected %s (%s)", ggml_op_name(node->op), on, rule->expected, rule->condition);
    append_strides(text, sizeof(text), node);
    ggml_abort(rule->file, rule->line, "%s", text);
}

void check(const ggml_tensor * made) {
    const gp_rules_fn broken = made_of[made->op];
    const gp_rule *   rule   = broken == nullptr ? nullptr : gp_ask(broken, made);
    if (__builtin_expect(rule != nullptr, 0) && !ggml_is_empty(made)) {
        refuse(made, rule, "");
    }
}

// The tensor that has the same elements, in the same or another order.
const ggml_tensor * behind(const ggml_tensor * t) {
    while (t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE || t->op == GGML_OP_CONT) {
        t = t->src[0];
    }
    return t;
}

} // namespace

extern "C" {

void gp_check_made(const ggml_tensor * made) {
    check(made);
    // ggml_conv_2d and similar functions also make the columns and their product, and return a view or copy of that.
    const ggml_tensor * product = behind(made);
    if (product != made && product->op == GGML_OP_MUL_MAT) {
        check(behind(product->src[0]));
        check(behind(product->src[1]));
    }
}

void gp_refuse(const ggml_tensor * node, const gp_rule * rule) {
    gp_pool_failed_at(node);
    refuse(node, rule, " on the CPU");
}

bool gp_rules_hold(bool now) {
    const bool before = holds;
    holds = now;
    return before;
}

bool gp_rules_are_known(void) {
    return holds;
}

void gp_rule_read_data(void) {
    of_data = true;
}

bool gp_rules_of_data(void) {
    const bool did = of_data;
    of_data = false;
    return did;
}

} // extern "C"

// Kernels check the layout of their operands only with assert(), which a release build disables, so they can go out of
// bounds. Included by the instrumented copy of ops.cpp after its other headers: assertions about layout are checked in
// every build, and those about values (NaN, sums) stay disabled.
#pragma once

constexpr bool gp_begins(const char * text, const char * with) {
    return *with == 0 || (*text == *with && gp_begins(text + 1, with + 1));
}

constexpr bool gp_contains(const char * text, const char * part) {
    return gp_begins(text, part) || (*text != 0 && gp_contains(text + 1, part));
}

constexpr bool gp_is_of_layout(const char * condition) {
    return gp_contains(condition, "ggml_") || gp_contains(condition, "nb0") || gp_contains(condition, "nb[") ||
           gp_contains(condition, "->type") || gp_begins(condition, "ne");
}

#undef assert
#define assert(...)                                            \
    do {                                                       \
        constexpr bool gp_wanted = gp_is_of_layout(#__VA_ARGS__); \
        if (gp_wanted) {                                       \
            GGML_ASSERT((__VA_ARGS__));                        \
        }                                                      \
    } while (0)

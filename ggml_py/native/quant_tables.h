// The tables of iq1, iq2 and iq3 take seconds each. Upstream makes them in ggml's critical section; here a
// thread of their own makes them, so that Ctrl-C need not wait: the table is finished behind it, and whoever
// needs it next finds it there. Included by the instrumented copy of ggml.c.
#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Returns when the tables of `type` are there; `make` makes those that are not, `drop` frees all.
void gp_quantize_init(enum ggml_type type, void (*make)(enum ggml_type), void (*drop)(void));
void gp_quantize_free(void (*drop)(void));

// Asked every 20 ms by threads that wait: whether the handler of a signal raised. Set by guard.cpp.
__attribute__((visibility("default"))) void gp_set_interrupted(bool (*interrupted)(void));
// Asks it, between the nodes of backends that have no abort callback.
__attribute__((visibility("default"))) bool gp_ask_interrupted(void);

#ifdef __cplusplus
}
#endif

// The tables of iq1, iq2 and iq3 take seconds each to make. Upstream makes them in ggml's critical section. Here a
// separate thread makes them, so that Ctrl-C need not wait: the thread finishes the table, which the next caller then
// finds. Included by the instrumented copy of ggml.c.
#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Returns when the tables of `type` exist. `make` makes missing tables, `drop` frees all tables.
void gp_quantize_init(enum ggml_type type, void (*make)(enum ggml_type), void (*drop)(void));
void gp_quantize_free(void (*drop)(void));

// Sets the function that waiting threads call every 20 ms to find out whether a signal handler raised. Called by
// guard.cpp.
__attribute__((visibility("default"))) void gp_set_interrupted(bool (*interrupted)(void));
// Calls that function, between the nodes of backends that have no abort callback.
__attribute__((visibility("default"))) bool gp_ask_interrupted(void);

#ifdef __cplusplus
}
#endif

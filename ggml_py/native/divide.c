// Called by compiled code when an integer is divided by zero. It is compiled, with a hidden name, into each library
// whose divisions are checked (CMakeLists.txt, GGML_PY_DIVISIONS). So there is no fault to recover from, and no
// SIGFPE handler whose order relative to faulthandler's would matter.
#include "worker_guard.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

// An upstream program may load this library with its own libggml-base, which lacks the function: then it gets the fault.
#pragma weak gp_divided

static void divided(const char * file, int line, int by_zero) {
    if (gp_divided != NULL) {
        gp_divided(file, line, by_zero);
    }
    raise(SIGFPE);
    abort();
}

struct gp_division {
    const char * file;
    uint32_t     line;
    uint32_t     column;
    const void * type;
};

void __ubsan_handle_divrem_overflow_abort(struct gp_division * at, uintptr_t lhs, uintptr_t rhs);
void __ubsan_handle_divrem_overflow(struct gp_division * at, uintptr_t lhs, uintptr_t rhs);

__attribute__((visibility("hidden"))) void __ubsan_handle_divrem_overflow_abort(struct gp_division * at, uintptr_t lhs, uintptr_t rhs) {
    (void) lhs;
    divided(at->file, (int) at->line, rhs == 0);
}

__attribute__((visibility("hidden"))) void __ubsan_handle_divrem_overflow(struct gp_division * at, uintptr_t lhs, uintptr_t rhs) {
    (void) lhs;
    divided(at->file, (int) at->line, rhs == 0);
}

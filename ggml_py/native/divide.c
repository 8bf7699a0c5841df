// What the compiler calls where an integer is divided by zero: compiled, with a hidden name, into each
// library whose divisions it checks (CMakeLists.txt, GGML_PY_DIVISIONS). So there is no fault to recover from,
// and no handler of SIGFPE whose place in a row with faulthandler's would matter.
#include "worker_guard.h"

#include <stdint.h>

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
    gp_divided(at->file, (int) at->line, rhs == 0);
}

__attribute__((visibility("hidden"))) void __ubsan_handle_divrem_overflow(struct gp_division * at, uintptr_t lhs, uintptr_t rhs) {
    (void) lhs;
    gp_divided(at->file, (int) at->line, rhs == 0);
}

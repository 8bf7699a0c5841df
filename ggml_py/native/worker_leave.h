// A thread of a CPU compute leaves the kernel that it is in, wherever that is.
//
// 1. Each thread of a compute notes its run: where to jump to, and who is asked whether to stop (the abort
//    callback, that is Ctrl-C). In a long compute a timer sends the thread that called ggml a signal every
//    100 ms; kernels have nothing to ask and cost what they cost upstream.
// 2. The signal's handler looks at the stack. If all of it, from the interrupted instruction to gp_pool_run,
//    is code of ggml's CPU backend, nobody holds a lock or is in the middle of malloc: it is as if the kernel
//    had called the handler there. So the abort callback may be asked, Python's handlers may run in it, and if
//    it says no the kernel goes on with the next instruction.
// 3. If it says yes, the thread jumps to gp_pool_run and fails there as worker_guard.h has it. The others get
//    the signal from the thread that waits for them, and leave in the same way.
// 4. A thread in ggml_barrier is left there, for it is counted already: it asks the others to fail.
// 5. In other code (libc's memcpy, an op written in Python, BLAS) the handler returns and comes again.
//
// What a kernel allocated (a std::vector) is lost when it is left; the table is in docs/SCHEDULER.md.
#pragma once

#include "worker_guard.h"

#include <csetjmp>

namespace gp {

// What a thread does in gp_pool_run; on its stack.
struct run {
    jmp_buf         back;  // to gp_pool_run
    gp_pool *       pool;
    ggml_tensor **  node;  // where the one that is computed is noted
    const gp_stop * stop;  // NULL: nobody is asked, or another thread asks
    void *          frame; // of gp_pool_run
    run *           outer; // of the compute whose custom op makes this one
    bool            busy  = false; // asking, or leaving
    bool            fails = false; // it is the one that ends the compute
};

// The thread's run begins and ends; between the two it may come back through `back`.
void enter(run & here);
void leave(run & here);
// This thread's run, which may be jumped to from here; NULL if other code than ggml's is in between.
run * run_of_this_kernel();
// Sends the other threads of that compute the signal.
void call_out(gp_pool * pool);
// `code` is in a library whose code may be left; `from` to `to` is its ggml_barrier.
void may_leave(const void * code, const char * from, const char * to);

} // namespace gp

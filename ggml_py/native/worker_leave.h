// Lets a thread of a CPU compute leave its kernel, wherever it is in there.
//
// 1. Each thread of a compute notes its run: where to jump to, and what to ask whether to stop (the abort
//    callback, which checks for Ctrl-C). In a long compute a timer sends the calling thread a signal every
//    100 ms. Kernels ask nothing, so they cost the same as upstream's.
// 2. The signal handler examines the stack. If it is all code of ggml's CPU backend, from the interrupted
//    instruction to gp_pool_run, then the thread holds no lock and is not inside malloc. It is as if the kernel
//    had called the handler. So the handler may ask the abort callback, and Python's handlers may run in it.
//    If the answer is no, the kernel continues with the next instruction.
// 3. If the answer is yes, the thread jumps to gp_pool_run and fails there, see worker_guard.h. The others get
//    the signal from the thread that waits for them, and leave in the same way.
// 4. A thread in ggml_barrier stays there, because it is already counted: it asks the others to fail.
// 5. In other code (libc's memcpy, an op written in Python, BLAS) the handler returns, and the signal is repeated.
//
// Memory that a kernel allocated (a std::vector) is leaked when the kernel is left. docs/SCHEDULER.md has a table.
#pragma once

#include "worker_guard.h"

#include <csetjmp>

namespace gp {

// A thread's work in gp_pool_run, on its stack.
struct run {
    jmp_buf         back;  // into gp_pool_run
    gp_pool *       pool;
    ggml_tensor **  node;  // where the current node is noted
    const gp_stop * stop;  // NULL: no callback, or another thread asks it
    void *          frame; // of gp_pool_run
    run *           outer; // the run whose custom op started this compute
    bool            busy  = false; // asking, or leaving
    bool            fails = false; // this thread ends the compute
};

// Begin and end the thread's run. In between, the thread may come back through `back`.
void enter(run & here);
void leave(run & here);
// This thread's run, if a jump to it is possible from here; NULL if there is code other than ggml's in between.
run * run_of_this_kernel();
// Sends the signal to the other threads of that compute.
void call_out(gp_pool * pool);
// `code` is in a library whose code may be left. Its ggml_barrier is from `from` to `to`.
void may_leave(const void * code, const char * from, const char * to);

} // namespace gp

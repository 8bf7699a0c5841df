// Included at the top of the C source that cffi emits (_ggml.c), after Python.h.
//
// cffi wraps every call in Py_BEGIN_ALLOW_THREADS ... Py_END_ALLOW_THREADS. Our version of the latter checks
// the guard's record (guard.h) and raises. So each call through `lib` is checked in C, without Python code
// and without a change to cffi's output.
#pragma once

#include "guard.h"
#include "shared.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Before 3.14, Python ends a (daemon) thread that asks for the GIL after the interpreter has ended. In the middle of a
// compute this destroys a stack that the other threads of the compute, and our signal handler, still use. So the
// thread hangs until the process exits, as in 3.14.
static void gp_stay(void * nothing) {
    (void) nothing;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;) {
        pause();
    }
}

#define GP_PYTHON_BEGIN pthread_cleanup_push(gp_stay, NULL)
#define GP_PYTHON_END   pthread_cleanup_pop(0);

// Called by cffi for each extern "Python" function.
struct _cffi_externpy_s;
static void gp_call_python(void (*call)(struct _cffi_externpy_s *, char *), struct _cffi_externpy_s * python, char * args) {
    GP_PYTHON_BEGIN
    call(python, args);
    GP_PYTHON_END
}

#undef _cffi_call_python
#define _cffi_call_python(python, args) \
    gp_call_python((void (*)(struct _cffi_externpy_s *, char *)) _cffi_exports[_CFFI_CPIDX], python, args)

// The exception that a Python signal handler (KeyboardInterrupt) raised during a compute. It is raised again
// when the native call returns.
static __thread PyObject * gp_stored[3];

// The record is taken before any Python code runs. Python may collect garbage, and calls in finalizers check for
// errors too.
static void gp_raise(void) {
    struct gp_error * last = gp_last_error();
    const struct gp_error e = *last;
    PyObject *type = gp_stored[0], *value = gp_stored[1], *traceback = gp_stored[2];
    last->kind = GP_ERROR_NONE;
    gp_stored[0] = gp_stored[1] = gp_stored[2] = NULL;
    // A wait for an RPC server may have ended in the middle of a call. The objects that the call was changing
    // must be told (boundary/handle.py).
    const bool left = e.kind == GP_ERROR_LEFT || e.kind == GP_ERROR_RPC;
    PyObject * told = NULL;
    if (type == NULL || left) {
        PyObject * raising = PyImport_ImportModule("ggml_py.boundary.raising");
        told = raising == NULL ? NULL : PyObject_CallMethod(raising, "from_native", "issssi",
            type == NULL ? e.kind : GP_ERROR_LEFT, e.call, e.message, e.operands, e.file, e.line);
        Py_XDECREF(raising);
    }
    if (type == NULL) {
        if (told != NULL) {
            PyErr_SetObject((PyObject *) Py_TYPE(told), told);
            Py_DECREF(told);
        }
        return;
    }
    PyErr_Clear();
    PyErr_NormalizeException(&type, &value, &traceback);
    if (told != NULL && value != NULL) {
        PyException_SetContext(value, told);
    } else {
        Py_XDECREF(told);
    }
    PyErr_Restore(type, value, traceback);
}

// mapped_files.h
extern uint32_t gp_damages;
const char *    gp_damage_take(size_t * nbytes);
void            gp_damage_pending(void);

// Raises for a mapped file that could not be read. Another thread may have reported it already.
static void gp_raise_damage(void) {
    static char last[4096];
    static size_t nbytes;
    const char * path = gp_damage_take(&nbytes);
    struct gp_error * e = gp_last_error();
    if (path != NULL) {
        strncpy(last, path, sizeof(last) - 1);
    }
    e->kind = GP_ERROR_FILE;
    e->call[0] = e->file[0] = '\0';
    snprintf(e->message, sizeof(e->message), "%s", last);
    snprintf(e->operands, sizeof(e->operands), "%zu", nbytes);
    gp_raise();
}

// Runs on Python's main thread, between two bytecode instructions.
static int gp_on_damage(void * nothing) {
    (void) nothing;
    size_t nbytes;
    const char * path = gp_damage_take(&nbytes);
    if (path == NULL) {
        return 0; // a call has raised it in the meantime
    }
    struct gp_error * e = gp_last_error();
    e->kind = GP_ERROR_FILE;
    e->call[0] = e->file[0] = '\0';
    snprintf(e->message, sizeof(e->message), "%s", path);
    snprintf(e->operands, sizeof(e->operands), "%zu", nbytes);
    gp_raise();
    return -1;
}

// Called from the signal handler of a fault. The faulting code was reading a mapped file, so it holds no Python lock.
void gp_damage_pending(void) {
    Py_AddPendingCall(gp_on_damage, NULL);
}

#undef Py_BEGIN_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS                                              \
    { const uint32_t gp_damages_before = __atomic_load_n(&gp_damages, __ATOMIC_RELAXED); \
      PyThreadState * _save = PyEval_SaveThread();

#define GP_RAISE_IF_FAILED                                                  \
    if (__builtin_expect(gp_last_error()->kind != GP_ERROR_NONE || gp_stored[0] != NULL, 0)) { \
        gp_raise();                                                         \
        return NULL;                                                        \
    }

// bindgen.py removes the macros around calls that are too short to release the GIL.
#undef Py_END_ALLOW_THREADS
#define Py_END_ALLOW_THREADS                                                \
    PyEval_RestoreThread(_save);                                            \
    if (__builtin_expect(gp_damages_before != __atomic_load_n(&gp_damages, __ATOMIC_RELAXED), 0)) { \
        gp_raise_damage();                                                  \
        return NULL;                                                        \
    } }                                                                     \
    GP_RAISE_IF_FAILED

// True once a Python signal handler (Ctrl-C) has raised on this thread. ggml asks before each node, so the GIL
// is taken only every 20 ms. It asks on the computing thread, where Python's signal handlers may run.
// Not static, because waits for a simulated device ask too (sim_queue.cpp).
bool gp_interrupted(void);
bool gp_interrupted(void) {
    static __thread long long last_ms;
    struct timespec now;
    if (gp_stored[0] != NULL) {
        return true;
    }
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now); // a few ms late, but five times as fast
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    const long long ms = now.tv_sec * 1000LL + now.tv_nsec / 1000000;
    if (ms - last_ms < 20) {
        return false;
    }
    last_ms = ms;
    GP_PYTHON_BEGIN
    PyGILState_STATE gil = PyGILState_Ensure();
    if (PyErr_CheckSignals() != 0) {
        PyErr_Fetch(&gp_stored[0], &gp_stored[1], &gp_stored[2]);
    }
    PyGILState_Release(gil);
    GP_PYTHON_END
    return gp_stored[0] != NULL;
}

static bool gp_on_abort(void * user_data); // in Python (boundary/callback.py)

// ggml_abort_callback for backends and plans. Stops a compute on Ctrl-C, or when the AbortCallback in the cell
// `user_data`, if there is one now, says so. Plans keep the address of the cell.
static bool gp_stops(void * user_data) {
    void * callback = user_data == NULL ? NULL : *(void * volatile *) user_data;
    return gp_interrupted() || (callback != NULL && gp_on_abort(callback));
}

// The address of gp_stops, for ggml_backend_set_abort_callback.
static void * gp_interrupt_callback(void) {
    return (void *) gp_stops;
}

// Keeps the exception of the Python function behind `handle` for the call that asked.
static void gp_keep_raised(void * handle) {
    GP_PYTHON_BEGIN
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject * module = PyImport_ImportModule("ggml_py.boundary.callback");
    if (module != NULL) {
        Py_XDECREF(PyObject_CallMethod(module, "raise_stored", "K", (unsigned long long) (uintptr_t) handle));
    }
    PyErr_Fetch(&gp_stored[0], &gp_stored[1], &gp_stored[2]);
    Py_XDECREF(module);
    PyGILState_Release(gil);
    GP_PYTHON_END
}

// In Python (sim/calls.py).
static int gp_on_supports(const struct ggml_tensor * op, void * user_data);
static int gp_on_order(struct ggml_tensor ** nodes, int n, int32_t * order, void * keep, void * user_data);

// Declared in sim_device.cpp. An exception of the predicate is kept for the call that asked. Until that call
// returns, the predicate is not called again.
bool gp_sim_ask(const struct ggml_tensor * op, void * predicate);
bool gp_sim_ask(const struct ggml_tensor * op, void * predicate) {
    const int answer = gp_stored[0] != NULL ? -1 : gp_on_supports(op, predicate);
    if (answer < 0 && gp_stored[0] == NULL) {
        gp_keep_raised(predicate);
    }
    return answer != 0;
}

// The same for an assumption (assume.cpp).
int gp_assumed_answer(const struct ggml_tensor * op, void * user_data);
int gp_assumed_answer(const struct ggml_tensor * op, void * user_data) {
    const int answer = gp_stored[0] != NULL ? -1 : gp_on_supports(op, user_data);
    if (answer < 0 && gp_stored[0] == NULL) {
        gp_keep_raised(user_data);
    }
    return answer < 0 ? 0 : answer;
}

// The same for an order (sim_optimize.cpp). False leaves the nodes as they are.
bool gp_sim_ask_order(struct ggml_tensor ** nodes, int n, int32_t * order, void * keep, void * optimizer);
bool gp_sim_ask_order(struct ggml_tensor ** nodes, int n, int32_t * order, void * keep, void * optimizer) {
    const int answer = gp_stored[0] != NULL ? -1 : gp_on_order(nodes, n, order, keep, optimizer);
    if (answer < 0 && gp_stored[0] == NULL) {
        gp_keep_raised(optimizer);
    }
    return answer > 0;
}

static bool gp_failed(void) {
    return gp_last_error()->kind != GP_ERROR_NONE || gp_stored[0] != NULL;
}

// The table for cffi modules beside this one (shared.h).
static void * gp_shared(void) {
    static struct gp_shared shared;
    gp_share_guards(&shared);
    shared.failed       = gp_failed;
    shared.raise        = gp_raise;
    shared.raise_damage = gp_raise_damage;
    shared.damages      = &gp_damages;
    return &shared;
}

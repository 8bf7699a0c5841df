// Included at the top of the C source that cffi emits (_ggml.c), after Python.h.
//
// cffi wraps every call in Py_BEGIN_ALLOW_THREADS ... Py_END_ALLOW_THREADS. Ours ends by looking at
// what the guard left (guard.h) and raises, so that each call through `lib` is checked, in C, without
// a line of Python and without a change to what cffi writes.
#pragma once

#include "guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Until 3.14 Python ends a thread that wants the GIL once the interpreter ends (a daemon). In the middle of a
// compute that takes its stack away from under the other threads of the compute, and from under our signal
// handler. So the thread stays as it is, as 3.14 has it, until the process is gone.
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

// What cffi calls for each extern "Python" function.
struct _cffi_externpy_s;
static void gp_call_python(void (*call)(struct _cffi_externpy_s *, char *), struct _cffi_externpy_s * python, char * args) {
    GP_PYTHON_BEGIN
    call(python, args);
    GP_PYTHON_END
}

#undef _cffi_call_python
#define _cffi_call_python(python, args) \
    gp_call_python((void (*)(struct _cffi_externpy_s *, char *)) _cffi_exports[_CFFI_CPIDX], python, args)

// The exception of a Python signal handler (KeyboardInterrupt) that ran during a compute; raised again
// when the native call returns.
static __thread PyObject * gp_stored[3];

// What failed is taken before any Python runs: that may collect garbage, and the calls of finalizers look
// whether they failed, too.
static void gp_raise(void) {
    struct gp_error * last = gp_last_error();
    const struct gp_error e = *last;
    PyObject *type = gp_stored[0], *value = gp_stored[1], *traceback = gp_stored[2];
    last->kind = GP_ERROR_NONE;
    gp_stored[0] = gp_stored[1] = gp_stored[2] = NULL;
    // A wait for an RPC server may have been left in the middle of a call: what the call was changing has
    // to know (boundary/handle.py).
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

// Raises for a mapped file of which something could not be read. Somebody may have told of it already.
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

// On Python's main thread, where it runs between two instructions.
static int gp_on_damage(void * nothing) {
    (void) nothing;
    size_t nbytes;
    const char * path = gp_damage_take(&nbytes);
    if (path == NULL) {
        return 0; // a call has raised meanwhile
    }
    struct gp_error * e = gp_last_error();
    e->kind = GP_ERROR_FILE;
    e->call[0] = e->file[0] = '\0';
    snprintf(e->message, sizeof(e->message), "%s", path);
    snprintf(e->operands, sizeof(e->operands), "%zu", nbytes);
    gp_raise();
    return -1;
}

// From the handler of a fault in code that reads a mapped file, and so holds no lock of Python's.
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

// bindgen.py leaves the macros out around calls that are too short to give the GIL away.
#undef Py_END_ALLOW_THREADS
#define Py_END_ALLOW_THREADS                                                \
    PyEval_RestoreThread(_save);                                            \
    if (__builtin_expect(gp_damages_before != __atomic_load_n(&gp_damages, __ATOMIC_RELAXED), 0)) { \
        gp_raise_damage();                                                  \
        return NULL;                                                        \
    } }                                                                     \
    GP_RAISE_IF_FAILED

// True once the handler of a signal (Ctrl-C) raised on this thread. ggml asks before each node, so the
// GIL is taken only every 20 ms; it is asked on the thread that computes, where Python's handlers may run.
// Not static: whoever waits for a simulated device asks too (sim_queue.cpp).
bool gp_interrupted(void);
bool gp_interrupted(void) {
    static __thread long long last_ms;
    struct timespec now;
    if (gp_stored[0] != NULL) {
        return true;
    }
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now); // a few ms late, and a fifth of the time
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

static bool gp_on_abort(void * user_data); // Python's (_callback.py)

// ggml_abort_callback for backends and plans: stops a compute on Ctrl-C, and when the AbortCallback in the
// cell `user_data` says so, where there is one now: plans keep the address of the cell.
static bool gp_stops(void * user_data) {
    void * callback = user_data == NULL ? NULL : *(void * volatile *) user_data;
    return gp_interrupted() || (callback != NULL && gp_on_abort(callback));
}

// Its address, to hand to ggml_backend_set_abort_callback.
static void * gp_interrupt_callback(void) {
    return (void *) gp_stops;
}

// What the Python function behind `handle` raised is kept for the call that asks.
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

// Python's (sim/calls.py)
static int gp_on_supports(const struct ggml_tensor * op, void * user_data);
static int gp_on_order(struct ggml_tensor ** nodes, int n, int32_t * order, void * keep, void * user_data);

// Declared in sim_device.cpp. The predicate's own exception is kept for the call that asks; until that
// returns nothing more is asked.
bool gp_sim_ask(const struct ggml_tensor * op, void * predicate);
bool gp_sim_ask(const struct ggml_tensor * op, void * predicate) {
    const int answer = gp_stored[0] != NULL ? -1 : gp_on_supports(op, predicate);
    if (answer < 0 && gp_stored[0] == NULL) {
        gp_keep_raised(predicate);
    }
    return answer != 0;
}

// The same of an order (sim_optimize.cpp); false leaves the nodes as they are.
bool gp_sim_ask_order(struct ggml_tensor ** nodes, int n, int32_t * order, void * keep, void * optimizer);
bool gp_sim_ask_order(struct ggml_tensor ** nodes, int n, int32_t * order, void * keep, void * optimizer) {
    const int answer = gp_stored[0] != NULL ? -1 : gp_on_order(nodes, n, order, keep, optimizer);
    if (answer < 0 && gp_stored[0] == NULL) {
        gp_keep_raised(optimizer);
    }
    return answer > 0;
}

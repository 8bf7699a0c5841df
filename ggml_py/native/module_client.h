// Included at the top of the C source that cffi emits for a module beside _ggml, as module.h is for _ggml: each call
// checks the guard's record, which is _ggml's, and raises.
#pragma once

#include "guard.h"
#include "shared.h"

// The table that `gp_share` was given.
extern const struct gp_shared * gp_table;
void gp_share(void * shared);

#undef Py_BEGIN_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS                                              \
    { const bool gp_shares = gp_table != NULL; /* not yet in the call of gp_share */ \
      const uint32_t gp_damages_before = !gp_shares ? 0 : __atomic_load_n(gp_table->damages, __ATOMIC_RELAXED); \
      PyThreadState * _save = PyEval_SaveThread();

#undef Py_END_ALLOW_THREADS
#define Py_END_ALLOW_THREADS                                                \
    PyEval_RestoreThread(_save);                                            \
    if (gp_shares) {                                                        \
        if (__builtin_expect(gp_damages_before != __atomic_load_n(gp_table->damages, __ATOMIC_RELAXED), 0)) { \
            gp_table->raise_damage();                                       \
            return NULL;                                                    \
        }                                                                   \
        if (__builtin_expect(gp_table->failed(), 0)) {                      \
            gp_table->raise();                                              \
            return NULL;                                                    \
        }                                                                   \
    } }

// What a scheduler did while it computed, as flat records with times: the C interface of recording a run.
//
// Implemented by run_hooks.h in the instrumented copy of ggml-backend.cpp, beside sched_trace.h and with its
// rules: a build made with --pristine has none of these functions; -1 means "none".
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gp_run_kind {
    GP_RUN_COMPUTE = 0, // all splits of a graph given to their backends, once
    GP_RUN_COPY    = 1, // an input of a split copied to its backend, with the waits that this took
    GP_RUN_NODES   = 2, // nodes given to a backend: computed, or queued where it works asynchronously
    GP_RUN_WAIT    = 3, // for a backend to finish what it was given
    GP_RUN_RECORD  = 4, // an event put behind what a backend was given
    GP_RUN_QUEUE   = 5, // a backend told to wait for an event before it goes on
};

enum gp_run_how {
    GP_RUN_HOW_NONE    = 0,
    GP_RUN_SYNCHRONIZE = 1, // waits: for all that the backend was given
    GP_RUN_EVENT       = 2, // waits: for its event
    GP_RUN_ASYNC       = 3, // copies: cpy_tensor_async took it
    GP_RUN_REFUSED     = 4, // copies: cpy_tensor_async did not; copied at once
    GP_RUN_AT_ONCE     = 5, // copies: nobody asked it; copied at once
    GP_RUN_PARTS       = 6, // copies: by tensor_set_async, the parts that are used
    GP_RUN_CALLBACK    = 7, // copies: the copy callback did it
};

struct gp_run_event {
    int64_t  start, end; // ns, of a clock that only goes forward
    uint64_t bytes;      // copies: what the scheduler moved, less than the tensor where only some experts were
    int32_t  kind;       // enum gp_run_kind
    int32_t  compute;    // which compute since the recording began; waits after it, too
    int32_t  split;      // copies, nodes
    int32_t  input;      // copies: which of the split's inputs
    int32_t  backend;    // that copies to itself, computes, is waited for, or has the event
    int32_t  copy;       // which of the scheduler's n_copies the compute used, whose events are its own
    int32_t  first, last; // nodes: [first, last) of the graph
    int32_t  inside;     // waits: the event (a copy) that they are a part of
    int32_t  how;        // enum gp_run_how
    int32_t  by;         // events: the backend whose queue they are in, or that waits in it
};

// Starts a recording of at most max_events on `sched`, instead of the last one. With `per_op` each node is
// computed alone and waited for, by an eval callback of ours: false, and nothing begun, where the user has set one.
GGML_BACKEND_API bool gp_run_start(ggml_backend_sched_t sched, bool per_op, size_t max_events);
// Ends it; its events are kept until the next one starts or the scheduler goes.
GGML_BACKEND_API void gp_run_stop(ggml_backend_sched_t sched);
// Fills at most n events, oldest first, and returns how many were recorded; `lost` of them, the last ones, were
// not kept.
GGML_BACKEND_API size_t gp_run_events(ggml_backend_sched_t sched, struct gp_run_event * events, size_t n, size_t * lost);
// Computes that the recording has seen begin.
GGML_BACKEND_API int32_t gp_run_computes(ggml_backend_sched_t sched);

#ifdef __cplusplus
}
#endif

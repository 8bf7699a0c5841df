// The C interface for recording a run: what a scheduler did while it computed, as flat records with times.
//
// Implemented by run_hooks.h in the instrumented copy of ggml-backend.cpp. As for sched_trace.h, a build made with
// --pristine has none of these functions, and -1 means "none".
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include "recorded_struct.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gp_run_kind {
    GP_RUN_COMPUTE = 0, // all splits of a graph given to their backends, once
    GP_RUN_COPY    = 1, // an input of a split copied to its backend, including the waits for it
    GP_RUN_NODES   = 2, // nodes given to a backend: computed, or queued if it works asynchronously
    GP_RUN_WAIT    = 3, // a wait until a backend has finished its work
    GP_RUN_RECORD  = 4, // an event recorded after the work that a backend was given
    GP_RUN_QUEUE   = 5, // a backend told to wait for an event before it continues
};

enum gp_run_how {
    GP_RUN_HOW_NONE    = 0,
    GP_RUN_SYNCHRONIZE = 1, // waits: for all work of the backend
    GP_RUN_EVENT       = 2, // waits: for the backend's event
    GP_RUN_ASYNC       = 3, // copies: made by cpy_tensor_async
    GP_RUN_REFUSED     = 4, // copies: cpy_tensor_async refused; made synchronously
    GP_RUN_AT_ONCE     = 5, // copies: made synchronously, without asking cpy_tensor_async
    GP_RUN_PARTS       = 6, // copies: only the parts that are used, by tensor_set_async
    GP_RUN_CALLBACK    = 7, // copies: made by the copy callback
};

GP_STRUCT(gp_run_event,
    int64_t  start, end; // ns of a monotonic clock
    uint64_t bytes;      // copies: bytes moved; less than the tensor if only some experts were copied
    int32_t  kind;       // enum gp_run_kind
    int32_t  compute;    // number of the compute since the recording began; also for waits after it
    int32_t  split;      // copies, nodes
    int32_t  input;      // copies: which of the split's inputs
    int32_t  backend;    // the backend that is copied to, computes, is waited for, or has the event
    int32_t  copy;       // which of the scheduler's n_copies the compute used; each has its own events
    int32_t  first, last; // nodes: [first, last) of the graph
    int32_t  inside;     // waits: the event (a copy) that they are part of
    int32_t  how;        // enum gp_run_how
    int32_t  by;         // events: the backend in whose queue they are recorded, or which waits for them
);

// Starts a recording of at most max_events on `sched`, replacing the last one. With `per_op` each node is computed
// alone and waited for, using an eval callback of ours. Returns false, and starts nothing, if the user has set an eval
// callback.
GGML_BACKEND_API bool gp_run_start(ggml_backend_sched_t sched, bool per_op, size_t max_events);
// Ends the recording. Its events are kept until the next one starts or the scheduler is freed.
GGML_BACKEND_API void gp_run_stop(ggml_backend_sched_t sched);
// Fills at most n events, oldest first, and returns how many were recorded. The `lost` last ones were not kept.
GGML_BACKEND_API size_t gp_run_events(ggml_backend_sched_t sched, struct gp_run_event * events, size_t n, size_t * lost);
// Number of computes that began during the recording.
GGML_BACKEND_API int32_t gp_run_computes(ggml_backend_sched_t sched);

#ifdef __cplusplus
}
#endif

// The C interface of the recorder: every plan that this process's schedulers make, written to a file as it is made.
//
// Implemented by record_file.cpp (the file) and record_hooks.h (what is written). A record is a stream of chunks that
// say how long they are and have a checksum, so it can be read after a crash. ggml_py/record/stream.py describes it.
#pragma once

#include "sched_trace.h"
#include "run_trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The numbers of a plan (struct gp_plan), and when it was made.
GP_STRUCT(gp_record_plan,
    uint32_t plan;                    // number of the plan in its process, from 0
    uint32_t scheduler;               // number of the scheduler in its process, from 0
    int64_t  time;                    // ns since the epoch
    uint64_t thread;
    GP_PLAN_NUMBERS(GP_NUMBER)
    int32_t  before;                  // the plan that the scheduler made before it, -1: none
);

// How often a scheduler made and used a plan. Later records of the same pair replace earlier ones.
GP_STRUCT(gp_record_seen,
    uint32_t plan, scheduler;
    uint64_t planned, allocated, computed;
    int64_t  first, last;             // ns since the epoch
    int64_t  layout;                  // the plan in whose layout it last got its memory; -1: unknown, or none
);

// A scheduler's memory was laid out again for a plan.
GP_STRUCT(gp_record_realloc,
    uint32_t plan, scheduler;
    int64_t  time;                    // ns since the epoch
    struct gp_realloc_record reason;
);

// What a compute was of.
GP_STRUCT(gp_record_compute,
    uint32_t scheduler;
    int32_t  plan;                    // -1: was not written
    int32_t  compute;                 // number of the compute, as its events have it
    int32_t  lost;                    // events that there was no room for
    int32_t  n_events;                // of those that follow, in the order of these records
);

struct gp_record_options {
    bool     run;                     // computes too, with times
    bool     lines;                   // a line on standard error for each new plan
    uint64_t max_size;                // bytes that this process writes
    uint64_t every;                   // only every so manyth planning of a scheduler is looked at, and compute timed
    uint64_t first;                   // only so many plans are written; 0: all
};

// The names of all ops and types, as JSON.
GGML_BACKEND_API const char * gp_record_tables(void);
// Records what schedulers do from now on, at the end of the file `path`, which is made if it is missing. Returns 0, or
// errno if the file cannot be written; EALREADY if this process is being recorded. In a recorded program the
// environment starts it (record/recorder.cpp).
GGML_BACKEND_API int gp_record_start(const char * path, const char * about, const struct gp_record_options * options);
// Writes the counts that are not in the file yet.
GGML_BACKEND_API void gp_record_flush(void);
// Ends it. Returns 0, or the errno of what could not be written. Fills in how many plans were written and left out.
GGML_BACKEND_API int gp_record_stop(uint64_t * written, uint64_t * left_out);

#ifdef __cplusplus
}
#endif

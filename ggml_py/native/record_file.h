// The file of a record: chunks of sections, and the numbers of what has been written. No knowledge of schedulers.
//
//   file     MAGIC, then chunks
//   chunk    struct chunk_head, which tells processes apart by a random number, then `size` bytes; its CRC-32 is over both
//   payload  for "head" and "note": JSON; for others sections: char tag[8], uint64_t size, then so many bytes
//
// Several processes may append to one file: a chunk is one write. Each process begins with a chunk "head".
#pragma once

#include "record_trace.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace gp {

extern std::atomic<bool> recording_on;

static inline bool record_on() {
    return __builtin_expect(recording_on.load(std::memory_order_relaxed), 0);
}

struct section {
    const char * tag;
    const void * data;
    size_t       size;
};

template <class T> section rows(const char * tag, const T * data, size_t n) {
    return { tag, data, n * sizeof(T) };
}

// What of a tensor's record the lines need to say how plans differ.
struct row_facts {
    int64_t ne[4];
    int32_t op, backend, pin, buffer;
};

// What is known of a plan that was written.
struct plan_facts {
    std::vector<uint32_t> rows;
    int32_t               n_nodes = 0;
};

// Begins the record when the first scheduler plans: a process without any leaves no file. `path` may end with "/": a
// folder, for a file of each process.
void     record_at_need(const std::string & path, const std::string & about, const gp_record_options & options);
// These take the record's lock. A number of a scheduler that was made before the record began is a new one.
uint32_t record_scheduler(const void * sched, const std::string & about);
void     record_forget(const void * sched);
// Writes the plan with its new rows, unless an equal one was written, and returns its number; -1 if it was left out.
// `why` says how it differs from the plan `before` if it was written now, else it is empty.
int32_t record_plan(const gp_plan & plan, uint32_t scheduler, uint64_t thread, int32_t before, std::string & why);
// `what`: 0 planned, 1 allocated (in the layout of the plan `layout`; -1: unknown), 2 computed.
void    record_seen(uint32_t scheduler, int32_t plan, int what, int32_t layout = -1);
void    record_realloc(uint32_t scheduler, int32_t plan, const gp_realloc_record & reason);
void    record_events(uint32_t scheduler, int32_t plan, int32_t compute, std::vector<gp_run_event> & events, size_t lost);
void    record_left_out();
void    record_line(const std::string & text); // with time, program and process before it; if lines are wanted
bool    record_looks(uint64_t count);          // whether the planning or compute with this number is looked at
bool    record_times();                        // whether computes are timed
uint64_t record_generation();                  // another number for each record, and in a forked child
std::string json_text(const char * text);

} // namespace gp

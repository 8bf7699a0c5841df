// The state of this process's record. record_file.cpp writes the file, record_plans.cpp the plans of schedulers, and
// record_names.cpp the meaning of the numbers.
#pragma once

#include "record_file.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

namespace gp {

struct hash_key {
    uint64_t a, b;
    bool operator==(const hash_key & o) const { return a == o.a && b == o.b; }
};
struct hash_of {
    size_t operator()(const hash_key & k) const { return k.a; }
};

struct pair_of {
    uint32_t scheduler;
    int32_t  plan;
    bool operator==(const pair_of & o) const { return scheduler == o.scheduler && plan == o.plan; }
};
struct pair_hash {
    size_t operator()(const pair_of & p) const { return (size_t) p.scheduler << 32 ^ (uint32_t) p.plan; }
};

struct record {
    int               fd = -1;
    uint64_t          device = 0, inode = 0; // of the file
    uint32_t          id = std::random_device()(); // of this process in the file: containers share process ids
    std::string       path, about;
    gp_record_options options = {};
    uint64_t          size = 0;      // bytes written by this process
    int64_t           began = 0;
    int64_t           flushed = 0;   // when counts were last written
    int               failed = 0;    // errno of the write that failed: nothing is written any more
    uint64_t          n_left_out = 0, n_plans = 0;
    bool              said_full = false;
    bool              begun = false; // its head is written: a forked child's is with the first that it has to say
    uint32_t          n_schedulers = 0;

    std::unordered_map<const void *, uint32_t>               schedulers;
    std::unordered_map<hash_key, uint32_t, hash_of>          rows;  // by content, the number in the file
    std::vector<row_facts>                                   facts; // of rows
    std::unordered_map<hash_key, int32_t, hash_of>           plans;
    std::vector<plan_facts>                                  plan_rows;
    std::unordered_map<pair_of, gp_record_seen, pair_hash>   seen;
    std::vector<pair_of>                                     dirty; // of `seen`, since it was last written
    std::vector<gp_record_compute>                           computes;
    std::vector<gp_run_event>                                events;

    bool put(const char type[5], const std::vector<section> & sections);
    void put_json(const char type[5], const std::string & text);
    void head();
    void flush();
};

extern std::mutex              record_lock;
extern std::unique_ptr<record> & current; // under `record_lock`; threads may outlive static objects
extern std::atomic<uint64_t>   record_every;
extern std::atomic<bool>       record_timing;

int64_t     record_now(); // ns since the epoch
void        record_say(const std::string & text); // a line on standard error; under `record_lock`
void        open_wanted(); // what `record_at_need` asked for; under `record_lock`
std::string record_tables(); // names of ops, types and enumerators, as members of a JSON object
std::string record_layouts();
std::string record_command_line();
const char * record_program();

} // namespace gp

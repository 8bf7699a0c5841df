#include "record_file.h"

#include "ggml-impl.h"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <unordered_map>

#include <fcntl.h>
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

namespace gp {

std::atomic<bool> recording_on{false};

namespace {

const char MAGIC[16] = { 'G', 'G', 'M', 'L', 'P', 'Y', 'R', 'E', 'C', 'O', 'R', 'D', '1', '\r', '\n', '\n' };

struct chunk_head {
    char     magic[4];
    char     type[4];
    uint64_t size;
    uint32_t pid;
    uint32_t crc; // of this, with 0 here, and the payload
    int64_t  time;
};

int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

uint32_t crc32(uint32_t crc, const void * data, size_t size) {
    static uint32_t table[256];
    static std::once_flag made;
    std::call_once(made, [] {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) {
                c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            }
            table[i] = c;
        }
    });
    crc = ~crc;
    for (const uint8_t * p = (const uint8_t *) data, * end = p + size; p < end; p++) {
        crc = table[(crc ^ *p) & 255] ^ (crc >> 8);
    }
    return ~crc;
}

uint64_t mixed(uint64_t hash, const void * data, size_t size) {
    const char * p = (const char *) data;
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    uint64_t word = size;
    memcpy(&word, p, size);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

// --- how the records are laid out, for a reader that has not been compiled with these headers

template <class T> std::string format() {
    if (std::is_array<T>::value) {
        typedef typename std::remove_extent<T>::type item;
        const std::string one = std::is_same<item, char>::value ? "" : format<typename std::conditional<std::is_array<item>::value, char, item>::type>();
        const size_t n = std::extent<T>::value;
        return one.empty() ? "S" + std::to_string(n) : one + ":" + std::to_string(n);
    }
    return (std::is_signed<T>::value ? "i" : "u") + std::to_string(sizeof(T));
}

struct layouts {
    std::string text;

    void begin(const char * name, size_t size) {
        text += std::string(text.empty() ? "" : "]},") + "\"" + name + "\":{\"size\":" + std::to_string(size) + ",\"fields\":[";
    }
    void field(const char * name, const std::string & format, size_t offset) {
        text += std::string(text.back() == '[' ? "" : ",") + "[\"" + name + "\",\"" + format + "\"," + std::to_string(offset) + "]";
    }
    std::string end() {
        return "{" + text + "]}}";
    }
};

std::string describe_layouts() {
    layouts l;
#define BEGIN(type) { typedef type one; l.begin(#type, sizeof(one));
#define F(name) l.field(#name, format<decltype(one::name)>(), offsetof(one, name));
#define END }
    BEGIN(gp_tensor_record) F(addr) F(data) F(view_offs) F(nbytes) F(ne) F(nb) F(op_params) F(src) F(planned_src) F(view_src)
        F(buffer) F(kind) F(type) F(op) F(flags) F(use_count) F(backend) F(copy_of) F(copy_index) F(stage) F(cause) F(name)
        F(op_desc) F(passes) F(pin) F(dropped_pin) F(supports) F(offload) END
    BEGIN(gp_split_record) F(backend) F(start) F(end) F(first_input) F(n_inputs) END
    BEGIN(gp_input_record) F(tensor) F(copy) END
    BEGIN(gp_dep_record) F(tensor) F(until) END
    BEGIN(gp_buft_record) F(is_host) F(readers) F(name) END
    BEGIN(gp_buffer_record) F(addr) F(size) F(usage) F(buft) END
    BEGIN(gp_backend_record) F(device_type) F(buft) F(gallocr_size) F(name) F(device) END
    BEGIN(gp_cpu_record) F(work_size) F(n_threads) F(n_tasks) F(n_fused) F(buft) F(kernel) F(layout) END
    BEGIN(gp_run_event) F(start) F(end) F(bytes) F(kind) F(compute) F(split) F(input) F(backend) F(copy) F(first) F(last)
        F(inside) F(how) F(by) END
    BEGIN(gp_record_plan) F(plan) F(scheduler) F(time) F(thread) F(hash_set_size) F(hash_set_used) F(n_nodes) F(n_copies)
        F(cur_copy) F(op_offload) F(left_backend) F(optimizers) F(n_pins_elsewhere) F(before) END
    BEGIN(gp_record_seen) F(plan) F(scheduler) F(planned) F(allocated) F(computed) F(first) F(last) END
    BEGIN(gp_record_compute) F(scheduler) F(plan) F(compute) F(lost) F(n_events) END
    BEGIN(gp_realloc_record) F(kind) F(src) F(ours) F(need) F(have) F(tensor) F(node) F(before) F(after) END
    l.begin("gp_record_realloc", sizeof(gp_record_realloc));
    l.field("plan", "u4", offsetof(gp_record_realloc, plan));
    l.field("scheduler", "u4", offsetof(gp_record_realloc, scheduler));
    l.field("time", "i8", offsetof(gp_record_realloc, time));
    l.field("reason", "gp_realloc_record", offsetof(gp_record_realloc, reason));
#undef BEGIN
#undef F
#undef END
    return l.end();
}

template <class F> std::string names(int n, F name) {
    std::string text = "[";
    for (int i = 0; i < n; i++) {
        const char * one = name(i);
        text += (i ? "," : "") + json_text(one ? one : "");
    }
    return text + "]";
}

// Enumerators that some releases lack.
template <class E> std::string compute_flag(decltype(E::GGML_TENSOR_FLAG_COMPUTE) *) {
    return ",\"compute\":" + std::to_string((int) E::GGML_TENSOR_FLAG_COMPUTE);
}
template <class E> std::string compute_flag(...) { return ""; }
template <class E> std::string meta_type(decltype(E::GGML_BACKEND_DEVICE_TYPE_META) *) {
    return ",\"META\":" + std::to_string((int) E::GGML_BACKEND_DEVICE_TYPE_META);
}
template <class E> std::string meta_type(...) { return ""; }

std::string enumerators() {
#define ONE(name, value) "\"" name "\":" + std::to_string((int) value)
    return std::string("{\"TensorFlag\":{") + ONE("input", GGML_TENSOR_FLAG_INPUT) + "," + ONE("output", GGML_TENSOR_FLAG_OUTPUT) + "," +
        ONE("param", GGML_TENSOR_FLAG_PARAM) + "," + ONE("loss", GGML_TENSOR_FLAG_LOSS) + compute_flag<enum ggml_tensor_flag>(nullptr) +
        "},\"BackendBufferUsage\":{" + ONE("any", GGML_BACKEND_BUFFER_USAGE_ANY) + "," + ONE("weights", GGML_BACKEND_BUFFER_USAGE_WEIGHTS) +
        "," + ONE("compute", GGML_BACKEND_BUFFER_USAGE_COMPUTE) +
        "},\"BackendDevType\":{" + ONE("CPU", GGML_BACKEND_DEVICE_TYPE_CPU) + "," + ONE("GPU", GGML_BACKEND_DEVICE_TYPE_GPU) + "," +
        ONE("IGPU", GGML_BACKEND_DEVICE_TYPE_IGPU) + "," + ONE("ACCEL", GGML_BACKEND_DEVICE_TYPE_ACCEL) +
        meta_type<enum ggml_backend_dev_type>(nullptr) + "}}";
#undef ONE
}

std::string tables() {
    return "\"enums\":" + enumerators() + "," + "\"ops\":" + names(GGML_OP_COUNT, [](int i) { return ggml_op_name((enum ggml_op) i); }) +
        ",\"types\":" + names(GGML_TYPE_COUNT, [](int i) { return ggml_type_name((enum ggml_type) i); });
}

std::string command_line() {
    std::string text = "[";
    if (FILE * file = fopen("/proc/self/cmdline", "rb")) {
        std::string word;
        for (int c = getc(file); c != EOF; c = getc(file)) {
            if (c == 0) {
                text += (text.size() > 1 ? "," : "") + json_text(word.c_str());
                word.clear();
            } else {
                word += (char) c;
            }
        }
        fclose(file);
    }
    return text + "]";
}

const char * program() {
#if defined(__GLIBC__)
    return program_invocation_short_name;
#else
    return "program";
#endif
}

// --- the record of this process

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
    std::string       path, about;
    gp_record_options options = {};
    uint64_t          size = 0;      // bytes written by this process
    int64_t           began = 0;
    int64_t           flushed = 0;   // when counts were last written
    int               failed = 0;    // errno of the write that failed: nothing is written any more
    uint64_t          n_left_out = 0, n_plans = 0;
    bool              said_full = false;
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

std::mutex              lock;
std::unique_ptr<record> & current = *new std::unique_ptr<record>(); // under `lock`; threads may outlive static objects
std::unique_ptr<record> & wanted = *new std::unique_ptr<record>();  // under `lock`: what to open at need
std::atomic<uint64_t>   generation{1};
std::atomic<uint64_t>   every{1};
std::atomic<bool>       timing{false};

bool write_all(int fd, iovec * parts, int n) {
    while (n > 0) {
        const ssize_t done = writev(fd, parts, n < 64 ? n : 64);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0) {
            return false;
        }
        size_t left = (size_t) done;
        while (n > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            n--;
        }
        if (n > 0) {
            parts->iov_base = (char *) parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
    return true;
}

bool record::put(const char type[5], const std::vector<section> & sections) {
    if (failed) {
        return false;
    }
    struct section_head { char tag[8]; uint64_t size; };
    std::vector<section_head> heads(sections.size());
    chunk_head chunk = { { 'G', 'P', 'C', 'K' }, {}, 0, (uint32_t) getpid(), 0, now() };
    memcpy(chunk.type, type, 4);
    std::vector<iovec> parts;
    parts.push_back({ &chunk, sizeof(chunk) });
    for (size_t i = 0; i < sections.size(); i++) {
        if (sections[i].tag[0] != '\0') {
            heads[i] = {};
            memcpy(heads[i].tag, sections[i].tag, strnlen(sections[i].tag, sizeof(heads[i].tag)));
            heads[i].size = sections[i].size;
            parts.push_back({ &heads[i], sizeof(section_head) });
        }
        if (sections[i].size > 0) {
            parts.push_back({ const_cast<void *>(sections[i].data), sections[i].size });
        }
    }
    for (size_t i = 1; i < parts.size(); i++) {
        chunk.size += parts[i].iov_len;
    }
    chunk.crc = crc32(0, &chunk, sizeof(chunk)); // its own place is 0 then
    for (size_t i = 1; i < parts.size(); i++) {
        chunk.crc = crc32(chunk.crc, parts[i].iov_base, parts[i].iov_len);
    }
    if (!write_all(fd, parts.data(), (int) parts.size())) {
        failed = errno;
        fprintf(stderr, "ggml-py record: cannot write %s: %s; the record ends here, the program goes on\n", path.c_str(), strerror(failed));
        return false;
    }
    size += sizeof(chunk) + chunk.size;
    return true;
}

void record::put_json(const char type[5], const std::string & text) {
    put(type, { { "", text.data(), text.size() } });
}

void record::head() {
    char cwd[4096] = "", exe[4096] = "";
    if (getcwd(cwd, sizeof(cwd)) == nullptr) {
        cwd[0] = '\0';
    }
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    exe[n > 0 ? n : 0] = '\0';
    put_json("head", "{\"pid\":" + std::to_string(getpid()) + ",\"ppid\":" + std::to_string(getppid()) +
        ",\"program\":" + json_text(program()) + ",\"exe\":" + json_text(exe) + ",\"argv\":" + command_line() +
        ",\"cwd\":" + json_text(cwd) + ",\"time\":" + std::to_string(now()) +
        ",\"clock\":" + std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count()) +
        ",\"ggml_version\":" + json_text(ggml_version()) + ",\"ggml_commit\":" + json_text(ggml_commit()) +
        ",\"run\":" + (options.run ? "true" : "false") +
        ",\"max_src\":" + std::to_string(GP_MAX_SRC) + ",\"about\":" + (about.empty() ? "{}" : about) +
        "," + tables() +
        ",\"layouts\":" + describe_layouts() + "}");
}

// Writes the counts that have changed, and the events.
void record::flush() {
    std::vector<gp_record_seen> changed;
    for (const pair_of & p : dirty) {
        changed.push_back(seen[p]);
    }
    dirty.clear();
    if (!changed.empty()) {
        put("seen", { gp::rows("seen", changed.data(), changed.size()) });
    }
    if (!computes.empty()) {
        put("runs", { gp::rows("computes", computes.data(), computes.size()), gp::rows("events", events.data(), events.size()) });
        computes.clear();
        events.clear();
    }
    if (n_left_out > 0) {
        put_json("note", "{\"left_out\":" + std::to_string(n_left_out) + "}");
    }
    flushed = now();
}

// Returns errno.
int open_record(std::unique_ptr<record> mine) {
    if (!mine->path.empty() && mine->path.back() == '/') {
        mine->path += std::string(program()) + "-" + std::to_string(getpid()) + ".ggrec";
    }
    mine->fd = open(mine->path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (mine->fd < 0) {
        return errno;
    }
    mine->began = mine->flushed = now();
    if (lseek(mine->fd, 0, SEEK_END) == 0) {
        iovec part = { const_cast<char *>(MAGIC), sizeof(MAGIC) };
        if (!write_all(mine->fd, &part, 1)) {
            mine->failed = errno;
        }
    }
    mine->head();
    if (mine->failed) {
        close(mine->fd);
        return mine->failed;
    }
    every  = mine->options.every ? mine->options.every : 1;
    timing = mine->options.run;
    current.swap(mine);
    return 0;
}

void open_wanted() {
    const std::string path = wanted->path;
    if (const int error = open_record(std::move(wanted))) {
        fprintf(stderr, "ggml-py record: cannot write %s: %s; the program goes on without a record\n", path.c_str(), strerror(error));
        recording_on = false;
    }
}

// Others may hold the lock when a process forks: the child begins with nothing held, and a record of its own in the
// same file.
void before_fork() { lock.lock(); }
void after_fork()  { lock.unlock(); }
void in_child() {
    if (current) {
        std::unique_ptr<record> mine(new record());
        mine->fd      = current->fd;
        mine->path    = current->path;
        mine->about   = current->about;
        mine->options = current->options;
        mine->began   = mine->flushed = now();
        mine->n_schedulers = current->n_schedulers; // schedulers of the parent keep their numbers
        mine->schedulers   = current->schedulers;
        current.swap(mine);
        current->head();
        generation++;
    }
    lock.unlock();
}

void watch_forks() {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(before_fork, after_fork, in_child); });
}

void count(pair_of key, int what) {
    gp_record_seen & s = current->seen[key];
    const int64_t time = now();
    if (s.first == 0) {
        s.plan      = (uint32_t) key.plan;
        s.scheduler = key.scheduler;
        s.first     = time;
    }
    if (s.last <= current->flushed) {
        current->dirty.push_back(key);
    }
    (what == 0 ? s.planned : what == 1 ? s.allocated : s.computed)++;
    s.last = time;
    if (time - current->flushed > 1000000000) {
        current->flush();
    }
}

void at_exit() {
    if (lock.try_lock()) { // a thread that was killed may hold it
        if (current) {
            current->flush();
            current->put_json("note", "{\"ended\":true}");
        }
        recording_on = false;
        lock.unlock();
    }
}

struct ending {
    ~ending() { at_exit(); }
} ending_here;

} // namespace

std::string json_text(const char * text) {
    std::string out = "\"";
    for (const unsigned char * p = (const unsigned char *) text; *p; p++) {
        char code[8];
        if (*p == '"' || *p == '\\') {
            out += '\\';
            out += (char) *p;
        } else if (*p < 32) {
            snprintf(code, sizeof(code), "\\u%04x", *p);
            out += code;
        } else {
            out += (char) *p;
        }
    }
    return out + "\"";
}

uint64_t record_generation() {
    return generation.load();
}

bool record_looks(uint64_t count) {
    return count % every.load() == 0;
}

bool record_times() {
    return timing.load();
}

void record_at_need(const std::string & path, const std::string & about, const gp_record_options & options) {
    watch_forks();
    std::lock_guard<std::mutex> guard(lock);
    wanted.reset(new record());
    wanted->path    = path;
    wanted->about   = about;
    wanted->options = options;
    recording_on    = true;
}

uint32_t record_scheduler(const void * sched, const std::string & about) {
    std::lock_guard<std::mutex> guard(lock);
    if (!current && wanted) {
        open_wanted();
    }
    if (!current) {
        return 0;
    }
    const auto found = current->schedulers.emplace(sched, current->n_schedulers);
    if (found.second) {
        current->n_schedulers++;
        current->put_json("schd", "{\"scheduler\":" + std::to_string(found.first->second) + "," + about + "}");
    }
    return found.first->second;
}

void record_forget(const void * sched) {
    std::lock_guard<std::mutex> guard(lock);
    if (current) {
        current->schedulers.erase(sched);
    }
}

int32_t record_plan(gp_record_plan head, const std::vector<gp_tensor_record> & tensors, std::vector<section> sections, bool & is_new) {
    std::lock_guard<std::mutex> guard(lock);
    is_new = false;
    if (!current) {
        return -1;
    }
    record & r = *current;
    std::vector<hash_key> keys(tensors.size());
    hash_key whole = { 1, 2 };
    for (size_t i = 0; i < tensors.size(); i++) {
        keys[i] = { mixed(1, &tensors[i], sizeof(tensors[i])), mixed(2, &tensors[i], sizeof(tensors[i])) };
        whole.a = mixed(whole.a, &keys[i], sizeof(keys[i]));
        whole.b = mixed(whole.b, &keys[i], sizeof(keys[i]));
    }
    for (const section & s : sections) {
        whole.a = mixed(whole.a, s.data, s.size);
        whole.b = mixed(whole.b, s.data, s.size);
    }
    const int32_t same[] = { head.n_copies, head.cur_copy, head.op_offload, head.optimizers, head.n_pins_elsewhere };
    whole.a = mixed(whole.a, same, sizeof(same));
    const auto known = r.plans.find(whole);
    if (known != r.plans.end()) {
        return known->second;
    }
    // Numbers of rows are given only once the plan is written: a plan that is left out needs none.
    std::unordered_map<hash_key, uint32_t, hash_of> added;
    std::vector<gp_tensor_record> fresh;
    plan_facts facts;
    facts.n_nodes = head.n_nodes;
    for (size_t i = 0; i < tensors.size(); i++) {
        const auto old = r.rows.find(keys[i]);
        if (old != r.rows.end()) {
            facts.rows.push_back(old->second);
            continue;
        }
        const auto found = added.emplace(keys[i], (uint32_t) (r.facts.size() + fresh.size()));
        if (found.second) {
            fresh.push_back(tensors[i]);
        }
        facts.rows.push_back(found.first->second);
    }
    const uint64_t size = fresh.size() * sizeof(gp_tensor_record) + facts.rows.size() * 4;
    if (r.failed || (r.options.first && r.n_plans >= r.options.first) || r.size + size > r.options.max_size) {
        r.n_left_out++;
        if (!r.failed && !r.said_full && r.options.lines) {
            r.said_full = true;
            fprintf(stderr, r.options.first && r.n_plans >= r.options.first ?
                "ggml-py record: %llu plans are written (--first): later ones are only counted\n" :
                "ggml-py record: %llu plans fill the record (--max-size): later ones are only counted\n", (unsigned long long) r.n_plans);
        }
        return -1;
    }
    head.plan = (uint32_t) r.n_plans;
    sections.insert(sections.begin(), {
        { "plan", &head, sizeof(head) }, rows("rows", fresh.data(), fresh.size()), rows("ids", facts.rows.data(), facts.rows.size()) });
    if (!r.put("plan", sections)) {
        r.n_left_out++;
        return -1;
    }
    for (const gp_tensor_record & t : fresh) {
        r.facts.push_back({ { t.ne[0], t.ne[1], t.ne[2], t.ne[3] }, t.op, t.backend, t.pin, t.buffer });
    }
    r.rows.insert(added.begin(), added.end());
    r.plans.emplace(whole, (int32_t) r.n_plans);
    r.plan_rows.push_back(std::move(facts));
    is_new = true;
    return (int32_t) r.n_plans++;
}

void record_seen(uint32_t scheduler, int32_t plan, int what) {
    std::lock_guard<std::mutex> guard(lock);
    if (current && plan >= 0) {
        count({ scheduler, plan }, what);
    }
}

void record_left_out() {
    std::lock_guard<std::mutex> guard(lock);
    if (current) {
        current->n_left_out++;
    }
}

void record_realloc(uint32_t scheduler, int32_t plan, const gp_realloc_record & reason) {
    std::lock_guard<std::mutex> guard(lock);
    if (current) {
        gp_record_realloc r = {};
        r.plan      = (uint32_t) plan;
        r.scheduler = scheduler;
        r.time      = now();
        r.reason    = reason;
        current->put("allc", { rows("reallocs", &r, 1) });
    }
}

void record_events(uint32_t scheduler, int32_t plan, int32_t compute, std::vector<gp_run_event> & events, size_t lost) {
    std::lock_guard<std::mutex> guard(lock);
    if (current && current->size + current->events.size() * sizeof(gp_run_event) <= current->options.max_size) {
        current->computes.push_back({ scheduler, plan, compute, (int32_t) lost, (int32_t) events.size() });
        for (gp_run_event & event : events) {
            event.inside += event.inside < 0 ? 0 : (int32_t) current->events.size();
        }
        current->events.insert(current->events.end(), events.begin(), events.end());
        if (current->events.size() > 8192) {
            current->flush();
        }
    } else if (current) {
        current->n_left_out++;
    }
    events.clear();
}

static std::string shape(const int64_t * ne) {
    int n = 4;
    while (n > 1 && ne[n - 1] == 1) {
        n--;
    }
    std::string text = "[";
    for (int i = 0; i < n; i++) {
        text += (i ? ", " : "") + std::to_string(ne[i]);
    }
    return text + "]";
}

std::string record_difference(int32_t before, const std::vector<gp_tensor_record> & tensors, int32_t n_nodes) {
    std::lock_guard<std::mutex> guard(lock);
    if (!current || before < 0 || (size_t) before >= current->plan_rows.size()) {
        return "the scheduler's first";
    }
    const plan_facts & old  = current->plan_rows[before];
    const std::string  than = "unlike plan " + std::to_string(before) + ": ";
    if (old.n_nodes != n_nodes) {
        return than + std::to_string(n_nodes) + " nodes, not " + std::to_string(old.n_nodes);
    }
    // What the program gave, its inputs, explains more than what was computed from them.
    const auto named = [](const gp_tensor_record & t) { return "'" + std::string(t.name) + "'"; };
    const auto find = [&](auto differs) -> const gp_tensor_record * {
        const size_t n = std::min(old.rows.size(), tensors.size());
        for (size_t k = 0; k < n; k++) {
            const size_t i = (k + (size_t) n_nodes) % n;
            if (old.rows[i] < current->facts.size() && differs(current->facts[old.rows[i]], tensors[i])) {
                return &tensors[i];
            }
        }
        return nullptr;
    };
    const auto was = [&](const gp_tensor_record * t) -> const row_facts & { return current->facts[old.rows[t - tensors.data()]]; };
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return memcmp(f.ne, t.ne, sizeof(f.ne)) != 0; })) {
        return than + named(*t) + " is " + shape(t->ne) + ", not " + shape(was(t).ne);
    }
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return f.op != t.op; })) {
        return than + named(*t) + " is " + t->op_desc + ", not " + ggml_op_name((enum ggml_op) was(t).op);
    }
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return f.pin != t.pin; })) {
        return than + "pin of " + named(*t);
    }
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return f.backend != t.backend; })) {
        return than + named(*t) + " is on another backend";
    }
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return f.buffer != t.buffer; })) {
        return than + named(*t) + " is in other memory";
    }
    return than + "names, parameters or memory";
}

void record_line(const std::string & text) {
    std::lock_guard<std::mutex> guard(lock);
    if (current && current->options.lines) {
        char when[64];
        snprintf(when, sizeof(when), "ggml-py record: %8.3f s  ", (now() - current->began) / 1e9);
        const std::string line = when + std::string(program()) + "[" + std::to_string(getpid()) + "] " + text + "\n";
        if (write(STDERR_FILENO, line.data(), line.size()) < 0) {
            current->options.lines = false; // nobody reads them
        }
    }
}

} // namespace gp

extern "C" {

const char * gp_record_tables(void) {
    static const std::string text = "{" + gp::tables() + "}";
    return text.c_str();
}

int gp_record_start(const char * path, const char * about, const gp_record_options * options) {
    gp::watch_forks();
    std::lock_guard<std::mutex> guard(gp::lock);
    if (gp::current) {
        return EALREADY;
    }
    std::unique_ptr<gp::record> mine(new gp::record());
    mine->path    = path;
    mine->about   = about;
    mine->options = *options;
    if (const int error = gp::open_record(std::move(mine))) {
        return error;
    }
    gp::generation++;
    gp::recording_on = true;
    return 0;
}

int gp_record_stop(uint64_t * written, uint64_t * left_out) {
    std::lock_guard<std::mutex> guard(gp::lock);
    *written = *left_out = 0;
    if (!gp::current) {
        return 0;
    }
    gp::recording_on = false;
    gp::current->flush();
    gp::current->put_json("note", "{\"ended\":true}");
    *written  = gp::current->n_plans;
    *left_out = gp::current->n_left_out;
    int failed = gp::current->failed;
    if (close(gp::current->fd) != 0 && !failed) {
        failed = errno;
    }
    gp::current.reset();
    return failed;
}

} // extern "C"

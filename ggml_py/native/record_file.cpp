#include "record_state.h"

#include "ggml-impl.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

namespace gp {

std::atomic<bool>         recording_on{false};
std::mutex                record_lock;
std::unique_ptr<record> & current = *new std::unique_ptr<record>();
std::atomic<uint64_t>     record_every{1};
std::atomic<bool>         record_timing{false};

int64_t record_now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

namespace {

std::unique_ptr<record> & wanted = *new std::unique_ptr<record>(); // under `record_lock`: what to open at need
std::atomic<uint64_t>     generation{1};

const char MAGIC[16] = { 'G', 'G', 'M', 'L', 'P', 'Y', 'R', 'E', 'C', 'O', 'R', 'D', '1', '\r', '\n', '\n' };

struct chunk_head {
    char     magic[4];
    char     type[4];
    uint64_t size;
    uint32_t pid;
    uint32_t crc; // of this, with 0 here, and the payload
    int64_t  time;
};

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

// While it lives, a write to a closed pipe or beyond a limit of the shell fails, and sends no signal that would end the
// program.
class without_signals {
    sigset_t ours, before;
    bool     had[2];

  public:
    without_signals() {
        sigemptyset(&ours);
        sigaddset(&ours, SIGPIPE);
        sigaddset(&ours, SIGXFSZ);
        sigset_t pending;
        sigpending(&pending);
        had[0] = sigismember(&pending, SIGPIPE) == 1;
        had[1] = sigismember(&pending, SIGXFSZ) == 1;
        pthread_sigmask(SIG_BLOCK, &ours, &before);
    }
    ~without_signals() {
        const int saved = errno;
        const int numbers[2] = { SIGPIPE, SIGXFSZ };
        for (int i = 0; i < 2; i++) {
            sigset_t one;
            sigemptyset(&one);
            sigaddset(&one, numbers[i]);
            const timespec now = { 0, 0 };
            while (!had[i] && sigtimedwait(&one, nullptr, &now) > 0) {
            }
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        errno = saved;
    }
};

bool write_all(int fd, iovec * parts, int n) {
    const without_signals quiet;
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

// Whether `fd` is the record's file. A program may close descriptors that it does not know, and open its own files.
bool is_file(int fd, uint64_t device, uint64_t inode) {
    struct stat found;
    return fd >= 0 && fstat(fd, &found) == 0 && found.st_dev == device && found.st_ino == inode;
}

// Above the numbers that a program's own files get, and those that it may have closed: 0, 1, 2.
int moved_up(int fd) {
    for (int least : { 900, 200, 60, 10 }) {
        const int high = fcntl(fd, F_DUPFD_CLOEXEC, least);
        if (high >= 0) {
            close(fd);
            return high;
        }
    }
    return fd;
}

} // namespace

bool record::put(const char type[5], const std::vector<section> & sections) {
    if (failed) {
        return false;
    }
    if (!is_file(fd, device, inode)) {
        fd = moved_up(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
        if (!is_file(fd, device, inode)) {
            failed = EBADF;
            record_say("the program has closed " + path + ", or it was moved: the record ends here, the program goes on");
            return false;
        }
    }
    if (!begun) {
        begun = true;
        head();
    }
    struct section_head { char tag[8]; uint64_t size; };
    std::vector<section_head> heads(sections.size());
    chunk_head chunk = { { 'G', 'P', 'C', 'K' }, {}, 0, id, 0, record_now() };
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
    const bool counts = memcmp(type, "head", 4) == 0 || memcmp(type, "note", 4) == 0 || memcmp(type, "seen", 4) == 0;
    if (!counts && size + sizeof(chunk) + chunk.size > options.max_size) {
        n_left_out++;
        return false;
    }
    if (!write_all(fd, parts.data(), (int) parts.size())) {
        failed = errno;
        record_say("cannot write " + path + ": " + strerror(failed) + "; the record ends here, the program goes on");
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
        ",\"program\":" + json_text(record_program()) + ",\"exe\":" + json_text(exe) + ",\"argv\":" + record_command_line() +
        ",\"cwd\":" + json_text(cwd) + ",\"time\":" + std::to_string(record_now()) +
        ",\"clock\":" + std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count()) +
        ",\"ggml_version\":" + json_text(ggml_version()) + ",\"ggml_commit\":" + json_text(ggml_commit()) +
        ",\"run\":" + (options.run ? "true" : "false") +
        ",\"max_src\":" + std::to_string(GP_MAX_SRC) + ",\"about\":" + (about.empty() ? "{}" : about) +
        "," + record_tables() +
        ",\"layouts\":" + record_layouts() + "}");
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
    flushed = record_now();
}

namespace {

// Returns errno.
int open_record(std::unique_ptr<record> mine) {
    if (!mine->path.empty() && mine->path.back() == '/') {
        char more[64];
        snprintf(more, sizeof(more), "-%d-%08x.ggrec", (int) getpid(), mine->id); // process 1 of a container is not the only one
        mine->path += record_program() + std::string(more);
    }
    mine->fd = open(mine->path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (mine->fd < 0) {
        return errno;
    }
    mine->fd = moved_up(mine->fd);
    struct stat made;
    if (fstat(mine->fd, &made) != 0) {
        return errno;
    }
    mine->device = made.st_dev;
    mine->inode  = made.st_ino;
    mine->began = mine->flushed = record_now();
    if (lseek(mine->fd, 0, SEEK_END) == 0) {
        iovec part = { const_cast<char *>(MAGIC), sizeof(MAGIC) };
        if (!write_all(mine->fd, &part, 1)) {
            mine->failed = errno;
        }
    }
    mine->put_json("note", "{}"); // and the head before it
    if (mine->failed) {
        close(mine->fd);
        return mine->failed;
    }
    record_every  = mine->options.every ? mine->options.every : 1;
    record_timing = mine->options.run;
    current.swap(mine);
    return 0;
}

} // namespace

void open_wanted() {
    if (!wanted) {
        return;
    }
    const std::string path = wanted->path;
    if (const int error = open_record(std::move(wanted))) {
        record_say("cannot write " + path + ": " + strerror(error) + "; the program goes on without a record");
        recording_on = false;
    }
}

namespace {

// Others may hold the lock when a process forks: the child begins with nothing held, and a record of its own in the
// same file.
void before_fork() { record_lock.lock(); }
void after_fork()  { record_lock.unlock(); }
void in_child() {
    if (current) {
        std::unique_ptr<record> mine(new record());
        mine->fd      = current->fd;
        mine->device  = current->device;
        mine->inode   = current->inode;
        mine->path    = current->path;
        mine->about   = current->about;
        mine->options = current->options;
        mine->began   = mine->flushed = record_now();
        mine->n_schedulers = current->n_schedulers; // numbers are not used twice
        current.swap(mine);
        generation++;
    }
    record_lock.unlock();
}

void watch_forks() {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(before_fork, after_fork, in_child); });
}

void at_exit() {
    if (record_lock.try_lock()) { // a thread that was killed may hold it
        if (current && current->begun) {
            current->flush();
            current->put_json("note", "{\"ended\":true}");
        }
        recording_on = false;
        record_lock.unlock();
    }
}

struct ending {
    ~ending() { at_exit(); }
} ending_here;

} // namespace

uint64_t record_generation() {
    return generation.load();
}

bool record_looks(uint64_t count) {
    return count % record_every.load() == 0;
}

bool record_times() {
    return record_timing.load();
}

void record_at_need(const std::string & path, const std::string & about, const gp_record_options & options) {
    watch_forks();
    std::lock_guard<std::mutex> guard(record_lock);
    wanted.reset(new record());
    wanted->path    = path;
    wanted->about   = about;
    wanted->options = options;
    recording_on    = true;
}

void record_say(const std::string & text) {
    std::string line = "ggml-py record: " + text + "\n";
    // Names of tensors are a model's: a terminal would obey the controls in them, also those of two bytes.
    for (size_t i = 0; i + 1 < line.size(); i++) {
        const unsigned char c = line[i], next = line[i + 1];
        if (c == 0xC2 && next >= 0x80 && next < 0xA0) {
            line[i] = line[i + 1] = '?';
        } else if (c < 0x20 || c == 0x7F) {
            line[i] = '?';
        }
    }
    iovec part = { const_cast<char *>(line.data()), line.size() };
    if (!write_all(STDERR_FILENO, &part, 1) && current) {
        current->options.lines = false; // nobody reads them
    }
}

void record_line(const std::string & text) {
    std::lock_guard<std::mutex> guard(record_lock);
    if (current && current->options.lines) {
        char when[64];
        snprintf(when, sizeof(when), "%8.3f s  ", (record_now() - current->began) / 1e9);
        record_say(when + std::string(record_program()) + "[" + std::to_string(getpid()) + "] " + text);
    }
}

} // namespace gp

extern "C" {

int gp_record_start(const char * path, const char * about, const gp_record_options * options) {
    gp::watch_forks();
    std::lock_guard<std::mutex> guard(gp::record_lock);
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

void gp_record_flush(void) {
    std::lock_guard<std::mutex> guard(gp::record_lock);
    if (gp::current) {
        gp::current->flush();
    }
}

int gp_record_stop(uint64_t * written, uint64_t * left_out) {
    std::lock_guard<std::mutex> guard(gp::record_lock);
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

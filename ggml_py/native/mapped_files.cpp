#include "mapped_files.h"

#include "guard.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <sys/stat.h>
#endif

extern "C" {

// How often a read failed. module.h compares it before and after each call.
std::atomic<uint32_t> gp_damages{0};
void                  gp_damage_pending(void); // module.h: makes Python raise
const char *          gp_damage_take(size_t * nbytes);

} // extern "C"

namespace {

struct range {
    std::atomic<uintptr_t> begin{0}; // 0: not in use
    uintptr_t              end    = 0;
    size_t                 nbytes = 0; // size that the file must have
    char *                 path   = nullptr;
    int                    fd     = -1;
    uint64_t               offset = 0;
    std::atomic<uintptr_t> zeroes{0}; // where zeroes begin; 0: none
    range *                next = nullptr;
};

// Never freed, because the handler may walk over the list at any time. Entries are reused.
std::atomic<range *> ranges{nullptr};
std::mutex           changing;
char                 damaged_path[4096];
size_t               damaged_nbytes = 0;

#if defined(__linux__)
struct sigaction former;

bool lay_zeroes(uintptr_t at) {
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    for (range * r = ranges.load(std::memory_order_acquire); r != nullptr; r = r->next) {
        const uintptr_t begin = r->begin.load(std::memory_order_acquire);
        if (begin == 0 || at < begin || at >= r->end) {
            continue;
        }
        const uintptr_t from = at & ~(page - 1);
        const int       how  = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        if (mmap((void *) from, r->end - from, PROT_READ | PROT_WRITE, how, -1, 0) == MAP_FAILED) {
            return false;
        }
        uintptr_t before = r->zeroes.load();
        while ((before == 0 || from < before) && !r->zeroes.compare_exchange_weak(before, from)) {
        }
        return true;
    }
    return false;
}

void on_sigbus(int, siginfo_t * info, void *) {
    const int saved = errno;
    if (info->si_code > 0 && lay_zeroes((uintptr_t) info->si_addr)) {
        gp_damages++;
        if (!gp::is_guarded()) {
            gp_damage_pending();
        }
    } else if (info->si_code == SI_TKILL && info->si_pid == getpid()) {
        // faulthandler was installed after us and forwards the signal: the failed instruction runs again and comes here
    } else {
        sigaction(SIGBUS, &former, nullptr);
        if (info->si_code <= 0) {
            raise(SIGBUS); // sent by a process; a fault would repeat by itself
        }
    }
    errno = saved;
}

// Installs our handler in front of the current one: a fault handler (pytest's) installed after us would print that the
// process ends although it continues.
void come_first() {
    struct sigaction now = {};
    sigaction(SIGBUS, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_sigbus) {
        return;
    }
    struct sigaction action = {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags     = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    former = now;
    sigaction(SIGBUS, &action, nullptr);
}

// Maps the file again in place of the zeroes.
void map_again(range & r) {
    const uintptr_t from = r.zeroes.exchange(0);
    if (from == 0 || r.fd < 0) {
        return;
    }
    const uintptr_t begin = r.begin.load();
    mmap((void *) from, r.end - from, PROT_READ, MAP_SHARED | MAP_FIXED, r.fd, (off_t) (r.offset + (from - begin)));
}
#endif

} // namespace

extern "C" {

// The file that was damaged since the last call, and the size that it must have; NULL if all damage was reported.
// Call it with the GIL.
const char * gp_damage_take(size_t * nbytes) {
#if defined(__linux__)
    std::lock_guard<std::mutex> lock(changing);
    bool found = false;
    for (range * r = ranges.load(); r != nullptr; r = r->next) {
        if (r->begin.load() != 0 && r->zeroes.load() != 0) {
            strncpy(damaged_path, r->path, sizeof(damaged_path) - 1);
            damaged_nbytes = r->nbytes;
            found = true;
            map_again(*r);
        }
    }
    *nbytes = damaged_nbytes;
    return found ? damaged_path : nullptr;
#else
    (void) nbytes;
    return nullptr;
#endif
}

void * gp_mapped_add(void * begin, size_t nbytes, const char * path, int fd, uint64_t offset) {
#if defined(__linux__)
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    std::lock_guard<std::mutex> lock(changing);
    come_first();
    range * r = ranges.load();
    while (r != nullptr && r->begin.load() != 0) {
        r = r->next;
    }
    const bool made = r == nullptr;
    if (made) {
        r = new range();
    }
    r->end    = ((uintptr_t) begin + nbytes + page - 1) & ~(page - 1);
    r->nbytes = offset + nbytes;
    r->path   = strdup(path);
    r->fd     = fd;
    r->offset = offset;
    r->zeroes = 0;
    r->begin.store((uintptr_t) begin, std::memory_order_release);
    if (made) {
        r->next = ranges.load();
        ranges.store(r, std::memory_order_release);
    }
    return r;
#else
    (void) begin; (void) nbytes; (void) path; (void) offset;
    if (fd >= 0) {
        close(fd);
    }
    return nullptr;
#endif
}

void gp_mapped_remove(void * mapped) {
#if defined(__linux__)
    if (mapped == nullptr) {
        return;
    }
    std::lock_guard<std::mutex> lock(changing);
    range * r = (range *) mapped;
    r->begin.store(0, std::memory_order_release);
    if (r->fd >= 0) {
        close(r->fd);
    }
    free(r->path);
    r->path = nullptr;
    r->fd   = -1;
#else
    (void) mapped;
#endif
}

void gp_mapped_check(void) {
#if defined(__linux__)
    std::lock_guard<std::mutex> lock(changing);
    for (range * r = ranges.load(); r != nullptr; r = r->next) {
        struct stat now;
        if (r->begin.load() == 0 || r->fd < 0 || fstat(r->fd, &now) != 0 || (uint64_t) now.st_size >= r->nbytes) {
            continue;
        }
        gp_error cut = {};
        cut.kind     = GP_ERROR_FILE;
        snprintf(cut.message, sizeof(cut.message), "%s", r->path);
        snprintf(cut.operands, sizeof(cut.operands), "%zu", r->nbytes);
        throw gp::recorded_error(cut);
    }
#endif
}

void gp_mapped_install(void) {
#if defined(__linux__)
    come_first();
#endif
}

} // extern "C"

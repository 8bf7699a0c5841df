#include "worker_leave.h"

#include <atomic>

namespace {

thread_local gp::run * volatile innermost = nullptr;

} // namespace

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#include <cerrno>
#include <csignal>
#include <ctime>
#include <dlfcn.h>
#include <link.h>
#include <mutex>
#include <pthread.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

namespace {

constexpr long BEGIN_MS = 8;   // of the thread's CPU time, until a compute counts as long
constexpr long EVERY_MS = 100; // of real time, from then on
constexpr long AGAIN_MS = 10;  // if the thread could not leave its code

// ---- code that may be left ----

struct text {
    uintptr_t from, to;
    uintptr_t barrier_from, barrier_to;
};

constexpr int MOST_TEXTS = 32; // variants of the CPU backend, and libggml-base
text             texts[MOST_TEXTS];
std::atomic<int> n_texts{0};

const text * text_of(uintptr_t code) {
    const int n = n_texts.load(std::memory_order_acquire);
    for (int i = 0; i < n; i++) {
        if (texts[i].from <= code && code < texts[i].to) {
            return &texts[i];
        }
    }
    return nullptr;
}

// Finds the segment that contains the code.
int find_segment(dl_phdr_info * info, size_t, void * data) {
    text * found = static_cast<text *>(data);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto &    segment = info->dlpi_phdr[i];
        const uintptr_t from    = info->dlpi_addr + segment.p_vaddr;
        if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) && from <= found->from && found->from < from + segment.p_memsz) {
            found->from = from;
            found->to   = from + segment.p_memsz;
            return 1;
        }
    }
    return 0;
}

// Start addresses of libc functions that hold no locks or memory: kernels copy gigabytes with one call. Their variants
// jump into one another, and all functions near them are of the same kind.
uintptr_t pure[3];

constexpr uintptr_t AROUND = 4096;

bool is_pure(uintptr_t code) {
    for (const uintptr_t begin : pure) {
        if (begin != 0 && begin - AROUND <= code && code < begin + AROUND) {
            return true;
        }
    }
    return false;
}

void find_pure() {
    const char * names[] = {"memcpy", "memmove", "memset"};
    for (int i = 0; i < 3; i++) {
        pure[i] = (uintptr_t) dlsym(RTLD_DEFAULT, names[i]); // the variant for this machine
    }
}

std::mutex & texts_mutex() {
    static std::mutex & it = *new std::mutex;
    return it;
}

// ---- the computing threads ----

// Sends this thread the signal once each time it is armed.
struct clock_timer {
    clockid_t     clock;
    timer_t       timer{};
    bool          made  = false;
    volatile bool armed = false;

    explicit clock_timer(clockid_t clock) : clock(clock) {}
    void arm(long ms);
};

// There are two timers, because setting a timer costs a system call. The CPU-time timer is set again only after it
// expired. A sleeping thread uses no CPU time, so this timer wakes no thread whose compute is over. In a long compute
// with many threads on few CPUs, CPU time lags behind; then the other timer continues, and is disarmed at the end.
struct worker {
    pthread_t              id   = pthread_self();
    std::atomic<bool>      called{false}; // a signal is already on its way; more would queue up
    std::atomic<gp_pool *> pool{nullptr};
    worker *               next = nullptr;
    clock_timer            begin{CLOCK_THREAD_CPUTIME_ID};
    clock_timer            every{CLOCK_MONOTONIC};

    worker();
    ~worker();
};

// Static and never destroyed: threads may still work when the process ends.
pthread_mutex_t workers_mutex = PTHREAD_MUTEX_INITIALIZER;
worker *        workers       = nullptr;
int             leave_signal  = 0; // 0: none was available
pthread_once_t  installed     = PTHREAD_ONCE_INIT;

thread_local worker * me = nullptr; // a plain pointer, for the signal handler

worker & this_worker() {
    static thread_local worker it;
    return it;
}

void on_signal(int, siginfo_t * info, void * context);

void before_fork()    { pthread_mutex_lock(&workers_mutex); }
void after_in_parent() { pthread_mutex_unlock(&workers_mutex); }

// Timers and the other threads stay in the parent.
void after_in_child() {
    pthread_mutex_init(&workers_mutex, nullptr);
    workers = me;
    if (me != nullptr) {
        me->next      = nullptr;
        me->begin     = clock_timer(CLOCK_THREAD_CPUTIME_ID);
        me->every     = clock_timer(CLOCK_MONOTONIC);
    }
}

void install() {
    find_pure();
    for (int number = SIGRTMAX - 1; number > SIGRTMIN; number--) {
        struct sigaction former;
        if (sigaction(number, nullptr, &former) == 0 && !(former.sa_flags & SA_SIGINFO) && former.sa_handler == SIG_DFL) {
            struct sigaction action = {};
            action.sa_sigaction = on_signal;
            action.sa_flags     = SA_SIGINFO | SA_RESTART;
            sigemptyset(&action.sa_mask);
            if (sigaction(number, &action, nullptr) == 0) {
                leave_signal = number;
                pthread_atfork(before_fork, after_in_parent, after_in_child);
                return;
            }
        }
    }
}

worker::worker() {
    pthread_once(&installed, install);
    pthread_mutex_lock(&workers_mutex);
    next    = workers;
    workers = this;
    pthread_mutex_unlock(&workers_mutex);
    me = this;
}

worker::~worker() {
    me = nullptr;
    for (clock_timer * one : {&begin, &every}) {
        if (one->made) {
            timer_delete(one->timer);
        }
    }
    pthread_mutex_lock(&workers_mutex);
    for (worker ** one = &workers; *one != nullptr; one = &(*one)->next) {
        if (*one == this) {
            *one = next;
            break;
        }
    }
    pthread_mutex_unlock(&workers_mutex);
}

void clock_timer::arm(long ms) {
    if (leave_signal == 0) {
        return;
    }
    if (!made) {
        sigevent event = {};
        event.sigev_notify          = SIGEV_THREAD_ID;
        event.sigev_signo           = leave_signal;
        event.sigev_value.sival_ptr = this;
#ifdef sigev_notify_thread_id
        event.sigev_notify_thread_id = (pid_t) syscall(SYS_gettid);
#else
        event._sigev_un._tid = (pid_t) syscall(SYS_gettid);
#endif
        made = timer_create(clock, &event, &timer) == 0;
        if (!made) {
            return;
        }
    }
    itimerspec when = {};
    when.it_value.tv_nsec = ms*1000000;
    armed = timer_settime(timer, 0, &when, nullptr) == 0 && ms != 0;
}

// ---- the signal ----

struct walk {
    uintptr_t interrupted;
    uintptr_t frame;   // of gp_pool_run
    bool      begun;   // past the handler's own frames
    bool      arrived; // all code down to that frame was ours
    bool      barrier;
};

_Unwind_Reason_Code look(_Unwind_Context * context, void * data) {
    walk & w = *static_cast<walk *>(data);
    const uintptr_t ip = _Unwind_GetIP(context);
    w.begun = w.begun || ip == w.interrupted;
    if (!w.begun) {
        return _URC_NO_REASON;
    }
    const text * in = text_of(ip);
    if (in == nullptr) {
        return ip == w.interrupted && is_pure(ip) ? _URC_NO_REASON : _URC_NORMAL_STOP;
    }
    w.barrier = w.barrier || (in->barrier_from <= ip && ip < in->barrier_to);
    w.arrived = _Unwind_GetCFA(context) > w.frame;
    return w.arrived ? _URC_NORMAL_STOP : _URC_NO_REASON;
}

// Whether the interrupted code is a kernel. Sets `barrier` if it is in ggml_barrier.
bool in_kernel(const ucontext_t & context, const gp::run & here, bool & barrier) {
#if defined(__x86_64__)
    const uintptr_t ip = (uintptr_t) context.uc_mcontext.gregs[REG_RIP];
#else
    const uintptr_t ip = (uintptr_t) context.uc_mcontext.pc;
#endif
    walk w = {ip, (uintptr_t) here.frame, false, false, false};
    _Unwind_Backtrace(look, &w);
    barrier = w.barrier;
    return w.arrived;
}

enum verdict { GO_ON, ASK_AGAIN, OUT };

verdict judge(const ucontext_t & context, gp::run & here, bool timed) {
    const bool failed = __atomic_load_n(&here.pool->failed, __ATOMIC_ACQUIRE);
    const bool wanted = __atomic_load_n(&here.pool->wanted, __ATOMIC_ACQUIRE);
    if (!failed && !wanted && !(timed && here.stop != nullptr)) {
        return GO_ON;
    }
    bool barrier = false;
    if (!in_kernel(context, here, barrier)) {
        return ASK_AGAIN;
    }
    if (!failed && !wanted) {
        if (!here.stop->asks(here.stop->data)) {
            return GO_ON;
        }
        if (barrier) {
            __atomic_store_n(&here.pool->wanted, 1, __ATOMIC_RELEASE);
        }
    }
    if (barrier) { // the thread leaves by itself once another thread has failed
        if (here.stop != nullptr) {
            gp::call_out(here.pool);
        }
        return ASK_AGAIN;
    }
    here.fails = !failed;
    return OUT;
}

void on_signal(int, siginfo_t * info, void * context) {
    const int  saved = errno;
    const bool timed = info->si_code == SI_TIMER;
    gp::run *  here  = innermost;
    if (me == nullptr) {
        return;
    }
    if (timed) {
        static_cast<clock_timer *>(info->si_value.sival_ptr)->armed = false;
    } else {
        me->called = false;
    }
    if (here != nullptr && !here->busy) {
        here->busy = true;
        const verdict v = judge(*static_cast<ucontext_t *>(context), *here, timed);
        if (v == OUT) {
            sigset_t mine;
            sigemptyset(&mine);
            sigaddset(&mine, leave_signal);
            pthread_sigmask(SIG_UNBLOCK, &mine, nullptr); // the handler does not return
            longjmp(here->back, 1);                       // busy is set, so later signals do nothing
        }
        if (timed && here->stop != nullptr) {
            me->every.arm(v == ASK_AGAIN ? AGAIN_MS : EVERY_MS);
        }
        here->busy = false;
    }
    errno = saved;
}

} // namespace

namespace gp {

void may_leave(const void * code, const char * from, const char * to) {
    if (text_of((uintptr_t) code) != nullptr) {
        return;
    }
    std::lock_guard<std::mutex> lock(texts_mutex());
    const int n = n_texts.load();
    text found = {(uintptr_t) code, 0, (uintptr_t) from, (uintptr_t) to};
    if (n < MOST_TEXTS && text_of(found.from) == nullptr && dl_iterate_phdr(find_segment, &found) != 0) {
        texts[n] = found;
        n_texts.store(n + 1, std::memory_order_release);
    }
}

void enter(run & here) {
    worker & mine = this_worker();
    here.outer = innermost;
    mine.pool.store(here.pool, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    innermost = &here;
    if (here.stop != nullptr && !mine.begin.armed) {
        mine.begin.arm(BEGIN_MS);
    }
}

void leave(run & here) {
    innermost = here.outer;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (innermost == nullptr && me->every.armed) {
        me->every.arm(0);
    }
    me->pool.store(here.outer ? here.outer->pool : nullptr, std::memory_order_relaxed);
}

run * run_of_this_kernel() {
    run * here = innermost;
    if (here == nullptr || here->busy) {
        return nullptr;
    }
    walk w = {0, (uintptr_t) here->frame, true, false, false};
    _Unwind_Backtrace(look, &w);
    here->busy = w.arrived; // leaving
    return w.arrived ? here : nullptr;
}

void call_out(gp_pool * pool) {
    pthread_mutex_lock(&workers_mutex);
    for (worker * one = workers; one != nullptr; one = one->next) {
        if (one != me && one->pool.load(std::memory_order_relaxed) == pool && !one->called.exchange(true)) {
            pthread_kill(one->id, leave_signal);
        }
    }
    pthread_mutex_unlock(&workers_mutex);
}

} // namespace gp

#else // here kernels cannot be left: Ctrl-C waits for them

namespace gp {

void may_leave(const void *, const char *, const char *) {}
void enter(run & here) { here.outer = innermost; innermost = &here; }
void leave(run & here) { innermost = here.outer; }
run * run_of_this_kernel() { return nullptr; }
void call_out(gp_pool *) {}

} // namespace gp

#endif

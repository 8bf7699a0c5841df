#include "guard.h"

#include "fork.h"
#include "kernel_check.h"
#include "quant_tables.h"
#include "rpc_hooks.h"
#include "sched_trace.h"
#include "shared.h"
#include "worker_guard.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#pragma weak gp_sched_plan
#pragma weak gp_pool_running
#pragma weak gp_pool_failed_node
#pragma weak gp_divisions_checked
#pragma weak gp_set_interrupted
#pragma weak gp_fork_install
#pragma weak gp_rpc_install
#pragma weak gp_rules_hold
#pragma weak gp_rules_of_data

// Defined in module.h.
extern "C" bool gp_interrupted(void);

namespace {

// Has a copy of its text, because it may be thrown on one thread and caught by a guard on another (worker_guard.h).
struct abort_exception : std::exception {
    char text[1400];
    explicit abort_exception(const char * from) { snprintf(text, sizeof(text), "%s", from); }
    const char * what() const noexcept override { return text; }
};

// The failure of a connection (rpc_hooks.h).
struct rpc_exception : std::exception {
    char endpoint[256];
    char text[1024];
    bool left;
    rpc_exception(const char * from, const char * said, bool left) : left(left) {
        snprintf(endpoint, sizeof(endpoint), "%s", from);
        snprintf(text, sizeof(text), "%s", said);
    }
    const char * what() const noexcept override { return text; }
};

thread_local int      depth = 0;
thread_local gp_error error = {};

std::atomic<uint64_t> changes{0};

// A graph whose rules hold, and the value of `gp_changes` at that time.
struct computed {
    const ggml_cgraph * graph;
    uint64_t            changes;
};

constexpr int         N_LATELY = 8; // number of graphs that a model keeps
thread_local computed lately[N_LATELY];
thread_local unsigned n_computed = 0;

// ggml's text is "FILE:LINE: message".
void parse(const char * text) {
    const char * slash = text;
    for (const char * p = text; *p && *p != ':'; p++) {
        slash = *p == '/' ? p + 1 : slash;
    }
    const char * colon = strchr(text, ':');
    int used = 0;
    error.file[0] = '\0';
    error.line    = 0;
    if (colon && sscanf(colon, ":%d: %n", &error.line, &used) == 1 && used > 0) {
        snprintf(error.file, sizeof(error.file), "%.*s", (int) (colon - slash), slash);
        text = colon + used;
    }
    snprintf(error.message, sizeof(error.message), "%s", text);
    for (size_t n = strlen(error.message); n > 0 && error.message[n - 1] == '\n'; n--) {
        error.message[n - 1] = '\0';
    }
}

bool somebody_catches() {
    return depth > 0 || (gp_pool_running != nullptr && gp_pool_running());
}

void on_abort(const char * text) {
    if (somebody_catches()) {
        throw abort_exception(text);
    }
    fprintf(stderr, "%s\nggml_py: this assertion failed on a thread that cannot be unwound, the process ends\n", text);
}

void on_rpc(const char * endpoint, const char * text, bool left) {
    if (somebody_catches()) {
        throw rpc_exception(endpoint, text, left);
    }
}

#if defined(__linux__)
// A stride of 0 or an empty dimension makes some ops divide by zero. In a build whose divisions are not checked
// (divide.c: a pristine build, or one with a sanitizer), this is a signal, not an assertion.
// The fault is synchronous, in plain C code with unwind tables; -fasynchronous-unwind-tables exists to allow throwing
// from its handler. On a thread without a guard the previous handler gets the signal.
struct sigaction former_sigfpe;

void on_sigfpe(int, siginfo_t *, void *) {
    if (somebody_catches()) {
        throw abort_exception("integer division by zero");
    }
    sigaction(SIGFPE, &former_sigfpe, nullptr); // then the instruction runs again
}

void install_sigfpe() {
    struct sigaction action = {};
    action.sa_sigaction = on_sigfpe;
    action.sa_flags     = SA_SIGINFO | SA_NODEFER; // the handler may not return, so the signal must not stay masked
    sigemptyset(&action.sa_mask);
    sigaction(SIGFPE, &action, &former_sigfpe);
}
#else
void install_sigfpe() {} // here integer division by zero does not trap, or cannot be unwound
#endif

void append(const char * name, const char * value) {
    const size_t n = strlen(error.operands);
    snprintf(error.operands + n, sizeof(error.operands) - n, "%s%s: %s", n ? "\n" : "", name, value);
}

// Appends "name: type ne 'name'"; for a node the op comes first.
void append(const char * name, const char * op, const ggml_tensor * t) {
    char text[256];
    snprintf(text, sizeof(text), "%s%s%s [%lld, %lld, %lld, %lld] '%s'", op, *op ? " " : "", ggml_type_name(t->type),
        (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3], t->name);
    append(name, text);
}

// Appends the node at which a compute failed, and its sources.
void append_node(const ggml_tensor * node) {
    append("node", ggml_op_desc(node), node);
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        if (node->src[i] != nullptr) {
            char name[16];
            snprintf(name, sizeof(name), "src[%d]", i);
            append(name, "", node->src[i]);
        }
    }
}

} // namespace

namespace gp {

// A callback of a compute may itself compute something else.
bool scope::enter() { return depth++ > 0 && gp_rules_hold != nullptr && gp_rules_hold(false); }

void scope::leave(bool held) {
    depth--;
    if (held) {
        gp_rules_hold(true);
    }
}

scope::scope() : held(enter()) {}
scope::~scope() { leave(held); }

computing::computing(const ggml_cgraph * graph) : graph(graph), changes(gp_changes()) {
    if (depth == 1 && gp_rules_hold != nullptr) {
        for (const computed & one : lately) {
            if (one.graph == graph && one.changes == changes) {
                gp_rules_hold(true);
                this->graph = nullptr; // already in the list
                break;
            }
        }
    }
}

computing::~computing() {
    if (gp_rules_hold != nullptr) {
        gp_rules_hold(false);
    }
}

ggml_status computing::ended(ggml_status status) {
    if (gp_rules_hold != nullptr && graph != nullptr && depth == 1 && status == GGML_STATUS_SUCCESS && !gp_rules_of_data()) {
        lately[n_computed++ % N_LATELY] = {graph, changes};
    }
    return status;
}

bool is_guarded() { return somebody_catches(); }

changing::changing()  { changes++; }
changing::~changing() { changes++; }

status_error::status_error(const char * device, enum ggml_status status) {
    snprintf(text, sizeof(text), "backend %s: %s", device, ggml_status_to_string(status));
}

void fail(int kind, const char * call, const char * message) {
    error.kind        = kind;
    error.operands[0] = '\0';
    snprintf(error.call, sizeof(error.call), "%s", call);
    if (kind != GP_ERROR_ABORT) {
        error.file[0] = '\0';
        error.line    = 0;
        snprintf(error.message, sizeof(error.message), "%s", message);
    }
}

void caught(const char * call) {
    try {
        throw;
    } catch (const abort_exception & e) {
        fail(GP_ERROR_ABORT, call, nullptr);
        parse(e.what());
    } catch (const recorded_error & e) {
        error = e.record;
        snprintf(error.call, sizeof(error.call), "%s", call);
        return;
    } catch (const rpc_exception & e) {
        fail(e.left ? GP_ERROR_LEFT : GP_ERROR_RPC, call, e.what());
        snprintf(error.file, sizeof(error.file), "%s", e.endpoint);
    } catch (const status_error & e) {
        fail(GP_ERROR_STATUS, call, e.what());
    } catch (const std::exception & e) {
        fail(GP_ERROR_CPP, call, e.what());
    }
    // do not swallow anything else (a cancelled thread)
    if (const ggml_tensor * node = gp_pool_failed_node ? gp_pool_failed_node() : nullptr) {
        append_node(node);
    }
}

void show(const char * name, const ggml_tensor * t) {
    if (t == nullptr) {
        append(name, "NULL");
        return;
    }
    append(name, "", t);
}

void show(const char * name, const char * value) {
    append(name, value ? value : "NULL");
}

void show(const char * name, double value) {
    char text[64];
    snprintf(text, sizeof(text), "%.9g", value);
    append(name, text);
}

} // namespace gp

extern "C" {

gp_error * gp_last_error(void) {
    return &error;
}

void gp_guard_install(void) {
    ggml_set_abort_callback(on_abort);
    if (gp_rpc_install != nullptr) {
        const gp::rpc_callbacks callbacks = {gp_interrupted, on_rpc};
        gp_rpc_install(&callbacks);
    }
    if (gp_divisions_checked == nullptr || !gp_divisions_checked()) {
        install_sigfpe();
    }
    if (gp_set_interrupted != nullptr) {
        gp_set_interrupted(gp_interrupted);
    }
    if (gp_fork_install != nullptr) {
        gp_fork_install();
    }
}

bool gp_trace_present(void) {
    return gp_sched_plan != nullptr;
}

void gp_share_guards(gp_shared * shared) {
    shared->last_error  = gp_last_error;
    shared->enter       = gp::scope::enter;
    shared->leave       = gp::scope::leave;
    shared->caught      = gp::caught;
    shared->fail        = gp::fail;
    shared->show_tensor = gp::show;
    shared->show_text   = gp::show;
    shared->show_number = gp::show;
    shared->changed     = [] { changes++; };
}

uint64_t gp_changes(void) {
    return changes.load(std::memory_order_relaxed);
}

} // extern "C"

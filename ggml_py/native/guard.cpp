#include "guard.h"

#include "sched_trace.h"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#pragma weak gp_sched_plan

namespace {

struct abort_exception : std::exception {};

thread_local int      depth = 0;
thread_local gp_error error = {};

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

void on_abort(const char * text) {
    if (depth > 0) {
        parse(text);
        throw abort_exception();
    }
    fprintf(stderr, "%s\nggml_py: this assertion failed on a thread of ggml's own; such a thread cannot be unwound, the process ends\n", text);
}

#if defined(__linux__)
// A stride of 0 or an empty dimension makes some ops divide by zero, which is a signal and no assertion.
// The fault is synchronous, in plain C code with unwind tables: throwing from its handler is what
// -fasynchronous-unwind-tables is for. On a thread without a guard the former handler gets it.
struct sigaction former_sigfpe;

void on_sigfpe(int, siginfo_t *, void *) {
    if (depth > 0) {
        parse("integer division by zero");
        throw abort_exception();
    }
    sigaction(SIGFPE, &former_sigfpe, nullptr); // and the instruction runs again
}

void install_sigfpe() {
    struct sigaction action = {};
    action.sa_sigaction = on_sigfpe;
    action.sa_flags     = SA_SIGINFO | SA_NODEFER; // the handler does not return: the mask must not stay
    sigemptyset(&action.sa_mask);
    sigaction(SIGFPE, &action, &former_sigfpe);
}
#else
void install_sigfpe() {} // integer division by zero does not trap there, or cannot be unwound
#endif

void append(const char * name, const char * value) {
    const size_t n = strlen(error.operands);
    snprintf(error.operands + n, sizeof(error.operands) - n, "%s%s: %s", n ? "\n" : "", name, value);
}

} // namespace

namespace gp {

scope::scope()  { depth++; }
scope::~scope() { depth--; }

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
    } catch (const abort_exception &) {
        fail(GP_ERROR_ABORT, call, nullptr);
    } catch (const std::exception & e) {
        fail(GP_ERROR_CPP, call, e.what());
    }
    // anything else (a cancelled thread) is not ours to swallow
}

void show(const char * name, const ggml_tensor * t) {
    if (t == nullptr) {
        append(name, "NULL");
        return;
    }
    char text[256];
    snprintf(text, sizeof(text), "%s [%lld, %lld, %lld, %lld] '%s'", ggml_type_name(t->type),
        (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3], t->name);
    append(name, text);
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
    install_sigfpe();
}

bool gp_trace_present(void) {
    return gp_sched_plan != nullptr;
}

} // extern "C"

#include "guard.h"

#include "sched_trace.h"

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
}

bool gp_trace_present(void) {
    return gp_sched_plan != nullptr;
}

} // extern "C"

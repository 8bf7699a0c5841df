// Starts the record of a program that was not made for it, from its environment, and leaves out what only ggml_py's own
// processes need. Compiled only into the library that is put in front of the program's ggml.
//
//   GGML_PY_RECORD        the file, or with "/" at its end the folder for a file of each process
//   GGML_PY_RECORD_WITH   words with spaces between them: run, quiet, max_size=N, every=N, first=N
//   GGML_PY_RECORD_ABOUT  JSON that is kept in the record
#include "record_file.h"

#include "pin_hooks.h"
#include "reach.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <dlfcn.h>
#include <unistd.h>

// --- ggml_py's own locks and checks (pins.h, reach.h): nothing here needs them

extern "C" {
void gp_lock_tensors(void) {}
void gp_unlock_tensors(void) {}
void gp_set_aside(const gp_memory *, size_t, bool) {}
bool gp_reach_foreign(void) { return false; }
}
void gp_reach_made(ggml_backend_buffer_type_t); // called by alloc_trace.cpp
void gp_reach_made(ggml_backend_buffer_type_t) {}

namespace {

uint64_t number(const std::string & words, const char * name, uint64_t otherwise) {
    const size_t at = words.find(std::string(" ") + name + "=");
    return at == std::string::npos ? otherwise : strtoull(words.c_str() + at + strlen(name) + 2, nullptr, 10);
}

bool has(const std::string & words, const char * name) {
    return words.find(std::string(" ") + name + " ") != std::string::npos;
}

// The version of the ggml that the program has itself, if it is loaded already.
const char * own_version() {
    typedef const char * (*version_t)(void);
    const version_t own = (version_t) dlsym(RTLD_NEXT, "ggml_version");
    return own ? own() : nullptr;
}

// Starts the program again without us: its ggml is of another release, and our functions come before its own.
void start_again(char ** argv) {
    std::string others;
    const char * preloaded = getenv("LD_PRELOAD");
    const std::string all = std::string(preloaded ? preloaded : "") + ":";
    for (size_t at = 0, end; (end = all.find_first_of(": ", at)) != std::string::npos; at = end + 1) {
        const std::string one = all.substr(at, end - at);
        if (!one.empty() && one.find("libggml_py_record.so") == std::string::npos) {
            others += (others.empty() ? "" : ":") + one;
        }
    }
    if (others.empty()) {
        unsetenv("LD_PRELOAD");
    } else {
        setenv("LD_PRELOAD", others.c_str(), 1);
    }
    if (getenv("GGML_PY_SIMS") != nullptr) {
        unsetenv("GGML_BACKEND_PATH");
    }
    for (const char * name : { "GGML_PY_RECORD", "GGML_PY_RECORD_WITH", "GGML_PY_RECORD_ABOUT", "GGML_PY_SIMS" }) {
        unsetenv(name);
    }
    execv("/proc/self/exe", argv);
}

__attribute__((constructor)) void start(int, char ** argv, char **) {
    const char * path = getenv("GGML_PY_RECORD");
    if (path == nullptr || path[0] == '\0') {
        return;
    }
    const char * with  = getenv("GGML_PY_RECORD_WITH");
    const char * about = getenv("GGML_PY_RECORD_ABOUT");
    const std::string words = std::string(" ") + (with ? with : "") + " ";
    gp_record_options options = {};
    options.run      = has(words, "run");
    options.lines    = !has(words, "quiet");
    options.max_size = number(words, "max_size", UINT64_MAX);
    options.every    = number(words, "every", 1);
    options.first    = number(words, "first", 0);
    const char * own = own_version();
    if (own != nullptr && strcmp(own, ggml_version()) != 0) {
        fprintf(stderr, "ggml-py record: %s has ggml %s, but what records here is %s: it runs unrecorded; give --upstream %s\n",
            argv && argv[0] ? argv[0] : "this program", own, ggml_version(), own);
        start_again(argv);
        return;
    }
    gp::record_at_need(path, about ? about : "", options);
}

} // namespace

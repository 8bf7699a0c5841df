#include "rpc_link.h"

#include "rpc_hooks.h"

#include "ggml-impl.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

namespace gp {

namespace {

using clock = std::chrono::steady_clock;
using ms    = std::chrono::milliseconds;

constexpr int RPC_ASK = 20; // ms between a caller's checks for Ctrl-C

// State of an endpoint, kept forever.
struct rpc_server_entry {
    std::atomic_int64_t  answer_ms{60000};
    std::atomic_int64_t  compute_ms{0};
    std::atomic_uint32_t n_devices{0};
    std::atomic_bool     lost{false};
};

rpc_server_entry & entry_of(const std::string & endpoint) {
    // Never destroyed: connections may last until the process ends.
    static std::mutex & mutex = *new std::mutex;
    static auto & entries = *new std::unordered_map<std::string, rpc_server_entry>;
    std::lock_guard<std::mutex> lock(mutex);
    return entries[endpoint];
}

rpc_callbacks             callbacks = {nullptr, nullptr};
std::atomic_bool          present{false};
thread_local rpc_doing *  doing = nullptr;

std::string seconds(int64_t n_ms) {
    char text[32];
    snprintf(text, sizeof(text), "%g s", n_ms / 1000.0);
    return text;
}

rpc_failure left_at(const std::string & endpoint) {
    return {endpoint, "a signal (Ctrl-C) ended the wait for RPC server " + endpoint, true};
}

} // namespace

void rpc_raise(const rpc_failure & failure) {
    if (callbacks.raise) {
        callbacks.raise(failure.endpoint.c_str(), failure.text.c_str(), failure.left);
    }
    GGML_ABORT("%s", failure.text.c_str());
}

bool rpc_interrupted() {
    return callbacks.interrupted && callbacks.interrupted();
}

// --- rpc_link

void rpc_link::open(const std::string & to) {
    endpoint = to;
    entry_of(endpoint).lost = false;
}

void rpc_link::check() {
    if (lost()) {
        rpc_raise(*failure());
    }
}

rpc_failure_ptr rpc_link::failure() {
    std::lock_guard<std::mutex> lock(mutex);
    return kept;
}

void rpc_link::lose(const std::string & reason) {
    if (ending) {
        return; // we shut down the socket ourselves
    }
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (kept) {
            return;
        }
        std::string text = "RPC server " + endpoint + " " + reason;
        if (doing != nullptr && &doing->link == this) {
            text += doing->caller ? " while connecting" : ", while it was " + doing->what(doing->cmd, doing->input, doing->input_size);
        }
        kept = std::make_shared<rpc_failure>(rpc_failure{endpoint, text, false});
        is_lost.store(true, std::memory_order_release);
    }
    entry_of(endpoint).lost = true;
    if (fd >= 0) {
        shutdown(fd, SHUT_RDWR); // so that a working server can serve other clients
    }
}

void rpc_link::refuse(const char * answer) {
    lose(std::string("gave an impossible answer: ") + answer);
    check();
}

int64_t rpc_link::limit_ms() const {
    const rpc_server_entry & entry = entry_of(endpoint);
    return computing ? entry.compute_ms : entry.answer_ms;
}

void rpc_link::end() {
    ending = true;
    if (fd >= 0) {
        shutdown(fd, SHUT_RDWR);
    }
}

// --- one message

void rpc_state::finish(rpc_failure_ptr by) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!done) {
        done    = true;
        failure = dropped && !by ? std::make_shared<rpc_failure>(left_at(link->endpoint)) : std::move(by);
        changed.notify_all();
    }
}

rpc_promise::~rpc_promise() {
    if (state->link) { // the message was pushed, and the dispatcher may have ended before its turn
        rpc_failure_ptr failure = state->link->failure();
        const std::string & endpoint = state->link->endpoint;
        state->finish(failure ? failure : std::make_shared<rpc_failure>(
            rpc_failure{endpoint, "RPC server " + endpoint + ": the connection was closed", false}));
    }
}

rpc_future rpc_promise::get_future() {
    state->awaited = true;
    return rpc_future(state);
}

void rpc_future::wait() const {
    if (!state) {
        return;
    }
    std::unique_lock<std::mutex> lock(state->mutex);
    while (!state->done) {
        if (state->changed.wait_for(lock, ms(RPC_ASK)) == std::cv_status::timeout && !state->done) {
            lock.unlock();
            if (rpc_interrupted()) {
                rpc_link & link = *state->link;
                {
                    std::lock_guard<std::mutex> held(link.held);
                    state->left      = true;
                    link.left_serial = std::max(link.left_serial, state->serial);
                }
                rpc_raise(left_at(link.endpoint));
            }
            lock.lock();
        }
    }
    const rpc_failure_ptr failure = state->failure;
    lock.unlock();
    if (failure) {
        rpc_raise(*failure);
    }
}

void rpc_future::settle() const {
    std::unique_lock<std::mutex> lock(state->mutex);
    state->changed.wait(lock, [this] { return state->done; });
}

// --- rpc_doing

rpc_doing::rpc_doing(rpc_link & link, rpc_kind kind, bool caller, words what, int cmd, const void * input, size_t input_size)
    : link(link), kind(kind), caller(caller), what(what), cmd(cmd), input(input), input_size(input_size), outer(doing) {
    doing = this;
    if (kind == RPC_COMPUTES) {
        link.computing = true;
    }
}

rpc_doing::~rpc_doing() {
    if (kind == RPC_SETTLES && !link.lost()) {
        link.computing = false;
    }
    doing = outer;
}

rpc_doing * rpc_doing::current() {
    return doing;
}

void rpc_doing::answer(rpc_state & to, void * data, size_t n) {
    state  = &to;
    output = (char *) data;
    size   = n;
}

bool rpc_doing::answers(const void * data) const {
    const char * at = (const char *) data;
    return state != nullptr && at >= output && at < output + size;
}

bool rpc_doing::drops() {
    if (state->left || (!state->awaited && state->serial <= link.left_serial)) {
        state->dropped = true;
    }
    return state->dropped;
}

bool rpc_doing::goes_on(clock::time_point since) {
    if (link.ending || link.lost()) {
        return false;
    }
    if (caller && rpc_interrupted()) {
        link.lose("was abandoned at a signal (Ctrl-C)");
        return false;
    }
    const int64_t limit = link.limit_ms();
    if (limit > 0 && clock::now() - since > ms(limit)) {
        link.lose("was silent for " + seconds(limit) + (link.computing ? ", its limit for a compute" : ", its limit"));
        return false;
    }
    return true;
}

void rpc_doing::fail() {
    link.lose("could not be connected to");
    link.check();
}

void rpc_reason(const char * format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (doing != nullptr) {
        doing->link.lose(text);
    }
}

bool rpc_is_client() {
    return doing != nullptr;
}

void rpc_note_devices(const std::string & endpoint, uint32_t n) {
    entry_of(endpoint).n_devices = n;
}

uint32_t rpc_known_devices(const std::string & endpoint) {
    return entry_of(endpoint).n_devices;
}

void rpc_served(const std::exception & error) {
    GGML_LOG_ERROR("rpc_serve_client: the client's connection is closed: %s\n", error.what());
}

// --- rpc_lock

rpc_lock::rpc_lock(std::timed_mutex & mutex) : mutex(mutex) {
    while (!mutex.try_lock_for(ms(RPC_ASK))) {
        if (rpc_interrupted()) {
            rpc_raise({"", "a signal (Ctrl-C) came while another thread was connecting to an RPC server", true});
        }
    }
}

rpc_lock::~rpc_lock() {
    mutex.unlock();
}

} // namespace gp

extern "C" {

void gp_rpc_install(const gp::rpc_callbacks * from) {
    gp::callbacks = *from;
}

bool gp_rpc_present(void) {
    gp::present = true;
    return true;
}

bool gp_rpc_guarded(void) {
    return gp::present;
}

void gp_rpc_set_limits(const char * endpoint, int64_t answer_ms, int64_t compute_ms) {
    gp::rpc_server_entry & entry = gp::entry_of(endpoint);
    if (answer_ms >= 0) {
        entry.answer_ms = answer_ms;
    }
    if (compute_ms >= 0) {
        entry.compute_ms = compute_ms;
    }
}

bool gp_rpc_is_lost(const char * endpoint) {
    return gp::entry_of(endpoint).lost;
}

ggml_backend_reg_t gp_rpc_add_server(void * add_server, const char * endpoint) {
    return ((ggml_backend_reg_t (*)(const char *)) add_server)(endpoint);
}

} // extern "C"

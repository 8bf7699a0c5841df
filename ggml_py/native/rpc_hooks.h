// What the instrumented copies of ggml-rpc.cpp and transport.cpp call (vendor/rpc_edits.py).
//
// 1. Upstream has one connection per server and a dispatcher thread that does everything on it. Callers
//    push messages into its queue and wait. Where the connection fails upstream aborts on that thread,
//    where nothing can be thrown.
// 2. Here the failure is kept in the connection's rpc_link. The message it happened at, and all that are
//    pushed or queued after it, end with that failure; whoever waits for one throws it on his own thread
//    (rpc_future::wait, rpc_queue::push).
// 3. The socket has a receive and send timeout of RPC_SLICE. After each slice without a byte the thread
//    looks whether to go on: not when the connection ends or the server is silent for too long.
// 4. A caller that waits asks for Ctrl-C. It leaves then: its message stays, what arrives for it is read
//    and dropped, the connection can be used. `held` is taken while bytes go into a caller's memory, so
//    that nobody writes to what a caller has left.
// 5. What frees does not wait and does not throw: it pushes its message and goes, or only goes.
// 6. Connecting and the handshake are done on the caller's thread: rpc_doing::caller.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#define GP_RPC __attribute__((visibility("default")))

namespace gp {

// How the cffi module raises and asks for signals; not set in other programs, where a failure aborts.
struct rpc_callbacks {
    bool (*interrupted)(void);
    // Returns when nobody would catch. `left`: nothing failed, the wait was left.
    void (*raise)(const char * endpoint, const char * text, bool left);
};

// Of a command: whether the server computes after it, or has computed all when it answers.
enum rpc_kind { RPC_OTHER, RPC_COMPUTES, RPC_SETTLES };

struct rpc_failure {
    std::string endpoint;
    std::string text;
    bool        left = false; // nothing failed, a signal ended the wait
};
using rpc_failure_ptr = std::shared_ptr<const rpc_failure>;

GP_RPC void rpc_raise(const rpc_failure & failure);
GP_RPC bool rpc_interrupted();

struct rpc_state; // of one message

// One connection.
class GP_RPC rpc_link {
public:
    void open(const std::string & endpoint); // before it is connected
    bool lost() const { return is_lost.load(std::memory_order_acquire); }
    void check();                            // throws what it was lost by
    rpc_failure_ptr failure();
    void lose(const std::string & reason);   // the first reason stays
    void refuse(const char * answer);        // lost by an answer that cannot be, and thrown
    int64_t limit_ms() const;                // that the server may be silent now; 0: none
    void end();                              // the dispatcher goes: what waits on the socket returns
    bool alive();                            // whether the server has neither closed nor sent what nobody asked for

    std::mutex           held;            // while bytes go into a caller's memory
    uint64_t             left_serial = 0; // asynchronous messages up to it were left; under held
    std::atomic_uint64_t serial{0};       // of the last message
    std::atomic_bool     ending{false};
    std::atomic_int      fd{-1};
    bool                 computing = false; // the server; of the thread that talks to it
    std::string          endpoint;

private:
    std::mutex       mutex;
    std::atomic_bool is_lost{false};
    rpc_failure_ptr  kept;
};

using rpc_link_ptr = std::shared_ptr<rpc_link>;

// Takes the place of std::promise and std::future of upstream's messages.
struct GP_RPC rpc_state {
    std::mutex              mutex;
    std::condition_variable changed;
    bool                    done = false;
    rpc_failure_ptr         failure;
    rpc_link_ptr            link;        // since it was pushed
    uint64_t                serial = 0;
    std::atomic_bool        awaited{false};
    bool                    left    = false; // its caller is gone, and the memory for the answer; under held
    bool                    dropped = false; // bytes of the answer were; of the dispatcher's thread

    void finish(rpc_failure_ptr failure);
};

class GP_RPC rpc_future {
public:
    rpc_future() = default;
    explicit rpc_future(std::shared_ptr<rpc_state> state) : state(std::move(state)) {}
    rpc_future share() const { return *this; }
    void wait() const;    // throws the failure, or because of Ctrl-C
    void settle() const;  // neither

private:
    std::shared_ptr<rpc_state> state;
};

class GP_RPC rpc_promise {
public:
    rpc_promise() : state(std::make_shared<rpc_state>()) {}
    ~rpc_promise();
    rpc_promise(const rpc_promise &) = delete;
    rpc_promise & operator=(const rpc_promise &) = delete;
    rpc_future get_future();

    std::shared_ptr<rpc_state> state;
};

// Upstream's queue, which knows the connection.
template <class Queue, class Message>
class rpc_queue : public Queue {
public:
    const rpc_link_ptr link = std::make_shared<rpc_link>();

    bool push(const Message & message) {
        push_quietly(message); // first: an event's mark ends with the failure, too
        link->check();
        return true;
    }

    void push_quietly(const Message & message) {
        rpc_state & state = *message->completion.state;
        state.link   = link;
        state.serial = ++link->serial;
        if (link->lost()) {
            state.finish(link->failure());
        } else {
            Queue::push(message);
        }
    }
};

// What this thread does on a connection, for the waits below it.
class GP_RPC rpc_doing {
public:
    using words = std::string (*)(int cmd, const void * input, size_t size);

    // `caller`: it connects, on the caller's thread. Else `what` tells what the server was asked.
    rpc_doing(rpc_link & link, rpc_kind kind, bool caller, words what = nullptr, int cmd = 0,
        const void * input = nullptr, size_t input_size = 0);
    ~rpc_doing();
    static rpc_doing * current(); // nullptr on a server's threads
    void answer(rpc_state & state, void * output, size_t size); // where it goes
    bool goes_on(std::chrono::steady_clock::time_point since);
    bool answers(const void * data) const; // whether it is in the memory for the answer
    bool drops();                          // that memory was left; under link.held
    void fail();                   // throws what opening a connection failed by

    rpc_link &        link;
    const rpc_kind    kind;
    const bool        caller;
    const words       what;
    const int         cmd;
    const void * const input;
    const size_t      input_size;
    rpc_state *       state  = nullptr;
    char *            output = nullptr;
    size_t            size   = 0;

private:
    rpc_doing * const outer;
};

// Runs one message on the dispatcher's thread and ends it.
template <class Send>
void rpc_run(rpc_link & link, rpc_promise & completion, Send && send) {
    if (!link.lost()) {
        try {
            if (!send() && !link.lost()) {
                link.lose("the connection failed");
            }
        } catch (const std::exception & error) {
            link.lose(std::string("this process failed: ") + error.what());
        }
    }
    completion.state->finish(link.failure());
}

GP_RPC void rpc_reason(const char * format, ...) __attribute__((format(printf, 1, 2))); // loses what this thread does
GP_RPC bool rpc_is_client();                                     // whether this thread does anything
GP_RPC void rpc_served(const std::exception & error);            // what ended serving one client
GP_RPC void rpc_note_devices(const std::string & endpoint, uint32_t n);
GP_RPC uint32_t rpc_known_devices(const std::string & endpoint); // 0: none yet

// Implemented by rpc_socket.cpp. For the transport, in place of the calls of those names. On a server's thread they wait as those do,
// and give up at Ctrl-C.
GP_RPC int     rpc_connect(int fd, const sockaddr * address, socklen_t size); // closes what cannot be connected
GP_RPC int     rpc_accept(int fd);
GP_RPC ssize_t rpc_send(int fd, const void * data, size_t size);
GP_RPC ssize_t rpc_recv(int fd, void * data, size_t size);
GP_RPC int     rpc_poll(pollfd * fds, nfds_t n);                      // -1 when it is not to go on
GP_RPC bool    rpc_goes_on();                                         // in a loop that polls
GP_RPC bool    rpc_take(void * data, const void * from, size_t size); // memcpy for an answer

// A lock that Ctrl-C leaves: others connect to a server while they hold it.
class GP_RPC rpc_lock {
public:
    explicit rpc_lock(std::timed_mutex & mutex);
    ~rpc_lock();

private:
    std::timed_mutex & mutex;
};

// Reads `size` bytes with recv(pointer, n) into memory that grows as they come.
template <class Receive>
bool rpc_fill(std::vector<uint8_t> & input, uint64_t size, Receive && receive) {
    const uint64_t step = 64u << 20;
    while (input.size() < size) {
        const size_t had = input.size();
        const size_t n   = (size_t) (size - had < step ? size - had : step);
        if (input.capacity() < had + n) {
            input.reserve(had + n < 2 * had ? 2 * had : had + n);
        }
        input.resize(had + n);
        if (!receive(input.data() + had, n)) {
            return false;
        }
    }
    return true;
}

} // namespace gp

extern "C" {
GP_RPC void gp_rpc_install(const gp::rpc_callbacks * callbacks); // by guard.cpp
GP_RPC bool gp_rpc_present(void);                                // by the copy of ggml-rpc.cpp, once
}

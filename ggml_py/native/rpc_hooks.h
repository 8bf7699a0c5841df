// Functions that the instrumented copies of ggml-rpc.cpp and transport.cpp call (vendor/rpc_edits.py).
//
// 1. Upstream has one connection per server, and a dispatcher thread that does everything on it. Callers
//    push messages into its queue and wait. If the connection fails, upstream aborts on that thread,
//    where nothing can be thrown.
// 2. Here the failure is kept in the connection's rpc_link. The message at which it happened, and all
//    messages pushed or queued after it, end with that failure. A caller waiting for one of them throws it
//    on its own thread (rpc_future::wait, rpc_queue::push).
// 3. The socket has a receive and send timeout of RPC_SLICE. After each slice without a byte the thread
//    decides whether to continue. It stops if the connection ends or the server is silent for too long.
// 4. A waiting caller checks for Ctrl-C and then stops waiting. Its message stays queued, the answer is
//    read and dropped, and the connection stays usable. `held` is locked while bytes are copied into a
//    caller's memory, so that nothing is written after the caller has left.
// 5. Functions that free neither wait nor throw: they push their message, if they can, and return.
// 6. Connecting and the handshake happen on the caller's thread: rpc_doing::caller.
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

// How the cffi module raises and checks for signals. Not set in other programs, where a failure aborts.
struct rpc_callbacks {
    bool (*interrupted)(void);
    // Returns if no caller would catch. `left`: nothing failed, a signal ended the wait.
    void (*raise)(const char * endpoint, const char * text, bool left);
};

// The kind of a command: whether the server computes after it, or has finished all computes when it answers.
enum rpc_kind { RPC_OTHER, RPC_COMPUTES, RPC_SETTLES };

struct rpc_failure {
    std::string endpoint;
    std::string text;
    bool        left = false; // nothing failed, a signal ended the wait
};
using rpc_failure_ptr = std::shared_ptr<const rpc_failure>;

GP_RPC void rpc_raise(const rpc_failure & failure);
GP_RPC bool rpc_interrupted();

struct rpc_state; // the state of one message

// One connection.
class GP_RPC rpc_link {
public:
    void open(const std::string & endpoint); // called before connecting
    bool lost() const { return is_lost.load(std::memory_order_acquire); }
    void check();                            // throws the failure if the connection is lost
    rpc_failure_ptr failure();
    void lose(const std::string & reason);   // marks it as lost; the first reason is kept
    void refuse(const char * answer);        // loses the connection for an impossible answer, and throws
    int64_t limit_ms() const;                // how long the server may be silent now; 0: no limit
    void end();                              // the dispatcher ends: makes waits on the socket return
    bool alive();                            // false, and lost, if the server closed it or sent unrequested bytes

    std::mutex           held;            // locked while bytes go into a caller's memory
    uint64_t             left_serial = 0; // callers left asynchronous messages up to this one; under `held`
    std::atomic_uint64_t serial{0};       // number of the last message
    std::atomic_bool     ending{false};
    std::atomic_int      fd{-1};
    bool                 computing = false; // whether the server computes; used by the thread that talks to it
    std::string          endpoint;

private:
    std::mutex       mutex;
    std::atomic_bool is_lost{false};
    rpc_failure_ptr  kept;
};

using rpc_link_ptr = std::shared_ptr<rpc_link>;

// Replaces std::promise and std::future in upstream's messages.
struct GP_RPC rpc_state {
    std::mutex              mutex;
    std::condition_variable changed;
    bool                    done = false;
    rpc_failure_ptr         failure;
    rpc_link_ptr            link;        // set when the message is pushed
    uint64_t                serial = 0;
    std::atomic_bool        awaited{false};
    bool                    left    = false; // its caller, and the memory for the answer, are gone; under `held`
    bool                    dropped = false; // bytes of the answer were dropped; used by the dispatcher's thread

    void finish(rpc_failure_ptr failure);
};

class GP_RPC rpc_future {
public:
    rpc_future() = default;
    explicit rpc_future(std::shared_ptr<rpc_state> state) : state(std::move(state)) {}
    rpc_future share() const { return *this; }
    void wait() const;    // throws the failure, or at Ctrl-C
    void settle() const;  // waits without throwing

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

// Upstream's queue, with a link to the connection.
template <class Queue, class Message>
class rpc_queue : public Queue {
public:
    const rpc_link_ptr link = std::make_shared<rpc_link>();

    bool push(const Message & message) {
        push_quietly(message); // before the check, so that an event's message also ends with the failure
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

// What this thread is doing on a connection, for the waits that it calls.
class GP_RPC rpc_doing {
public:
    using words = std::string (*)(int cmd, const void * input, size_t size);

    // `caller`: connecting, on the caller's thread. Otherwise `what` describes the request.
    rpc_doing(rpc_link & link, rpc_kind kind, bool caller, words what = nullptr, int cmd = 0,
        const void * input = nullptr, size_t input_size = 0);
    ~rpc_doing();
    static rpc_doing * current(); // nullptr on a server's threads
    void answer(rpc_state & state, void * output, size_t size); // sets the memory for the answer
    bool goes_on(std::chrono::steady_clock::time_point since);
    bool answers(const void * data) const; // whether `data` is in the memory for the answer
    bool drops();                          // whether the caller left that memory; under link.held
    void fail();                   // throws the reason why opening the connection failed

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

// Sends one message on the dispatcher's thread and finishes it.
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

GP_RPC void rpc_reason(const char * format, ...) __attribute__((format(printf, 1, 2))); // loses this thread's connection
GP_RPC bool rpc_is_client();                                     // whether this thread is working on a connection
GP_RPC void rpc_served(const std::exception & error);            // logs why serving a client ended
GP_RPC void rpc_note_devices(const std::string & endpoint, uint32_t n);
GP_RPC uint32_t rpc_known_devices(const std::string & endpoint); // 0: none yet

// Implemented by rpc_socket.cpp. They replace the calls of the same names in the transport. On a server's thread they
// wait as those do, but give up at Ctrl-C.
GP_RPC int     rpc_connect(int fd, const sockaddr * address, socklen_t size); // closes fd if it cannot connect
GP_RPC int     rpc_accept(int fd);
GP_RPC ssize_t rpc_send(int fd, const void * data, size_t size);
GP_RPC ssize_t rpc_recv(int fd, void * data, size_t size);
GP_RPC int     rpc_poll(pollfd * fds, nfds_t n);                      // -1 if the caller must stop
GP_RPC bool    rpc_goes_on();                                         // for a polling loop: whether to continue
GP_RPC bool    rpc_take(void * data, const void * from, size_t size); // memcpy for an answer

// A lock whose wait Ctrl-C ends: other threads hold it while they connect to a server.
class GP_RPC rpc_lock {
public:
    explicit rpc_lock(std::timed_mutex & mutex);
    ~rpc_lock();

private:
    std::timed_mutex & mutex;
};

// Reads `size` bytes with receive(pointer, n) into memory that grows as they arrive.
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
GP_RPC void gp_rpc_install(const gp::rpc_callbacks * callbacks); // called by guard.cpp
GP_RPC bool gp_rpc_present(void);                                // called once by the copy of ggml-rpc.cpp
}

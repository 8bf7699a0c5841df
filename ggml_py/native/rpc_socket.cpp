#include "rpc_hooks.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/time.h>
#include <unistd.h>

namespace gp {

namespace {

using clock = std::chrono::steady_clock;
using ms    = std::chrono::milliseconds;

constexpr int RPC_SLICE   = 100;   // ms after which a wait checks whether to continue
constexpr int RPC_CONNECT = 10000; // ms to connect, unless the limit is shorter

std::string said(int error) {
    return std::generic_category().message(error);
}

bool again(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

bool closed(int error) {
    return error == ECONNRESET || error == EPIPE || error == ENOTCONN || error == ESHUTDOWN;
}

std::string failed_by(int error) {
    return closed(error) ? "closed the connection" : "is lost (" + said(error) + ")";
}

void set_option(int fd, int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
}

// A host that vanished would stay silent forever, so keepalive asks its kernel. The kernel also answers
// for a server that is merely busy or stopped.
void keep_alive(int fd) {
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 20);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
#endif
#ifdef SO_NOSIGPIPE
    set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
    const timeval slice = {0, RPC_SLICE * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof(slice));
}

// Whether a server's thread continues to serve its client.
bool serves_on() {
    return !rpc_interrupted();
}

int finish_connecting(rpc_doing & doing, int fd) {
    const auto began = clock::now();
    const int64_t limit = doing.link.limit_ms();
    const int64_t most  = limit > 0 ? std::min<int64_t>(limit, RPC_CONNECT) : RPC_CONNECT;
    while (true) {
        pollfd one = {fd, POLLOUT, 0};
        const int n = poll(&one, 1, RPC_SLICE);
        if (n > 0) {
            int       error = 0;
            socklen_t size  = sizeof(error);
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
            return error;
        }
        if (clock::now() - began > ms(most)) {
            return ETIMEDOUT;
        }
        if (!doing.goes_on(clock::now())) {
            return EINTR;
        }
    }
}

} // namespace

bool rpc_link::alive() {
    char byte;
    const ssize_t n = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && again(errno)) {
        return true;
    }
    lose(n > 0 ? "sent unrequested bytes" : n == 0 ? "closed the connection" : failed_by(errno));
    return false;
}

int rpc_connect(int fd, const sockaddr * address, socklen_t size) {
    rpc_doing * const doing = rpc_doing::current();
    if (doing == nullptr) {
        const int result = ::connect(fd, address, size);
        if (result < 0) {
            close(fd);
        }
        return result;
    }
    const int flags = fcntl(fd, F_GETFL, 0);
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    int error = ::connect(fd, address, size) == 0 ? 0 : errno;
    if (error == EINPROGRESS || error == EINTR) {
        error = finish_connecting(*doing, fd);
    }
    if (error != 0) {
        rpc_reason("cannot be reached (%s)", said(error).c_str());
        close(fd);
        return -1;
    }
    fcntl(fd, F_SETFL, flags);
    keep_alive(fd);
    doing->link.fd = fd;
    return 0;
}

int rpc_accept(int fd) {
    pollfd one = {fd, POLLIN, 0};
    while (true) {
        const int n = poll(&one, 1, RPC_SLICE);
        if (n > 0) {
            const int client = ::accept(fd, nullptr, nullptr);
            if (client >= 0) {
                keep_alive(client);
                return client;
            }
            if (errno != ECONNABORTED && !again(errno)) {
                return -1;
            }
        } else if (n < 0 && errno != EINTR) {
            return -1;
        }
        if (!serves_on()) {
            return -1;
        }
    }
}

ssize_t rpc_send(int fd, const void * data, size_t size) {
    rpc_doing * const doing = rpc_doing::current();
#ifdef MSG_NOSIGNAL
    const int flags = MSG_NOSIGNAL;
#else
    const int flags = 0;
#endif
    const auto began = clock::now();
    while (true) {
        const ssize_t n = ::send(fd, data, size, flags);
        if (n >= 0) {
            return n;
        }
        const int error = errno;
        if (!again(error)) {
            rpc_reason("%s", failed_by(error).c_str());
            return -1;
        }
        if (doing != nullptr ? !doing->goes_on(began) : !serves_on()) {
            return -1;
        }
    }
}

ssize_t rpc_recv(int fd, void * data, size_t size) {
    rpc_doing * const doing = rpc_doing::current();
    const auto began = clock::now();
    while (true) {
        ssize_t n;
        int     error;
        if (doing == nullptr || !doing->answers(data)) {
            n     = ::recv(fd, data, size, 0);
            error = errno;
        } else {
            std::unique_lock<std::mutex> held(doing->link.held);
            char nobody[4096];
            n = doing->drops() ? ::recv(fd, nobody, std::min(size, sizeof(nobody)), MSG_DONTWAIT)
                               : ::recv(fd, data, size, MSG_DONTWAIT);
            error = errno;
            held.unlock();
            pollfd one = {fd, POLLIN, 0};
            if (n < 0 && again(error) && poll(&one, 1, RPC_SLICE) > 0) {
                continue;
            }
        }
        if (n > 0) {
            return n;
        }
        if (n == 0) {
            rpc_reason("closed the connection");
            return 0;
        }
        if (!again(error)) {
            rpc_reason("%s", failed_by(error).c_str());
            return -1;
        }
        if (doing != nullptr ? !doing->goes_on(began) : !serves_on()) {
            return -1;
        }
    }
}

int rpc_poll(pollfd * fds, nfds_t n_fds) {
    rpc_doing * const doing = rpc_doing::current();
    const auto began = clock::now();
    while (true) {
        const int n = poll(fds, n_fds, RPC_SLICE);
        if (n > 0 || (n < 0 && errno != EINTR)) {
            return n;
        }
        if (doing != nullptr ? !doing->goes_on(began) : !serves_on()) {
            return -1;
        }
    }
}

bool rpc_goes_on() {
    rpc_doing * const doing = rpc_doing::current();
    return doing == nullptr || doing->goes_on(clock::now());
}

bool rpc_take(void * data, const void * from, size_t size) {
    rpc_doing * const doing = rpc_doing::current();
    if (doing == nullptr || !doing->answers(data)) {
        memcpy(data, from, size);
        return true;
    }
    std::lock_guard<std::mutex> held(doing->link.held);
    if (!doing->drops()) {
        memcpy(data, from, size);
    }
    return true;
}

} // namespace gp

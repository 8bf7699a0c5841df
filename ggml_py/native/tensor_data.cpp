#include "tensor_data.h"

#include "blank.h"
#include "guard.h"
#include "pins.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace {

void let_go(const void * data, size_t nbytes) {
#if defined(__linux__) || defined(__APPLE__)
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE), start = (uintptr_t) data;
    const uintptr_t first = (start + page - 1) / page * page, end = (start + nbytes) / page * page;
    if (first < end) {
        madvise((void *) first, end - first, MADV_DONTNEED);
    }
#else
    (void) data;
    (void) nbytes;
#endif
}

struct work {
    const gp_piece *    pieces;
    size_t              n;
    std::atomic<size_t> next{0};
    std::exception_ptr  failure;
    std::mutex          mutex; // protects `failure`

    void run() {
        try {
            gp::scope guarded; // one for each thread
            for (size_t i = next++; i < n; i = next++) {
                const gp_piece & piece = pieces[i];
                gp_blank_written(piece.tensor);
                gp::pinned_tensor tensor(piece.tensor);
                ggml_backend_tensor_set(tensor, piece.data, piece.offset, piece.nbytes);
                if (piece.mapped) {
                    let_go(piece.data, piece.nbytes);
                }
            }
        } catch (const std::exception &) {
            next = n;
            const std::lock_guard<std::mutex> lock(mutex);
            if (!failure) {
                failure = std::current_exception();
            }
        }
    }
};

} // namespace

void gp_set_pieces(const gp_piece * pieces, size_t n, int n_threads) {
    work todo;
    todo.pieces = pieces;
    todo.n      = n;
    std::vector<std::thread> others;
    const size_t most = n_threads > 1 ? (size_t) n_threads - 1 : 0;
    others.reserve(most);
    try {
        while (others.size() < most && others.size() + 1 < n) {
            others.emplace_back([&todo] { todo.run(); });
        }
    } catch (const std::exception &) {
        // no more threads can be started: the existing ones do the work
    }
    todo.run();
    for (std::thread & other : others) {
        other.join();
    }
    if (todo.failure) {
        std::rethrow_exception(todo.failure);
    }
}

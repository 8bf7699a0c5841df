#include "sim_memory.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

namespace gp {
namespace {

const size_t page = (size_t) sysconf(_SC_PAGESIZE);

// Kernels may read a little beyond the last tensor.
size_t mapped_size(size_t size) {
    return GGML_PAD(size + 64, page);
}

thread_local int n_reserving = 0;
size_t           cpu_memory  = 0;

using alloc_function  = decltype(ggml_backend_buffer_type_i::alloc_buffer);
using memory_function = decltype(ggml_backend_device_i::get_memory);
std::unordered_map<ggml_backend_buffer_type_t, alloc_function> upstreams; // of each of the CPU's buffer types
memory_function memory_of_cpu = nullptr;

void free_reserved(ggml_backend_buffer_t buffer) {
    release_memory(buffer->context, buffer->size);
}

void clear_reserved(ggml_backend_buffer_t buffer, uint8_t value) {
    fill_memory(buffer->context, buffer->size, value);
}

// Makes a small buffer, for upstream's interface, and gives it other memory.
ggml_backend_buffer_t alloc(ggml_backend_buffer_type_t buft, size_t size) {
    const alloc_function upstream = upstreams.at(buft);
    if (n_reserving == 0) {
        return upstream(buft, size);
    }
    ggml_backend_buffer_t buffer = upstream(buft, 64);
    if (buffer == nullptr || buffer->iface.free_buffer == free_reserved || buffer->iface.get_base(buffer) != buffer->context) {
        ggml_backend_buffer_free(buffer); // its memory is another type's, or not what its context is
        return upstream(buft, size);
    }
    void * data = reserved_memory(size, 1);
    if (data == nullptr) {
        GGML_LOG_ERROR("%s: %zu bytes of address space could not be reserved (ulimit -v, vm.overcommit_memory)\n",
            ggml_backend_buft_name(buft), size);
        ggml_backend_buffer_free(buffer);
        return nullptr;
    }
    buffer->iface.free_buffer(buffer); // its memory only
    buffer->context           = data;
    buffer->size              = size;
    buffer->iface.free_buffer = free_reserved;
    buffer->iface.clear       = clear_reserved;
    return buffer;
}

void watch(ggml_backend_buffer_type_t buft) {
    upstreams[buft]          = buft->iface.alloc_buffer;
    buft->iface.alloc_buffer = alloc;
}

void get_memory(ggml_backend_dev_t dev, size_t * free, size_t * total) {
    if (cpu_memory == 0) {
        memory_of_cpu(dev, free, total);
        return;
    }
    *free = *total = cpu_memory;
}

} // namespace

void * reserved_memory(size_t size, size_t alignment) {
    const size_t more   = alignment > page ? alignment : 0;
    const size_t length = mapped_size(size);
    if (length < size || length + more < length) {
        return nullptr;
    }
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void * found = mmap(nullptr, length + more, PROT_READ | PROT_WRITE, how, -1, 0);
    if (found == MAP_FAILED) {
        return nullptr;
    }
    char * begin = (char *) found;
    char * data  = more ? (char *) GGML_PAD((uintptr_t) begin, alignment) : begin;
    if (data > begin) {
        munmap(begin, data - begin);
    }
    if (begin + more > data) {
        munmap(data + length, begin + more - data);
    }
    return data;
}

void release_memory(void * data, size_t size) {
    munmap(data, mapped_size(size));
}

void fill_memory(void * data, size_t size, int value) {
    if (value != 0) {
        memset(data, value, size);
        return;
    }
#ifdef __linux__
    if (madvise(data, mapped_size(size), MADV_DONTNEED) == 0) {
        return;
    }
#else
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED; // elsewhere the pages may keep what they have
    if (mmap(data, mapped_size(size), PROT_READ | PROT_WRITE, how, -1, 0) != MAP_FAILED) {
        return;
    }
#endif
    memset(data, 0, size);
}

} // namespace gp

extern "C" {

void gp_reserve_host(bool on) {
    static std::once_flag once;
    std::call_once(once, [] {
        gp::watch(ggml_backend_cpu_buffer_type());
        ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        const auto extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts");
        for (ggml_backend_buffer_type_t * buft = extra ? extra(cpu) : nullptr; buft && *buft; buft++) {
            gp::watch(*buft);
        }
    });
    gp::n_reserving += on ? 1 : -1;
}

void gp_set_cpu_memory(size_t bytes) {
    static std::once_flag once;
    std::call_once(once, [] {
        ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        gp::memory_of_cpu      = cpu->iface.get_memory;
        cpu->iface.get_memory  = gp::get_memory;
    });
    gp::cpu_memory = bytes;
}

} // extern "C"

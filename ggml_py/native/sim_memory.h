// Memory of this machine that nothing uses yet: address space, of which a page is taken when it is written to. Planning
// therefore needs no memory, and a model may be planned that is larger than the machine.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Between on and off (calls may be nested), buffers that this thread allocates from the CPU's buffer type, also those of
// its layouts for kernels, are such memory.
void gp_reserve_host(bool on);
// How much memory the CPU device says that it has, all of it free; 0: this machine's.
void gp_set_cpu_memory(size_t bytes);

#ifdef __cplusplus
}

namespace gp {

// `size` bytes of zeros; NULL if the process has no more address space, or the system counts address space as memory
// (vm.overcommit_memory=2). `alignment` is a power of two.
void * reserved_memory(size_t size, size_t alignment);
void   release_memory(void * data, size_t size);
// Fills it. Zeros give its pages back.
void   fill_memory(void * data, size_t size, int value);

} // namespace gp
#endif

// Handles mapped files that are truncated, or whose disk fails, while they are mapped. The system then sends SIGBUS to
// any thread that reads the missing part, in a kernel or in numpy.
//
// 1. Mapped files are known by their addresses (gp_mapped_add).
// 2. The handler maps zeroes over the unreadable part, from the failing page to the end, so that the reader continues,
//    and counts a damage. SIGBUS anywhere else goes to the previous handler.
// 3. Each call through `lib` that was running at that time raises when it ends (module.h), because what it computed or
//    copied is not the file's content. If no call was running (numpy read), Python soon raises on its main thread.
// 4. Raising removes the zeroes again, so a later read of that part raises too.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Watches `nbytes` at `begin`, where `path` is mapped. `fd` is the file, mapped shared and read-only from `offset` on;
// gp_mapped_remove closes it. With -1, zeroes are never removed. Returns the argument for gp_mapped_remove.
void * gp_mapped_add(void * begin, size_t nbytes, const char * path, int fd, uint64_t offset);
// Stops watching. The memory is no longer mapped.
void gp_mapped_remove(void * mapped);
// Fails (GP_ERROR_FILE) if a watched file has become shorter than its mapped part. A missing part of its last page
// reads as zeroes without any signal.
void gp_mapped_check(void);
// Installs the handler. Called once, when the module is imported.
void gp_mapped_install(void);

#ifdef __cplusplus
}
#endif

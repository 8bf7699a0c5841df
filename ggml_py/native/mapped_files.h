// Files that are mapped, and what happens when one is cut, or its disk fails, while it is: the system then sends
// SIGBUS to whoever reads what is gone, on whatever thread, in a kernel or in numpy.
//
// 1. What is mapped is known by its addresses (gp_mapped_add).
// 2. The handler lays zeroes over what cannot be read, from that page to the end, so that whoever reads goes on,
//    and counts a damage. SIGBUS anywhere else is the former handler's.
// 3. Each call through `lib` that was on its way meanwhile raises at its end (module.h): what it computed or copied
//    is not what the file has. Where no call was (numpy read), Python raises on its main thread, soon.
// 4. Whoever raises takes the zeroes away again: who reads there later raises, too.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Watches `nbytes` at `begin`, where `path` is mapped. `fd` is the file, from `offset` on, mapped to be read and
// shared; it is closed here, later on. With -1 zeroes stay where they were laid. Returns what gp_mapped_remove takes.
void * gp_mapped_add(void * begin, size_t nbytes, const char * path, int fd, uint64_t offset);
// The memory is not mapped any more.
void gp_mapped_remove(void * mapped);
// Fails (GP_ERROR_FILE) for a watched file that is shorter than what is mapped of it by now. What is missing of its
// last page reads as zeroes, which no signal tells of.
void gp_mapped_check(void);
// Installs the handler. Done once, when the module is imported.
void gp_mapped_install(void);

#ifdef __cplusplus
}
#endif

// Keeps ggml usable in a forked child, whose only thread is the one that forked.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// How many forks this process is away from its first. Thread pools made before the last fork have lost their threads.
__attribute__((visibility("default"))) int gp_forks(void);
// After this call no fork happens while another thread is in ggml's critical section. Called once, by guard.cpp.
__attribute__((visibility("default"))) void gp_fork_install(void);

#ifdef __cplusplus
}
#endif

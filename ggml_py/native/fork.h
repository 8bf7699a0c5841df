// What a fork leaves whole in the child, where the thread that forked is the only one.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// How many forks this process is away from its first: what was made before the last has lost its threads.
__attribute__((visibility("default"))) int gp_forks(void);
// From then on no fork happens while another thread is in ggml's critical section. Done once, by guard.cpp.
__attribute__((visibility("default"))) void gp_fork_install(void);

#ifdef __cplusplus
}
#endif

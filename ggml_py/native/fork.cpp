#include "fork.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

extern "C" {

void ggml_critical_section_start(void); // ggml-threading.h
void ggml_critical_section_end(void);

static int forks = 0;

int gp_forks(void) {
    return forks;
}

#if defined(__unix__) || defined(__APPLE__)

static void in_child(void) {
    forks++;
    ggml_critical_section_end();
}

void gp_fork_install(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] {
        pthread_atfork(ggml_critical_section_start, ggml_critical_section_end, in_child);
    });
}

#else
void gp_fork_install(void) {}
#endif

} // extern "C"

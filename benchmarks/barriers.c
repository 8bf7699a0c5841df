// Measures how long the thread that calls a compute works between ggml's barriers, and how long it waits in them.
// Preloaded by barriers.py into processes whose libggml-cpu calls ggml_barrier through its symbol table. At the end of
// the process the file $BARRIERS has the numbers, microseconds as f32: the work before each barrier, then the waits.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4 << 20 };

static float  work[MOST], waits[MOST];
static size_t n;
static double left; // when the last barrier was left

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double) t.tv_sec + 1e-3 * (double) t.tv_nsec;
}

static void * upstreams(void) {
    void * found = dlsym(RTLD_NEXT, "ggml_barrier");
    if (found == NULL) { // Python loads its libraries with local symbols
        void * library = dlopen("libggml-cpu.so.0", RTLD_NOW | RTLD_NOLOAD);
        found = library != NULL ? dlsym(library, "ggml_barrier") : NULL;
    }
    if (found == NULL) {
        fprintf(stderr, "barriers.c: no ggml_barrier in this process\n");
        abort();
    }
    return found;
}

void ggml_barrier(void * threadpool) {
    static void (*wait)(void *);
    static __thread int calls; // 1 on the main thread, which calls the computes; otherwise -1
    if (wait == NULL) {
        wait = (void (*)(void *)) upstreams();
    }
    if (calls == 0) {
        calls = syscall(SYS_gettid) == getpid() ? 1 : -1;
    }
    if (calls < 0 || n == MOST) {
        wait(threadpool);
        return;
    }
    const double came = now();
    wait(threadpool);
    work[n]    = (float) (came - left);
    left       = now();
    waits[n++] = (float) (left - came);
}

__attribute__((destructor)) static void save(void) {
    FILE * file = n > 0 ? fopen(getenv("BARRIERS"), "wb") : NULL;
    if (file != NULL) {
        fwrite(work, sizeof(float), n, file);
        fwrite(waits, sizeof(float), n, file);
        fclose(file);
    }
}

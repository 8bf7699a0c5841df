// Shared by the cffi modules of ggml (_ggml) and libllama: one record of errors, one count of guards, one place for
// exceptions that wait. `gp_shared` of _ggml gives the table, `gp_share` of the other module takes it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ggml_tensor;
struct gp_error;

struct gp_shared {
    // guard.h, without the GIL
    struct gp_error * (*last_error)(void);
    bool (*enter)(void);      // begins a guarded call
    void (*leave)(bool held); // ends it; `held` is what `enter` returned
    void (*caught)(const char * call);
    void (*fail)(int kind, const char * call, const char * message);
    void (*show_tensor)(const char * name, const struct ggml_tensor * tensor);
    void (*show_text)(const char * name, const char * text);
    void (*show_number)(const char * name, double value);
    void (*changed)(void);
    // module.h, with the GIL
    bool (*failed)(void); // whether the call that has just returned must raise
    void (*raise)(void);
    void (*raise_damage)(void);
    const uint32_t * damages; // counts mapped files that could not be read
};

// C functions for what is used of upstream's common library, which is C++.
#pragma once

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// common_fit_params: changes both parameters so that the model fits into the devices' free memory. `tensor_split` has
// llama_max_devices() elements, `overrides` llama_max_tensor_buft_overrides(), `margins` one number of bytes per
// device. Returns 0 if it fits now, 1 if it cannot, 2 after an error.
int gpl_fit(const char * path, struct llama_model_params * mparams, struct llama_context_params * cparams,
    float * tensor_split, struct llama_model_tensor_buft_override * overrides, size_t * margins, uint32_t n_ctx_min);

// What the command line of a program asks for. All pointers belong to the gpl_parsed.
struct gpl_command_line {
    struct llama_model_params   model;
    struct llama_context_params context; // as the program makes it
    const char *   path;         // "" without -m
    bool           fit;          // --fit
    const size_t * fit_target;   // llama_max_devices() numbers of bytes
    uint32_t       fit_ctx;
    const char *   left_out;     // options that ask for more than a model and its context, each with a newline
    const char *   given;        // options on the command line and in the environment, likewise, by their last name
};
struct gpl_parsed;
// common_params_parse for llama-`program` ("server"), which also reads the environment and llama.cpp's config.ini.
// Throws for what it refuses, and for options that print something and end the program.
struct gpl_parsed * gpl_parse(int argc, const char * const * argv, const char * program, struct gpl_command_line * line);
void gpl_parsed_free(struct gpl_parsed * parsed);

// The options of llama-`program`, a line each, with tabs between: names, names that say no, a hint of the value, and
// "sampling" or "speculative" for options of these groups. Copies at most `size` bytes to `out` and returns how many
// there are.
size_t gpl_options(const char * program, char * out, size_t size);

#ifdef __cplusplus
}
#endif

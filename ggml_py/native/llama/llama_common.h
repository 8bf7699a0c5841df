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

// The text that the chat template (jinja) makes of messages. `tmpl` in place of the model's own, unless it is NULL.
// Copies at most `size` bytes to `out` and returns how many there are.
size_t gpl_chat(const struct llama_model * model, const char * tmpl, const struct llama_chat_message * messages,
    size_t n_messages, bool add_generation_prompt, char * out, size_t size);

#ifdef __cplusplus
}
#endif

// Compiled into the cffi module of libllama, with upstream's common library.

#include "llama_common.h"

#include "chat.h"
#include "fit.h"
#include "log.h"

#include <algorithm>
#include <cstring>

int gpl_fit(const char * path, llama_model_params * mparams, llama_context_params * cparams, float * tensor_split,
    llama_model_tensor_buft_override * overrides, size_t * margins, uint32_t n_ctx_min) {
    common_log_set_verbosity_thold(LOG_LEVEL_ERROR); // the caller says what was changed
    return (int) common_fit_params(
        path, mparams, cparams, tensor_split, overrides, margins, n_ctx_min, nullptr, GGML_LOG_LEVEL_ERROR);
}

size_t gpl_chat(const llama_model * model, const char * tmpl, const llama_chat_message * messages, size_t n_messages,
    bool add_generation_prompt, char * out, size_t size) {
    const auto templates = common_chat_templates_init(model, tmpl == nullptr ? "" : tmpl);
    common_chat_templates_inputs inputs;
    for (size_t i = 0; i < n_messages; i++) {
        common_chat_msg message;
        message.role    = messages[i].role;
        message.content = messages[i].content;
        inputs.messages.push_back(std::move(message));
    }
    inputs.add_generation_prompt = add_generation_prompt;
    const std::string text = common_chat_templates_apply(templates.get(), inputs).prompt;
    std::memcpy(out, text.data(), std::min(size, text.size()));
    return text.size();
}

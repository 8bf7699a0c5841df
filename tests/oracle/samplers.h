// The samplers that llama.cpp's programs make of a command line: its parser, its order, its grammar.

#pragma once

#include "arg.h"
#include "common.h"
#include "sampling.h"
#include "session.h"

// `words` are llama.cpp's own options, like "--temp", "0.7".
inline common_sampler * make_samplers(const llama_model * model, std::vector<std::string> words) {
    words.insert(words.begin(), { "oracle", "-m", "none" });
    std::vector<char *> argv;
    for (std::string & word : words) {
        argv.push_back(word.data());
    }
    common_params params;
    if (!common_params_parse((int) argv.size(), argv.data(), params, LLAMA_EXAMPLE_COMPLETION)) {
        throw std::invalid_argument("llama.cpp does not take these options");
    }
    return common_sampler_init(model, params.sampling);
}

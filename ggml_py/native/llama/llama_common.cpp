// Compiled into the cffi module of libllama, with upstream's common library.

#include "llama_common.h"

#include "arg.h"
#include "common.h"
#include "fit.h"
#include "log.h"
#include "speculative.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

int gpl_fit(const char * path, llama_model_params * mparams, llama_context_params * cparams, float * tensor_split,
    llama_model_tensor_buft_override * overrides, size_t * margins, uint32_t n_ctx_min) {
    common_log_set_verbosity_thold(LOG_LEVEL_ERROR); // the caller says what was changed
    return (int) common_fit_params(
        path, mparams, cparams, tensor_split, overrides, margins, n_ctx_min, nullptr, GGML_LOG_LEVEL_ERROR);
}

struct gpl_parsed {
    common_params params;
    std::string   left_out;
    std::string   given;
};

// What a plan of the model alone does not show: adapters and samplers change its graph, the others have contexts of
// their own.
static std::string left_out(const common_params & params) {
    std::string found;
    found += params.lora_adapters.empty() ? "" : "--lora\n";
    found += params.control_vectors.empty() ? "" : "--control-vector\n";
    found += params.speculative.has_dft() ? "--model-draft\n" : "";
    for (const auto type : params.speculative.types) {
        found += type == COMMON_SPECULATIVE_TYPE_NONE ? "" : "--spec-type " + common_speculative_type_to_str(type) + "\n";
    }
    found += params.mmproj.path.empty() && params.mmproj.url.empty() ? "" : "--mmproj\n";
    found += params.sampling.backend_sampling ? "--backend-sampling\n" : "";
    return found;
}

// As tools/perplexity/perplexity.cpp before it makes a context.
static void as_perplexity(common_params & params) {
    const int32_t n_ctx = params.n_ctx;
    if (n_ctx <= 0) {
        throw std::invalid_argument("llama-perplexity needs a --ctx-size above 0");
    }
    if (params.hellaswag || params.winogrande || params.multiple_choice) {
        params.n_parallel = std::max(4, params.n_parallel);
        params.kv_unified = true;
    } else {
        params.n_parallel = std::max(1, params.n_batch / n_ctx);
    }
    params.n_ctx   = params.n_parallel * n_ctx;
    params.n_batch = std::min(params.n_batch, params.n_ctx);
    if (params.ppl_stride > 0) {
        params.n_ctx += params.ppl_stride / 2;
    }
}

// As tools/server/server.cpp and server-context.cpp before it makes a context. llama-cli is a server, too.
static void as_server(common_params & params) {
    if (params.embedding) {
        params.n_batch = std::min(params.n_batch, params.n_ubatch);
    }
    if (params.n_parallel < 0) {
        params.n_parallel = 4;
        params.kv_unified = true;
    }
    if (params.kv_unified_per_slot > 0 && params.n_ctx == 0 && (uint32_t) params.fit_params_min_ctx != UINT32_MAX) {
        params.n_ctx = params.n_parallel * params.kv_unified_per_slot;
    }
    const bool pools =
        params.pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED && params.pooling_type != LLAMA_POOLING_TYPE_NONE;
    common_speculative_output_limits limits = {params.n_batch, 1};
    if (!params.embedding && !pools) {
        limits = common_speculative_get_output_limits(
            params.n_batch, params.n_parallel, common_speculative_n_max(&params.speculative));
    }
    params.n_outputs_max         = std::max(1, limits.total);
    params.n_outputs_max_per_seq = std::max(1, limits.per_seq);
}

static llama_example example_of(const std::string & program) {
    static const std::map<std::string, llama_example> programs = {
        {"server", LLAMA_EXAMPLE_SERVER},
        {"cli", LLAMA_EXAMPLE_CLI},
        {"completion", LLAMA_EXAMPLE_COMPLETION},
        {"perplexity", LLAMA_EXAMPLE_PERPLEXITY},
        {"fit-params", LLAMA_EXAMPLE_FIT_PARAMS},
    };
    return programs.at(program);
}

size_t gpl_options(const char * program, char * out, size_t size) {
    const auto joined = [](const std::vector<const char *> & names) {
        std::string text;
        for (const char * name : names) {
            text += (text.empty() ? "" : " ") + std::string(name);
        }
        return text;
    };
    common_params params;
    std::string   text;
    for (const auto & option : common_params_parser_init(params, example_of(program)).options) {
        text += joined(option.args) + "\t" + joined(option.args_neg) + "\t" +
            (option.value_hint ? option.value_hint : "") + (option.value_hint_2 ? std::string(" ") + option.value_hint_2 : "") +
            "\t" + (option.is_sampling ? "sampling" : option.is_spec ? "speculative" : "") + "\n";
    }
    std::memcpy(out, text.data(), std::min(size, text.size()));
    return text.size();
}

// The options that are on the command line or in the environment. It has been parsed, so all are known.
static std::string given_options(const std::vector<std::string> & words, llama_example example) {
    common_params params;
    const auto    options = common_params_parser_init(params, example).options;
    std::string   found;
    for (const auto & option : options) {
        found += option.has_value_from_env() ? std::string(option.args.back()) + "\n" : "";
    }
    for (size_t i = 1; i < words.size(); i++) {
        std::string word = words[i];
        if (word.compare(0, 2, "--") == 0) {
            std::replace(word.begin(), word.end(), '_', '-');
        }
        for (const auto & option : options) {
            const auto has = [&word](const std::vector<const char *> & names) {
                return std::any_of(names.begin(), names.end(), [&word](const char * name) { return word == name; });
            };
            if (has(option.args) || has(option.args_neg)) {
                found += std::string(option.args.back()) + "\n";
                i += (option.value_hint != nullptr) + (option.value_hint_2 != nullptr);
                break;
            }
        }
    }
    return found;
}

gpl_parsed * gpl_parse(int argc, const char * const * argv, const char * program, gpl_command_line * line) {
    std::vector<std::string> words(argv, argv + argc);
    std::vector<char *> pointers;
    for (auto & word : words) {
        pointers.push_back(&word[0]);
    }
    pointers.push_back(nullptr);
    std::unique_ptr<gpl_parsed> parsed(new gpl_parsed);
    auto & params = parsed->params;
    if (std::string(program) == "perplexity") {
        params.n_ctx = 512; // as tools/perplexity/perplexity.cpp
    }
    if (!common_params_parse(argc, pointers.data(), params, example_of(program))) {
        throw std::invalid_argument("llama.cpp refuses it");
    }
    common_log_set_verbosity_thold(LOG_LEVEL_ERROR);
    const auto & wanted = params.model;
    if (!wanted.hf_repo.empty() || !wanted.url.empty() || !wanted.docker_repo.empty()) {
        throw std::invalid_argument("models are not downloaded here: give the file or its https address with -m");
    }
    if (std::string(program) == "perplexity") {
        as_perplexity(params);
    } else if (std::string(program) == "server" || std::string(program) == "cli") {
        as_server(params);
    }
    parsed->left_out = left_out(params);
    line->model      = common_model_params_to_llama(params);
    line->context    = common_context_params_to_llama(params);
    line->path       = params.model.path.c_str();
    line->fit        = params.fit_params;
    line->fit_target = params.fit_params_target.data();
    line->fit_ctx    = (uint32_t) params.fit_params_min_ctx;
    line->left_out   = parsed->left_out.c_str();
    parsed->given    = given_options({argv, argv + argc}, example_of(program));
    line->given      = parsed->given.c_str();
    return parsed.release();
}

void gpl_parsed_free(gpl_parsed * parsed) { delete parsed; }

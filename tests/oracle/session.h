// What our programs on libllama have in common: their arguments, lists in them, a model and a context of
// it, and an end that says what was wrong.
//
//   [--n-ctx N] [--n-batch N] [--n-ubatch N] [--n-seq-max N] [--n-outputs-max N] [--kv-unified] [--swa-full]
//   [--threads N] [--flash-attn on|off|auto] [--type-k TYPE] [--type-v TYPE] [--repack]
//   [--blas LIBGGML_BLAS] [--nodes FILE] [--log]
//
// Weights stay as they are in the file, unless --repack asks for libllama's default: layouts that suit
// the processor, whose kernels round differently. LIBGGML_BLAS is the shared library of a build of
// the same release; its backend is registered beside the CPU's, and libllama then uses it.
// FILE gets a line for each node, as the scheduler meets it: name, type, op, ne, names of the
// sources, with tabs between them. With --log, standard error gets all that ggml logs, not errors
// only.

#pragma once

#include "ggml-backend.h"
#include "llama.h"

#include <dlfcn.h>

#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct arguments {
    std::vector<std::string>           plain;
    std::map<std::string, std::string> options;
    std::vector<std::string>           after;  // the words after "--"

    // `flags` are the options without a value, beside those that all programs have.
    arguments(int argc, char ** argv, std::set<std::string> flags) {
        flags.insert({ "--repack", "--log", "--swa-full", "--kv-unified" });
        for (int i = 1; i < argc; i++) {
            const std::string arg = argv[i];
            if (arg == "--") {
                after.assign(argv + i + 1, argv + argc);
                break;
            }
            if (flags.count(arg)) {
                options[arg] = "";
            } else if (arg.rfind("--", 0) == 0) {
                if (++i == argc) {
                    throw std::invalid_argument(arg + " needs a value");
                }
                options[arg] = argv[i];
            } else {
                plain.push_back(arg);
            }
        }
    }

    bool flag(const std::string & name) const {
        return options.count(name) > 0;
    }

    std::string word(const std::string & name, const std::string & fallback) const {
        const auto it = options.find(name);
        return it == options.end() ? fallback : it->second;
    }

    uint32_t number(const std::string & name, uint32_t fallback) const {
        return flag(name) ? (uint32_t) std::stoi(word(name, "")) : fallback;
    }
};

inline std::vector<std::string> split(const std::string & text, char separator) {
    std::vector<std::string> parts;
    std::stringstream        stream(text);
    for (std::string part; std::getline(stream, part, separator);) {
        parts.push_back(part);
    }
    return parts;
}

// Of ids with commas between them.
inline std::vector<llama_token> tokens_of(const std::string & list) {
    std::vector<llama_token> tokens;
    for (const std::string & id : split(list, ',')) {
        tokens.push_back(std::stoi(id));
    }
    return tokens;
}

inline std::string json(const std::vector<llama_token> & tokens) {
    std::string text = "[";
    for (size_t i = 0; i < tokens.size(); i++) {
        text += (i ? ", " : "") + std::to_string(tokens[i]);
    }
    return text + "]";
}

inline ggml_type type_by_name(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * known = ggml_type_name((ggml_type) i);
        if (known && name == known) {
            return (ggml_type) i;
        }
    }
    throw std::invalid_argument("no type " + name);
}

inline llama_flash_attn_type flash_attn_by_name(const std::string & name) {
    if (name == "auto") { return LLAMA_FLASH_ATTN_TYPE_AUTO; }
    if (name == "on")   { return LLAMA_FLASH_ATTN_TYPE_ENABLED; }
    if (name == "off")  { return LLAMA_FLASH_ATTN_TYPE_DISABLED; }
    throw std::invalid_argument("--flash-attn " + name + ": expected on, off or auto");
}

inline void log_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

inline void log_all(ggml_log_level, const char * text, void *) {
    std::fputs(text, stderr);
}

inline bool on_node(ggml_tensor * node, bool ask, void * file) {
    if (ask && file) {
        std::fprintf((FILE *) file, "%s\t%s\t%s\t%lld,%lld,%lld,%lld\t", node->name,
            ggml_type_name(node->type), ggml_op_desc(node), (long long) node->ne[0],
            (long long) node->ne[1], (long long) node->ne[2], (long long) node->ne[3]);
        for (int i = 0; i < GGML_MAX_SRC && node->src[i]; i++) {
            std::fprintf((FILE *) file, i ? ",%s" : "%s", node->src[i]->name);
        }
        std::fputc('\n', (FILE *) file);
    }
    return false;
}

inline FILE * open_for_writing(const std::string & path) {
    FILE * file = std::fopen(path.c_str(), "wb");
    if (!file) {
        throw std::runtime_error("cannot write " + path);
    }
    return file;
}

inline void register_blas(const std::string & path) {
    void * library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    void * symbol  = library ? dlsym(library, "ggml_backend_blas_reg") : nullptr;
    if (!symbol) {
        throw std::runtime_error(dlerror());
    }
    ggml_backend_register(reinterpret_cast<ggml_backend_reg_t (*)()>(symbol)());
}

inline llama_model * load_vocab(const std::string & path) {
    llama_log_set(log_errors, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.vocab_only         = true;
    llama_model * model       = llama_model_load_from_file(path.c_str(), params);
    return model ? model : throw std::runtime_error("cannot load " + path);
}

// What a program changes of the parameters before they are used.
using model_edit   = std::function<void(llama_model_params &)>;
using context_edit = std::function<void(llama_context_params &)>;

struct session {
    llama_model   * model = nullptr;
    llama_context * ctx   = nullptr;
    FILE          * nodes = nullptr;
    int             n_vocab;

    session(const arguments & args, const std::string & path, const model_edit & edit_model = {},
            const context_edit & edit_context = {}) {
        llama_log_set(args.flag("--log") ? log_all : log_errors, nullptr);
        llama_backend_init();
        if (args.flag("--blas")) {
            register_blas(args.word("--blas", ""));
        }

        llama_model_params model_params = llama_model_default_params();
        model_params.n_gpu_layers    = 0;
        model_params.use_extra_bufts = args.flag("--repack");
        if (edit_model) {
            edit_model(model_params);
        }
        model = llama_model_load_from_file(path.c_str(), model_params);
        if (!model) {
            throw std::runtime_error("cannot load " + path);
        }
        n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

        llama_context_params params = llama_context_default_params();
        params.n_ctx           = args.number("--n-ctx", 512);
        params.n_batch         = args.number("--n-batch", params.n_ctx);
        params.n_ubatch        = args.number("--n-ubatch", 512);
        params.n_seq_max       = args.number("--n-seq-max", 1);
        params.n_outputs_max   = args.number("--n-outputs-max", 0);
        params.kv_unified      = args.flag("--kv-unified");
        params.swa_full        = args.flag("--swa-full");
        params.n_threads       = (int32_t) args.number("--threads", 1);
        params.n_threads_batch = params.n_threads;
        params.flash_attn_type = flash_attn_by_name(args.word("--flash-attn", "auto"));
        params.type_k          = type_by_name(args.word("--type-k", "f16"));
        params.type_v          = type_by_name(args.word("--type-v", "f16"));
        if (args.flag("--nodes")) {
            nodes                    = open_for_writing(args.word("--nodes", ""));
            params.cb_eval           = on_node;
            params.cb_eval_user_data = nodes;
        }
        if (edit_context) {
            edit_context(params);
        }
        ctx = llama_init_from_model(model, params);
        if (!ctx) {
            throw std::runtime_error("cannot make a context");
        }
    }

    ~session() {
        llama_free(ctx);
        llama_model_free(model);
        llama_backend_free();
        if (nodes) {
            std::fclose(nodes);
        }
    }

    session(const session &) = delete;
};

// Evaluates the tokens of a sequence from position `pos` on; asks for the logits of all, or of the last.
inline void evaluate(
        llama_context * ctx, const std::vector<llama_token> & tokens, int pos, int seq, bool all) {
    llama_batch batch = llama_batch_init((int32_t) tokens.size(), 0, 1);
    for (size_t i = 0; i < tokens.size(); i++) {
        batch.token[i]     = tokens[i];
        batch.pos[i]       = pos + (int) i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = seq;
        batch.logits[i]    = all || i + 1 == tokens.size();
    }
    batch.n_tokens   = (int32_t) tokens.size();
    const int status = llama_decode(ctx, batch);
    llama_batch_free(batch);
    if (status != 0) {
        throw std::runtime_error("llama_decode: " + std::to_string(status));
    }
}

// What `main` returns: 1, and what was wrong, where `run` throws.
inline int guarded(const char * program, const std::function<int()> & run) {
    try {
        return run();
    } catch (const std::exception & error) {
        std::fprintf(stderr, "%s: %s\n", program, error.what());
        return 1;
    }
}

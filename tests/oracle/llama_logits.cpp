// The logits that upstream's libllama computes: what ours are compared with.
//
//   llama_logits MODEL TOKENS N_PREDICT OUT [--n-ctx N] [--n-ubatch N] [--threads N]
//                [--flash-attn on|off|auto] [--type-k TYPE] [--type-v TYPE] [--last]
//                [--swa-full] [--repack] [--blas LIBGGML_BLAS] [--nodes FILE]
//                [--log]
//
// Weights stay as they are in the file, unless --repack asks for libllama's default: layouts that suit
// the processor, whose kernels round differently. LIBGGML_BLAS is the shared library of a build of
// the same release; its backend is registered beside the CPU's, and libllama then uses it.
// FILE gets a line for each node of the first graph, as the scheduler meets it: name, type, op, ne,
// names of the sources, with tabs between them. With --log, standard error gets all that ggml logs,
// not errors only.
//
// TOKENS are comma-separated ids. OUT becomes rows of n_vocab floats: one per token of the prompt
// (with --last only the last one's), then one after each greedily chosen token that was evaluated,
// N_PREDICT - 1 of them. Standard output is one line of JSON with the chosen ids.

#include "ggml-backend.h"
#include "llama.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using options = std::map<std::string, std::string>;

struct arguments {
    std::string              model;
    std::vector<llama_token> prompt;
    int                      n_predict;
    std::string              out;
    options                  opts;

    int number(const std::string & name, int fallback) const {
        const auto it = opts.find(name);
        return it == opts.end() ? fallback : std::stoi(it->second);
    }

    bool flag(const std::string & name) const {
        return opts.count(name) > 0;
    }

    std::string word(const std::string & name, const std::string & fallback) const {
        const auto it = opts.find(name);
        return it == opts.end() ? fallback : it->second;
    }
};

std::vector<llama_token> parse_tokens(const std::string & list) {
    std::vector<llama_token> tokens;
    for (size_t at = 0; at < list.size();) {
        const size_t comma = std::min(list.find(',', at), list.size());
        tokens.push_back(std::stoi(list.substr(at, comma - at)));
        at = comma + 1;
    }
    return tokens;
}

arguments parse(int argc, char ** argv) {
    std::vector<std::string> plain;
    arguments args;
    for (int i = 1; i < argc; i++) {
        const std::string arg = argv[i];
        if (arg == "--last" || arg == "--repack" || arg == "--log" || arg == "--swa-full") {
            args.opts[arg] = "";
        } else if (arg.rfind("--", 0) == 0) {
            if (++i == argc) {
                throw std::invalid_argument(arg + " needs a value");
            }
            args.opts[arg] = argv[i];
        } else {
            plain.push_back(arg);
        }
    }
    if (plain.size() != 4) {
        throw std::invalid_argument("expected MODEL TOKENS N_PREDICT OUT");
    }
    args.model     = plain[0];
    args.prompt    = parse_tokens(plain[1]);
    args.n_predict = std::stoi(plain[2]);
    args.out       = plain[3];
    return args;
}

ggml_type type_by_name(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * known = ggml_type_name((ggml_type) i);
        if (known && name == known) {
            return (ggml_type) i;
        }
    }
    throw std::invalid_argument("no type " + name);
}

llama_flash_attn_type flash_attn_by_name(const std::string & name) {
    if (name == "auto") { return LLAMA_FLASH_ATTN_TYPE_AUTO; }
    if (name == "on")   { return LLAMA_FLASH_ATTN_TYPE_ENABLED; }
    if (name == "off")  { return LLAMA_FLASH_ATTN_TYPE_DISABLED; }
    throw std::invalid_argument("--flash-attn " + name + ": expected on, off or auto");
}

void log_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

void log_all(ggml_log_level, const char * text, void *) {
    std::fputs(text, stderr);
}

// Evaluates `tokens` from position `pos` on, asking for the logits of all or of the last.
void decode(llama_context * ctx, const std::vector<llama_token> & tokens, int pos, bool all) {
    llama_batch batch = llama_batch_init((int32_t) tokens.size(), 0, 1);
    for (size_t i = 0; i < tokens.size(); i++) {
        batch.token[i]     = tokens[i];
        batch.pos[i]       = pos + (int) i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = all || i + 1 == tokens.size();
    }
    batch.n_tokens = (int32_t) tokens.size();
    const int status = llama_decode(ctx, batch);
    llama_batch_free(batch);
    if (status != 0) {
        throw std::runtime_error("llama_decode: " + std::to_string(status));
    }
}

bool on_node(ggml_tensor * node, bool ask, void * file) {
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

FILE * open_for_writing(const std::string & path) {
    FILE * file = std::fopen(path.c_str(), "wb");
    if (!file) {
        throw std::runtime_error("cannot write " + path);
    }
    return file;
}

void register_blas(const std::string & path) {
    void * library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    void * symbol  = library ? dlsym(library, "ggml_backend_blas_reg") : nullptr;
    if (!symbol) {
        throw std::runtime_error(dlerror());
    }
    ggml_backend_register(reinterpret_cast<ggml_backend_reg_t (*)()>(symbol)());
}

int run(const arguments & args) {
    llama_log_set(args.flag("--log") ? log_all : log_errors, nullptr);
    llama_backend_init();
    if (args.flag("--blas")) {
        register_blas(args.word("--blas", ""));
    }

    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers    = 0;
    model_params.use_extra_bufts = args.flag("--repack");
    llama_model * model = llama_model_load_from_file(args.model.c_str(), model_params);
    if (!model) {
        throw std::runtime_error("cannot load " + args.model);
    }

    llama_context_params params = llama_context_default_params();
    params.n_ctx           = (uint32_t) args.number("--n-ctx", 512);
    params.n_batch         = params.n_ctx;
    params.n_ubatch        = (uint32_t) args.number("--n-ubatch", 512);
    params.n_threads       = args.number("--threads", 1);
    params.n_threads_batch = params.n_threads;
    params.flash_attn_type = flash_attn_by_name(args.word("--flash-attn", "auto"));
    params.type_k          = type_by_name(args.word("--type-k", "f16"));
    params.type_v          = type_by_name(args.word("--type-v", "f16"));
    params.swa_full        = args.flag("--swa-full");
    FILE * nodes = args.flag("--nodes") ? open_for_writing(args.word("--nodes", "")) : nullptr;
    if (nodes) {
        params.cb_eval           = on_node;
        params.cb_eval_user_data = nodes;
    }
    llama_context * ctx = llama_init_from_model(model, params);
    if (!ctx) {
        throw std::runtime_error("cannot make a context");
    }

    FILE * out = open_for_writing(args.out);
    const int  n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const bool all     = !args.flag("--last");

    const float * last = nullptr;
    const auto write_row = [&](int index) {
        last = llama_get_logits_ith(ctx, index);
        std::fwrite(last, sizeof(float), (size_t) n_vocab, out);
    };

    decode(ctx, args.prompt, 0, all);
    for (size_t i = 0; i < args.prompt.size(); i++) {
        if (all || i + 1 == args.prompt.size()) {
            write_row((int) i);
        }
    }
    std::vector<llama_token> chosen;
    int pos = (int) args.prompt.size();
    while ((int) chosen.size() < args.n_predict) {
        chosen.push_back((llama_token) (std::max_element(last, last + n_vocab) - last));
        if ((int) chosen.size() < args.n_predict) {
            decode(ctx, { chosen.back() }, pos++, true);
            write_row(0);
        }
    }
    std::fclose(out);
    if (nodes) {
        std::fclose(nodes);
    }

    std::printf("{\"n_vocab\": %d, \"tokens\": [", n_vocab);
    for (size_t i = 0; i < chosen.size(); i++) {
        std::printf(i ? ", %d" : "%d", chosen[i]);
    }
    std::printf("]}\n");

    llama_free(ctx);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    try {
        return run(parse(argc, argv));
    } catch (const std::exception & error) {
        std::fprintf(stderr, "llama_logits: %s\n", error.what());
        return 1;
    }
}

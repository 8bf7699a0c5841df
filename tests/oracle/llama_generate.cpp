// What upstream's libllama generates, samples, saves and restores: what ours is compared with.
//
//   llama_generate MODEL TOKENS N [--n-ctx N] [--n-seq-max N] [--flash-attn on|off]
//                  [--type-k TYPE] [--type-v TYPE] [--seed S] [--keep N] [--seq S]
//                  [--load FILE] [--save FILE] [--data FILE]
//   llama_generate MODEL eog
//
// TOKENS, comma-separated ids or "-" for none, are evaluated in sequence S (0) and continued by N
// tokens, the likeliest ones, or with --seed by the samplers of llama.cpp's command line. With
// --keep a full context is shifted as llama-completion does it. --load restores the sequence before
// that, --save saves it after TOKENS with them, --data writes its state without the tokens.
// Standard output is one line of JSON: the tokens, and the number that came from the file. With
// "eog" it is the ids that end a generation.

#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct arguments {
    std::vector<std::string>           plain;
    std::map<std::string, std::string> opts;

    bool given(const std::string & name) const { return opts.count(name) > 0; }

    int number(const std::string & name, int fallback) const {
        return given(name) ? std::stoi(opts.at(name)) : fallback;
    }

    std::string word(const std::string & name, const std::string & fallback) const {
        return given(name) ? opts.at(name) : fallback;
    }
};

arguments parse(int argc, char ** argv) {
    arguments args;
    for (int i = 1; i < argc; i++) {
        const std::string arg = argv[i];
        if (arg.rfind("--", 0) != 0) {
            args.plain.push_back(arg);
        } else if (++i < argc) {
            args.opts[arg] = argv[i];
        } else {
            throw std::invalid_argument(arg + " needs a value");
        }
    }
    if (args.plain.size() < 2) {
        throw std::invalid_argument("expected MODEL TOKENS N");
    }
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

void print_list(const std::vector<llama_token> & tokens) {
    std::printf("[");
    for (size_t i = 0; i < tokens.size(); i++) {
        std::printf(i ? ", %d" : "%d", tokens[i]);
    }
    std::printf("]");
}

void log_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

// Evaluates tokens after those that the sequence has; the logits of the last.
const float * decode(llama_context * ctx, const std::vector<llama_token> & tokens, int seq) {
    const int   n_past = llama_memory_seq_pos_max(llama_get_memory(ctx), seq) + 1;
    llama_batch batch  = llama_batch_init((int32_t) tokens.size(), 0, 1);
    for (size_t i = 0; i < tokens.size(); i++) {
        batch.token[i]     = tokens[i];
        batch.pos[i]       = n_past + (int) i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = seq;
        batch.logits[i]    = i + 1 == tokens.size();
    }
    batch.n_tokens   = (int32_t) tokens.size();
    const int status = llama_decode(ctx, batch);
    llama_batch_free(batch);
    if (status != 0) {
        throw std::runtime_error("llama_decode: " + std::to_string(status));
    }
    return llama_get_logits_ith(ctx, -1);
}

void shift(llama_context * ctx, int seq, int n_keep) {
    llama_memory_t memory = llama_get_memory(ctx);
    const int      n_past = llama_memory_seq_pos_max(memory, seq) + 1;
    if (n_past + 1 >= (int) llama_n_ctx_seq(ctx)) {
        const int n_discard = (n_past - n_keep) / 2;
        llama_memory_seq_rm(memory, seq, n_keep, n_keep + n_discard);
        llama_memory_seq_add(memory, seq, n_keep + n_discard, n_past, -n_discard);
    }
}

llama_sampler * make_sampler(const arguments & args, const std::vector<llama_token> & prompt) {
    llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (!args.given("--seed")) {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        return chain;
    }
    llama_sampler_chain_add(chain, llama_sampler_init_top_k(40));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(0.95f, 0));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(0.05f, 0));
    llama_sampler_chain_add(chain, llama_sampler_init_temp_ext(0.8f, 0.0f, 1.0f));
    llama_sampler_chain_add(chain, llama_sampler_init_dist((uint32_t) args.number("--seed", 0)));
    for (const llama_token token : prompt) {
        llama_sampler_accept(chain, token);
    }
    return chain;
}

int print_eog(const arguments & args) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only         = true;
    llama_model * model       = llama_model_load_from_file(args.plain[0].c_str(), params);
    if (!model) {
        throw std::runtime_error("cannot load " + args.plain[0]);
    }
    const llama_vocab *      vocab = llama_model_get_vocab(model);
    std::vector<llama_token> found;
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); token++) {
        if (llama_vocab_is_eog(vocab, token)) {
            found.push_back(token);
        }
    }
    print_list(found);
    std::printf("\n");
    llama_model_free(model);
    return 0;
}

int run(const arguments & args) {
    llama_log_set(log_errors, nullptr);
    llama_backend_init();
    if (args.plain[1] == "eog") {
        return print_eog(args);
    }
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers       = 0;
    model_params.use_extra_bufts    = false;
    llama_model * model = llama_model_load_from_file(args.plain[0].c_str(), model_params);

    llama_context_params params = llama_context_default_params();
    params.n_ctx           = (uint32_t) args.number("--n-ctx", 512);
    params.n_batch         = params.n_ctx;
    params.n_ubatch        = 512;
    params.n_seq_max       = (uint32_t) args.number("--n-seq-max", 1);
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    params.type_k          = type_by_name(args.word("--type-k", "f16"));
    params.type_v          = type_by_name(args.word("--type-v", "f16"));
    params.flash_attn_type = args.word("--flash-attn", "on") == "on"
        ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full        = false;
    llama_context * ctx = model ? llama_init_from_model(model, params) : nullptr;
    if (!ctx) {
        throw std::runtime_error("cannot make a context of " + args.plain[0]);
    }

    const int seq = args.number("--seq", 0);
    std::vector<llama_token> known(params.n_ctx);
    size_t n_known = 0;
    if (args.given("--load") && !llama_state_seq_load_file(
            ctx, args.word("--load", "").c_str(), seq, known.data(), known.size(), &n_known)) {
        throw std::runtime_error("cannot load the sequence");
    }
    known.resize(n_known);

    std::vector<llama_token> prompt;
    std::stringstream        stream(args.plain[1] == "-" ? "" : args.plain[1]);
    for (std::string item; std::getline(stream, item, ',');) {
        prompt.push_back(std::stoi(item));
    }
    const float * logits = prompt.empty() ? nullptr : decode(ctx, prompt, seq);
    known.insert(known.end(), prompt.begin(), prompt.end());
    if (args.given("--save") && !llama_state_seq_save_file(
            ctx, args.word("--save", "").c_str(), seq, known.data(), known.size())) {
        throw std::runtime_error("cannot save the sequence");
    }
    if (args.given("--data")) {
        std::vector<uint8_t> data(llama_state_seq_get_size(ctx, seq));
        llama_state_seq_get_data(ctx, data.data(), data.size(), seq);
        std::ofstream(args.word("--data", ""), std::ios::binary)
            .write((const char *) data.data(), (std::streamsize) data.size());
    }

    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const int n       = std::stoi(args.plain.at(2));
    llama_sampler *          sampler = make_sampler(args, prompt);
    std::vector<llama_token_data> cur((size_t) n_vocab);
    std::vector<llama_token> chosen;
    while ((int) chosen.size() < n) {
        for (int i = 0; i < n_vocab; i++) { cur[(size_t) i] = { i, logits[i], 0.0f }; }
        llama_token_data_array left = { cur.data(), cur.size(), -1, false };
        llama_sampler_apply(sampler, &left);
        chosen.push_back(left.data[left.selected].id);
        llama_sampler_accept(sampler, chosen.back());
        if ((int) chosen.size() < n) {
            if (args.given("--keep")) {
                shift(ctx, seq, args.number("--keep", 0));
            }
            logits = decode(ctx, { chosen.back() }, seq);
        }
    }

    std::printf("{\"tokens\": ");
    print_list(chosen);
    std::printf(", \"n_known\": %zu}\n", n_known);
    llama_sampler_free(sampler);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    try {
        return run(parse(argc, argv));
    } catch (const std::exception & error) {
        std::fprintf(stderr, "llama_generate: %s\n", error.what());
        return 1;
    }
}

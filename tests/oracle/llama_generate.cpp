// What upstream's libllama generates, saves and restores: what ours is compared with.
//
//   llama_generate MODEL TOKENS N [--keep N] [--seq S] [--load FILE] [--save FILE] [--data FILE]
//                  [options of session.h] [-- llama.cpp's sampling options]
//   llama_generate MODEL eog
//
// TOKENS, comma-separated ids or "-" for none, are evaluated in sequence S (0) and continued by N
// tokens. With --keep a full context is shifted as llama-completion does it. --load restores the
// sequence before that; after TOKENS --save saves it with all its tokens, --data its state without.
// Without sampling options the likeliest token is taken.
// Standard output is one line of JSON: the tokens, and those that came from the file. With "eog" it
// is the ids that end a generation.

#include "samplers.h"

#include <algorithm>
#include <fstream>

namespace {

// Appends tokens to a sequence.
void decode(llama_context * ctx, const std::vector<llama_token> & tokens, int seq) {
    const int n_past = llama_memory_seq_pos_max(llama_get_memory(ctx), seq) + 1;
    evaluate(ctx, tokens, n_past, seq, false);
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

int print_eog(const std::string & path) {
    llama_model * model = load_vocab(path);
    const llama_vocab *      vocab = llama_model_get_vocab(model);
    std::vector<llama_token> found;
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); token++) {
        if (llama_vocab_is_eog(vocab, token)) {
            found.push_back(token);
        }
    }
    std::printf("%s\n", json(found).c_str());
    llama_model_free(model);
    return 0;
}

std::vector<llama_token> load(llama_context * ctx, const std::string & path, int seq) {
    std::vector<llama_token> tokens(llama_n_ctx(ctx));
    size_t                   n = 0;
    if (!llama_state_seq_load_file(ctx, path.c_str(), seq, tokens.data(), tokens.size(), &n)) {
        throw std::runtime_error("cannot load the sequence of " + path);
    }
    tokens.resize(n);
    return tokens;
}

void save_data(llama_context * ctx, const std::string & path, int seq) {
    std::vector<uint8_t> data(llama_state_seq_get_size(ctx, seq));
    llama_state_seq_get_data(ctx, data.data(), data.size(), seq);
    std::ofstream(path, std::ios::binary)
        .write((const char *) data.data(), (std::streamsize) data.size());
}

int run(const arguments & args) {
    if (args.plain.size() == 2 && args.plain[1] == "eog") {
        return print_eog(args.plain[0]);
    }
    if (args.plain.size() != 3) {
        throw std::invalid_argument("expected MODEL TOKENS N");
    }
    session   s(args, args.plain[0]);
    const int seq = (int) args.number("--seq", 0);
    std::vector<llama_token> known;
    if (args.flag("--load")) {
        known = load(s.ctx, args.word("--load", ""), seq);
    }

    const std::vector<llama_token> prompt = tokens_of(args.plain[1] == "-" ? "" : args.plain[1]);
    if (!prompt.empty()) {
        decode(s.ctx, prompt, seq);
    }
    std::vector<llama_token> all = known;
    all.insert(all.end(), prompt.begin(), prompt.end());
    if (args.flag("--save") && !llama_state_seq_save_file(
            s.ctx, args.word("--save", "").c_str(), seq, all.data(), all.size())) {
        throw std::runtime_error("cannot save the sequence");
    }
    if (args.flag("--data")) {
        save_data(s.ctx, args.word("--data", ""), seq);
    }

    common_sampler * sampler = args.after.empty() ? nullptr : make_samplers(s.model, args.after);
    for (const llama_token token : prompt) {
        common_sampler_accept(sampler, token, false);
    }
    std::vector<llama_token> chosen;
    for (int left = std::stoi(args.plain[2]); left > 0; left--) {
        if (sampler) {
            chosen.push_back(common_sampler_sample(sampler, s.ctx, -1));
            common_sampler_accept(sampler, chosen.back(), true);
        } else {
            const float * logits = llama_get_logits_ith(s.ctx, -1);
            chosen.push_back((llama_token) (std::max_element(logits, logits + s.n_vocab) - logits));
        }
        if (left > 1) {
            if (args.flag("--keep")) {
                shift(s.ctx, seq, (int) args.number("--keep", 0));
            }
            decode(s.ctx, { chosen.back() }, seq);
        }
    }
    common_sampler_free(sampler);
    std::printf(
        "{\"tokens\": %s, \"known\": %s}\n", json(chosen).c_str(), json(known).c_str());
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    return guarded("llama_generate", [&] { return run(arguments(argc, argv, {})); });
}

// The logits that upstream's libllama computes: what ours are compared with.
//
//   llama_logits MODEL TOKENS N_PREDICT OUT [--last] [options of session.h]
//
// TOKENS are comma-separated ids. OUT becomes rows of n_vocab floats: one per token of the prompt
// (with --last only the last one's), then one after each greedily chosen token that was evaluated,
// N_PREDICT - 1 of them. Standard output is one line of JSON with the chosen ids.

#include "session.h"

#include <algorithm>

namespace {

std::vector<llama_token> parse_tokens(const std::string & list) {
    std::vector<llama_token> tokens;
    for (size_t at = 0; at < list.size();) {
        const size_t comma = std::min(list.find(',', at), list.size());
        tokens.push_back(std::stoi(list.substr(at, comma - at)));
        at = comma + 1;
    }
    return tokens;
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

int run(const arguments & args) {
    if (args.plain.size() != 4) {
        throw std::invalid_argument("expected MODEL TOKENS N_PREDICT OUT");
    }
    const std::vector<llama_token> prompt    = parse_tokens(args.plain[1]);
    const int                      n_predict = std::stoi(args.plain[2]);
    const bool                     all       = !args.flag("--last");

    session s(args, args.plain[0]);
    FILE *  out = open_for_writing(args.plain[3]);

    const float * last = nullptr;
    const auto write_row = [&](int index) {
        last = llama_get_logits_ith(s.ctx, index);
        std::fwrite(last, sizeof(float), (size_t) s.n_vocab, out);
    };

    decode(s.ctx, prompt, 0, all);
    for (size_t i = 0; i < prompt.size(); i++) {
        if (all || i + 1 == prompt.size()) {
            write_row((int) i);
        }
    }
    std::vector<llama_token> chosen;
    int pos = (int) prompt.size();
    while ((int) chosen.size() < n_predict) {
        chosen.push_back((llama_token) (std::max_element(last, last + s.n_vocab) - last));
        if ((int) chosen.size() < n_predict) {
            decode(s.ctx, { chosen.back() }, pos++, true);
            write_row(0);
        }
    }
    std::fclose(out);

    std::printf("{\"n_vocab\": %d, \"tokens\": [", s.n_vocab);
    for (size_t i = 0; i < chosen.size(); i++) {
        std::printf(i ? ", %d" : "%d", chosen[i]);
    }
    std::printf("]}\n");
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    try {
        return run(arguments(argc, argv, { "--last" }));
    } catch (const std::exception & error) {
        std::fprintf(stderr, "llama_logits: %s\n", error.what());
        return 1;
    }
}

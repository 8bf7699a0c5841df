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

int run(const arguments & args) {
    if (args.plain.size() != 4) {
        throw std::invalid_argument("expected MODEL TOKENS N_PREDICT OUT");
    }
    const std::vector<llama_token> prompt    = tokens_of(args.plain[1]);
    const int                      n_predict = std::stoi(args.plain[2]);
    const bool                     all       = !args.flag("--last");

    session s(args, args.plain[0]);
    FILE *  out = open_for_writing(args.plain[3]);

    const float * last = nullptr;
    const auto write_row = [&](int index) {
        last = llama_get_logits_ith(s.ctx, index);
        std::fwrite(last, sizeof(float), (size_t) s.n_vocab, out);
    };

    evaluate(s.ctx, prompt, 0, 0, all);
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
            evaluate(s.ctx, { chosen.back() }, pos++, 0, true);
            write_row(0);
        }
    }
    std::fclose(out);

    std::printf("{\"n_vocab\": %d, \"tokens\": %s}\n", s.n_vocab, json(chosen).c_str());
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    return guarded("llama_logits", [&] { return run(arguments(argc, argv, { "--last" })); });
}

// What upstream's own samplers make of logits: what our sampling is compared with.
//
//   llama_sampler MODEL LOGITS OUT [--accept TOKENS] [--time N] -- [llama.cpp's sampling options]
//
// LOGITS are rows of floats, one for each token of the model. Each row is sampled once; its token is a past one for the next.
// TOKENS, comma-separated ids, are past ones from the start. OUT gets for each row: the token, the
// number of candidates left (int32 both), their ids (int32), their probabilities (float). A grammar is
// left out: llama_generate has it.
// With --time, standard output is how many microseconds each of N passes over all rows took per row.

#include "samplers.h"

#include <chrono>
#include <fstream>
#include <iostream>

namespace {

std::vector<float> read_logits(const std::string & path, size_t n_vocab) {
    std::ifstream      file(path, std::ios::binary | std::ios::ate);
    std::vector<float> logits((size_t) file.tellg() / sizeof(float));
    file.seekg(0);
    file.read((char *) logits.data(), (std::streamsize) (logits.size() * sizeof(float)));
    if (!file || logits.empty() || logits.size() % n_vocab != 0) {
        throw std::runtime_error(path + ": expected rows of floats");
    }
    return logits;
}

// Samples and accepts a token. Returns the candidates that were left, in the memory of `cur`.
llama_token_data_array sample(
        llama_sampler * chain, const float * row, std::vector<llama_token_data> & cur) {
    for (size_t i = 0; i < cur.size(); i++) {
        cur[i] = { (llama_token) i, row[i], 0.0f };
    }
    llama_token_data_array left = { cur.data(), cur.size(), -1, false };
    llama_sampler_apply(chain, &left);
    llama_sampler_accept(chain, left.data[left.selected].id);
    return left;
}

int run(const arguments & args) {
    if (args.plain.size() != 3) {
        throw std::invalid_argument("expected MODEL LOGITS OUT");
    }
    llama_model *            model   = load_vocab(args.plain[0]);
    const auto               n_vocab = (size_t) llama_vocab_n_tokens(llama_model_get_vocab(model));
    const std::vector<float> logits  = read_logits(args.plain[1], n_vocab);
    std::ofstream            out(args.plain[2], std::ios::binary);
    const auto write = [&](const auto & value) { out.write((const char *) &value, sizeof(value)); };

    std::vector<llama_token_data> cur(n_vocab);
    common_sampler *              all   = make_samplers(model, args.after);
    llama_sampler *               chain = common_sampler_get(all);
    for (const llama_token token : tokens_of(args.word("--accept", ""))) {
        llama_sampler_accept(chain, token);
    }
    for (size_t row = 0; row < logits.size(); row += n_vocab) {
        const llama_token_data_array left = sample(chain, logits.data() + row, cur);
        write((int32_t) left.data[left.selected].id);
        write((int32_t) left.size);
        for (size_t i = 0; i < left.size; i++) { write((int32_t) left.data[i].id); }
        for (size_t i = 0; i < left.size; i++) { write(left.data[i].p); }
    }
    common_sampler_free(all);

    for (uint32_t n = args.number("--time", 0); n > 0; n--) {
        common_sampler * timed = make_samplers(model, args.after);
        const auto       start = std::chrono::steady_clock::now();
        for (size_t row = 0; row < logits.size(); row += n_vocab) {
            sample(common_sampler_get(timed), logits.data() + row, cur);
        }
        const std::chrono::duration<double, std::micro> taken =
            std::chrono::steady_clock::now() - start;
        std::cout << taken.count() / (double) (logits.size() / n_vocab) << "\n";
        common_sampler_free(timed);
    }
    llama_model_free(model);
    return out.flush() ? 0 : throw std::runtime_error("cannot write " + args.plain[2]);
}

}  // namespace

int main(int argc, char ** argv) {
    return guarded("llama_sampler", [&] { return run(arguments(argc, argv, {})); });
}

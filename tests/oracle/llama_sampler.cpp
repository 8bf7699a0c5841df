// What upstream's own samplers make of logits: what our sampling is compared with.
//
//   llama_sampler N_VOCAB LOGITS OUT [--accept TOKENS] [--time N] [options of samplers.h]
//
// LOGITS are rows of N_VOCAB floats. Each row is sampled once; its token is a past one for the next.
// TOKENS, comma-separated ids, are past ones from the start. OUT gets for each row: the token, the
// number of candidates left (int32 both), their ids (int32), their probabilities (float).
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

int run(const arguments & args) {
    if (args.plain.size() != 3) {
        throw std::invalid_argument("expected N_VOCAB LOGITS OUT");
    }
    const auto               n_vocab = (size_t) std::stoi(args.plain[0]);
    const std::vector<float> logits  = read_logits(args.plain[1], n_vocab);
    std::ofstream            out(args.plain[2], std::ios::binary);
    const auto write = [&](const auto & value) { out.write((const char *) &value, sizeof(value)); };

    std::vector<llama_token_data> cur(n_vocab);
    llama_sampler * chain = make_samplers(args, (int) n_vocab);
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
    llama_sampler_free(chain);

    for (uint32_t n = args.number("--time", 0); n > 0; n--) {
        llama_sampler * timed = make_samplers(args, (int) n_vocab);
        const auto      start = std::chrono::steady_clock::now();
        for (size_t row = 0; row < logits.size(); row += n_vocab) {
            sample(timed, logits.data() + row, cur);
        }
        const std::chrono::duration<double, std::micro> taken =
            std::chrono::steady_clock::now() - start;
        std::cout << taken.count() / (double) (logits.size() / n_vocab) << "\n";
        llama_sampler_free(timed);
    }
    return out.flush() ? 0 : throw std::runtime_error("cannot write " + args.plain[2]);
}

}  // namespace

int main(int argc, char ** argv) {
    return guarded("llama_sampler", [&] { return run(arguments(argc, argv, {})); });
}

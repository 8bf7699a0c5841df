// What upstream's own samplers make of logits: what our sampling is compared with.
//
//   llama_sampler N_VOCAB LOGITS OUT [--temp T] [--top-k K] [--top-p P] [--min-p P]
//                 [--repeat-penalty R] [--repeat-last-n N] [--frequency-penalty F]
//                 [--presence-penalty F] [--seed S] [--accept TOKENS] [--logit-bias ID=BIAS,...]
//                 [--time N]
//
// The samplers that are named, in the order of llama.cpp's command line, then the one that draws.
// LOGITS are rows of N_VOCAB floats. Each row is sampled once; its token is a past one for the next.
// TOKENS, comma-separated ids, are past ones from the start. OUT gets for each row: the token, the
// number of candidates left (int32 both), their ids (int32), their probabilities (float).
// With --time, standard output is how many microseconds each of N passes over all rows took per row.

#include "llama.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
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

    double number(const std::string & name, double fallback) const {
        return given(name) ? std::stod(opts.at(name)) : fallback;
    }

    std::vector<std::string> list(const std::string & name) const {
        std::vector<std::string> items;
        std::stringstream        stream(given(name) ? opts.at(name) : "");
        for (std::string item; std::getline(stream, item, ',');) {
            items.push_back(item);
        }
        return items;
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
    if (args.plain.size() != 3) {
        throw std::invalid_argument("expected N_VOCAB LOGITS OUT");
    }
    return args;
}

llama_sampler * make_chain(const arguments & args, int n_vocab) {
    llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    std::vector<llama_logit_bias> biases;
    for (const std::string & item : args.list("--logit-bias")) {
        const size_t at = item.find('=');
        biases.push_back({ std::stoi(item.substr(0, at)), std::stof(item.substr(at + 1)) });
    }
    if (!biases.empty()) {
        llama_sampler_chain_add(
            chain, llama_sampler_init_logit_bias(n_vocab, (int) biases.size(), biases.data()));
    }
    if (args.given("--repeat-penalty") || args.given("--frequency-penalty") ||
        args.given("--presence-penalty")) {
        llama_sampler_chain_add(chain, llama_sampler_init_penalties(
            n_vocab, (int) args.number("--repeat-last-n", 64),
            (float) args.number("--repeat-penalty", 1.0),
            (float) args.number("--frequency-penalty", 0.0),
            (float) args.number("--presence-penalty", 0.0)));
    }
    if (args.given("--top-k")) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_k((int) args.number("--top-k", 0)));
    }
    if (args.given("--top-p")) {
        llama_sampler_chain_add(
            chain, llama_sampler_init_top_p((float) args.number("--top-p", 1), 0));
    }
    if (args.given("--min-p")) {
        llama_sampler_chain_add(
            chain, llama_sampler_init_min_p((float) args.number("--min-p", 0), 0));
    }
    if (args.given("--temp")) {
        llama_sampler_chain_add(
            chain, llama_sampler_init_temp_ext((float) args.number("--temp", 1), 0.0f, 1.0f));
    }
    const auto seed = (uint32_t) args.number("--seed", 0);
    llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
    for (const std::string & token : args.list("--accept")) {
        llama_sampler_accept(chain, std::stoi(token));
    }
    return chain;
}

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
    const auto               n_vocab = (size_t) std::stoi(args.plain[0]);
    const std::vector<float> logits  = read_logits(args.plain[1], n_vocab);
    std::ofstream            out(args.plain[2], std::ios::binary);
    const auto write = [&](const auto & value) { out.write((const char *) &value, sizeof(value)); };

    std::vector<llama_token_data> cur(n_vocab);
    const auto sample = [&](llama_sampler * chain, const float * row) {
        for (size_t i = 0; i < n_vocab; i++) {
            cur[i] = { (llama_token) i, row[i], 0.0f };
        }
        llama_token_data_array candidates = { cur.data(), n_vocab, -1, false };
        llama_sampler_apply(chain, &candidates);
        llama_sampler_accept(chain, cur[(size_t) candidates.selected].id);
        return candidates;
    };

    llama_sampler * chain = make_chain(args, (int) n_vocab);
    for (size_t row = 0; row < logits.size(); row += n_vocab) {
        const llama_token_data_array left = sample(chain, logits.data() + row);
        write((int32_t) left.data[left.selected].id);
        write((int32_t) left.size);
        for (size_t i = 0; i < left.size; i++) { write((int32_t) left.data[i].id); }
        for (size_t i = 0; i < left.size; i++) { write(left.data[i].p); }
    }
    llama_sampler_free(chain);

    for (int n = (int) args.number("--time", 0); n > 0; n--) {
        llama_sampler * timed = make_chain(args, (int) n_vocab);
        const auto      start = std::chrono::steady_clock::now();
        for (size_t row = 0; row < logits.size(); row += n_vocab) {
            sample(timed, logits.data() + row);
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
    try {
        return run(parse(argc, argv));
    } catch (const std::exception & error) {
        std::fprintf(stderr, "llama_sampler: %s\n", error.what());
        return 1;
    }
}

// The samplers of a command line, in llama.cpp's order (common_sampler_init), then one that draws.
//
//   [--temp T] [--top-k K] [--top-p P] [--min-p P] [--repeat-penalty R] [--repeat-last-n N]
//   [--frequency-penalty F] [--presence-penalty F] [--logit-bias ID=BIAS,...] [--seed S]
//
// Those that are named; without any of them and --seed, the one that takes the likeliest token.

#pragma once

#include "session.h"

inline llama_sampler * make_samplers(const arguments & args, int n_vocab) {
    llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    const auto add  = [&](llama_sampler * sampler) { llama_sampler_chain_add(chain, sampler); };
    const auto real = [&](const std::string & name, const char * fallback) {
        return std::stof(args.word(name, fallback));
    };
    std::vector<llama_logit_bias> biases;
    for (const std::string & item : split(args.word("--logit-bias", ""), ',')) {
        const size_t at = item.find('=');
        biases.push_back({ std::stoi(item.substr(0, at)), std::stof(item.substr(at + 1)) });
    }
    if (!biases.empty()) {
        add(llama_sampler_init_logit_bias(n_vocab, (int) biases.size(), biases.data()));
    }
    const bool penalties = args.flag("--repeat-penalty") || args.flag("--frequency-penalty") ||
        args.flag("--presence-penalty");
    if (penalties) {
        add(llama_sampler_init_penalties(
            n_vocab, (int) args.number("--repeat-last-n", 64), real("--repeat-penalty", "1"),
            real("--frequency-penalty", "0"), real("--presence-penalty", "0")));
    }
    if (args.flag("--top-k")) {
        add(llama_sampler_init_top_k((int32_t) args.number("--top-k", 0)));
    }
    if (args.flag("--top-p")) {
        add(llama_sampler_init_top_p(real("--top-p", "1"), 0));
    }
    if (args.flag("--min-p")) {
        add(llama_sampler_init_min_p(real("--min-p", "0"), 0));
    }
    if (args.flag("--temp")) {
        add(llama_sampler_init_temp_ext(real("--temp", "1"), 0.0f, 1.0f));
    }
    add(args.flag("--seed") ? llama_sampler_init_dist((uint32_t) std::stoul(args.word("--seed", "0")))
                            : llama_sampler_init_greedy());
    return chain;
}

// One token of a row of logits, which is a past one from then on; `cur` becomes what was left.
inline llama_token_data_array sample(
        llama_sampler * chain, const float * row, std::vector<llama_token_data> & cur) {
    for (size_t i = 0; i < cur.size(); i++) {
        cur[i] = { (llama_token) i, row[i], 0.0f };
    }
    llama_token_data_array left = { cur.data(), cur.size(), -1, false };
    llama_sampler_apply(chain, &left);
    llama_sampler_accept(chain, left.data[left.selected].id);
    return left;
}

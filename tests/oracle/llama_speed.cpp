// How long upstream's libllama takes, in a process that stays: what ours is timed beside.
//
//   llama_speed MODEL N_PROMPT N_GEN [options of session.h]
//
// Evaluates a prompt of N_PROMPT tokens and then N_GEN tokens one by one (either may be 0), once to
// warm up, and says "ready". Then again for each line of standard input, with an empty cache, and
// prints the seconds that it took.

#include "session.h"

#include <chrono>

namespace {

double run(const session & s, const std::vector<llama_token> & prompt, int n_gen) {
    llama_memory_clear(llama_get_memory(s.ctx), false);
    const auto start = std::chrono::steady_clock::now();
    if (!prompt.empty()) {
        evaluate(s.ctx, prompt, 0, 0, false);
    }
    for (int i = 0; i < n_gen; i++) {
        evaluate(s.ctx, { i % s.n_vocab }, (int) prompt.size() + i, 0, false);
    }
    llama_synchronize(s.ctx);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int serve(const arguments & args) {
    if (args.plain.size() != 3) {
        throw std::invalid_argument("expected MODEL N_PROMPT N_GEN");
    }
    const int n_prompt = std::stoi(args.plain[1]), n_gen = std::stoi(args.plain[2]);

    const session            s(args, args.plain[0]);
    std::vector<llama_token> prompt((size_t) n_prompt);
    for (int i = 0; i < n_prompt; i++) {
        prompt[(size_t) i] = i % s.n_vocab;
    }
    run(s, prompt, n_gen);
    std::puts("ready");
    std::fflush(stdout);
    for (char line[8]; std::fgets(line, sizeof(line), stdin);) {
        std::printf("%.6f\n", run(s, prompt, n_gen));
        std::fflush(stdout);
    }
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    return guarded("llama_speed", [&] { return serve(arguments(argc, argv, {})); });
}

// The text that a chat template (jinja) makes of messages, in a process of its own: a template may come with anybody's
// model, and may loop, fill the memory or call itself without an end.
//
//   llama-chat SECONDS BYTES ADD_GENERATION_PROMPT ADD_BOS ADD_EOS
//
// with limits of computing and memory. Standard input has texts, each behind its length and a newline: the template,
// BOS, EOS, and of each message the role and the content. Prints the text, or the error and ends with 1.

#include "chat.h"

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <unistd.h>
#include <vector>

#ifdef __linux__
#include <csignal>
#include <sys/prctl.h>
#endif

bool gpl_adds[2]; // BOS and EOS, which the template's text lacks then

static void limit(int what, size_t most) {
    const rlimit both = {(rlim_t) most, (rlim_t) most};
    setrlimit(what, &both);
}

// Bytes of address space that the libraries take.
static size_t loaded() {
    size_t pages = 0;
    if (std::FILE * file = std::fopen("/proc/self/statm", "r")) {
        pages = std::fscanf(file, "%zu", &pages) == 1 ? pages : 0;
        std::fclose(file);
    }
    return pages * (size_t) sysconf(_SC_PAGESIZE);
}

int main(int argc, char ** argv) {
    if (argc != 6) {
        return 2;
    }
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    limit(RLIMIT_CPU, std::strtoul(argv[1], nullptr, 10));
    limit(RLIMIT_AS, loaded() + std::strtoull(argv[2], nullptr, 10));
    limit(RLIMIT_CORE, 0);
    std::string text;
    int         status = 0;
    try {
        std::vector<std::string> given;
        size_t                   n;
        while (std::cin >> n && std::cin.get() == '\n') {
            given.emplace_back(n, '\0');
            std::cin.read(&given.back()[0], (std::streamsize) n);
        }
        common_chat_templates_inputs inputs;
        inputs.add_generation_prompt = argv[3][0] == '1';
        gpl_adds[0]                  = argv[4][0] == '1';
        gpl_adds[1]                  = argv[5][0] == '1';
        for (size_t i = 3; i + 1 < given.size(); i += 2) {
            common_chat_msg message;
            message.role    = given[i];
            message.content = given[i + 1];
            inputs.messages.push_back(std::move(message));
        }
        const auto templates = common_chat_templates_init(nullptr, given.at(0), given.at(1), given.at(2));
        text                 = common_chat_templates_apply(templates.get(), inputs).prompt;
    } catch (const std::bad_alloc &) {
        text   = "it needs more than " + std::to_string(std::strtoull(argv[2], nullptr, 10) >> 20) + " MiB of memory";
        status = 1;
    } catch (const std::exception & error) {
        text   = error.what();
        status = 1;
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    return status;
}

// What upstream's libllama makes of several sequences: what ours are compared with.
//
//   llama_sequences MODEL SCRIPT OUT [options of session.h]
//
// SCRIPT is a file with one command a line:
//
//   decode TOKEN/POS/SEQ+SEQ…/LOGITS …     POS - in all or none: after the sequence's last
//   seq_rm SEQ P0 P1 | seq_cp SRC DST P0 P1 | seq_keep SEQ
//   seq_add SEQ P0 P1 DELTA | seq_div SEQ P0 P1 D     P1 -1: to the end
//   seq_save SEQ FILE | seq_load SEQ FILE | save FILE | load FILE
//   clear
//
// OUT becomes rows of n_vocab floats, one for each token that asked for logits. Standard output is a
// line of JSON for each command: its status (0 is good), and each sequence's first and last
// position afterwards. With --log standard error has "command NAME" before what is logged of each.

#include "session.h"

#include <fstream>

namespace {

int decode(session & s, const std::vector<std::string> & words, FILE * out) {
    const int   n     = (int) words.size() - 1;
    llama_batch batch = llama_batch_init(n, 0, (int32_t) llama_n_seq_max(s.ctx));
    llama_pos * pos   = batch.pos;
    for (int i = 0; i < n; i++) {
        const auto fields = split(words[(size_t) i + 1], '/');
        const auto seqs   = split(fields.at(2), '+');
        batch.token[i]    = std::stoi(fields[0]);
        if (fields[1] == "-") {
            batch.pos = nullptr;
        } else {
            pos[i] = std::stoi(fields[1]);
        }
        batch.n_seq_id[i] = (int32_t) seqs.size();
        for (size_t k = 0; k < seqs.size(); k++) {
            batch.seq_id[i][k] = std::stoi(seqs[k]);
        }
        batch.logits[i] = fields.at(3) == "1";
    }
    batch.n_tokens = n;
    const int status = llama_decode(s.ctx, batch);
    for (int i = 0; status == 0 && i < n; i++) {
        if (batch.logits[i]) {
            std::fwrite(llama_get_logits_ith(s.ctx, i), sizeof(float), (size_t) s.n_vocab, out);
        }
    }
    batch.pos = pos;
    llama_batch_free(batch);
    return status;
}

int file_command(session & s, const std::string & name, const std::vector<std::string> & words) {
    size_t            n_read = 0;
    const std::string path   = words.back();
    if (name == "save") {
        return !llama_state_save_file(s.ctx, path.c_str(), nullptr, 0);
    }
    if (name == "load") {
        return !llama_state_load_file(s.ctx, path.c_str(), nullptr, 0, &n_read);
    }
    const llama_seq_id seq = std::stoi(words.at(1));
    if (name == "seq_save") {
        return !llama_state_seq_save_file(s.ctx, path.c_str(), seq, nullptr, 0);
    }
    return !llama_state_seq_load_file(s.ctx, path.c_str(), seq, nullptr, 0, &n_read);
}

int execute(session & s, const std::vector<std::string> & words, FILE * out) {
    const std::string name   = words.at(0);
    llama_memory_t    memory = llama_get_memory(s.ctx);
    const auto number = [&](size_t i) { return std::stoi(words.at(i)); };
    if (name == "decode") {
        return decode(s, words, out);
    } else if (name == "seq_rm") {
        return !llama_memory_seq_rm(memory, number(1), number(2), number(3));
    } else if (name == "seq_cp") {
        llama_memory_seq_cp(memory, number(1), number(2), number(3), number(4));
    } else if (name == "seq_keep") {
        llama_memory_seq_keep(memory, number(1));
    } else if (name == "seq_add") {
        llama_memory_seq_add(memory, number(1), number(2), number(3), number(4));
    } else if (name == "seq_div") {
        llama_memory_seq_div(memory, number(1), number(2), number(3), number(4));
    } else if (name == "clear") {
        llama_memory_clear(memory, true);
    } else if (name == "save" || name == "load" || name == "seq_save" || name == "seq_load") {
        return file_command(s, name, words);
    } else {
        throw std::invalid_argument("no command " + name);
    }
    return 0;
}

int run(const arguments & args) {
    if (args.plain.size() != 3) {
        throw std::invalid_argument("expected MODEL SCRIPT OUT");
    }
    session       s(args, args.plain[0]);
    std::ifstream script(args.plain[1]);
    FILE *        out = open_for_writing(args.plain[2]);
    for (std::string line; std::getline(script, line);) {
        if (args.flag("--log")) {
            std::fprintf(stderr, "\ncommand %s\n", line.substr(0, line.find(' ')).c_str());
        }
        const int status = execute(s, split(line, ' '), out);
        std::printf("{\"n_vocab\": %d, \"status\": %d, \"positions\": [", s.n_vocab, status);
        llama_memory_t memory = llama_get_memory(s.ctx);
        for (int seq = 0; seq < (int) llama_n_seq_max(s.ctx); seq++) {
            std::printf(seq ? ", [%d, %d]" : "[%d, %d]", llama_memory_seq_pos_min(memory, seq),
                llama_memory_seq_pos_max(memory, seq));
        }
        std::printf("]}\n");
    }
    std::fclose(out);
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    return guarded("llama_sequences", [&] { return run(arguments(argc, argv, {})); });
}

// Where upstream's libllama, unmodified, puts weights and nodes: what our placements are compared with. GPUs
// are our simulated devices (ggml_py/native/sim_*.cpp, which are compiled in), registered as any backend.
//
//   llama_place MODEL N_TOKENS [--sims TEXT] [--overrides TEXT] [--n-gpu-layers N] [--tensor-split A,B]
//               [--split-mode none|layer|row|tensor] [--main-gpu N] [--load-mode auto|none|mmap] [--no-kv-offload]
//               [--no-op-offload] [--no-host], and what session.h has
//
// N_TOKENS are numbers with commas between them: for each, so many tokens are evaluated in an empty context.
// TEXT of --sims is devices with ";" between them, each NAME,memory=BYTES,host_buffer=1,min_batch=N,async=0,
// type=gpu|igpu,card=BACKEND|VALUE|VALUE|...,no=OP|OP|... (cards/card.h; what it has is set before later settings;
// "no" are ops, or tensors by name, that it does not support; not with a card); TEXT of --overrides as llama.cpp's
// -ot takes it. Standard error gets all that ggml logs (run it with GGML_SCHED_DEBUG=2), a line "memory BUFT WEIGHTS
// CACHE COMPUTE" in bytes for each buffer type of the context, and "n_tokens=N" before each evaluation.

#include "cards/card.h"
#include "guard.h"
#include "llama-ext.h"
#include "session.h"
#include "sim_device.h"

#include <algorithm>
#include <cstdlib>

// --- what the simulated devices need of the cffi module: nothing is caught here

// `predicate` is a list of what the device does not support: ops, or tensors by name.
extern "C" bool gp_sim_ask(const ggml_tensor * op, void * predicate) {
    for (const std::string & no : *(const std::vector<std::string> *) predicate) {
        if (no == ggml_op_name(op->op) || no == ggml_op_desc(op) || no == op->name) {
            return false;
        }
    }
    return true;
}
extern "C" bool gp_sim_ask_order(ggml_tensor **, int, int32_t *, void *, void *) { return false; }
extern "C" bool gp_interrupted(void) { return false; }
struct gp_error * gp_last_error(void) {
    static thread_local gp_error error;
    return &error;
}

namespace gp {
scope::scope() {}
scope::~scope() {}
void caught(const char * call) {
    std::fprintf(stderr, "llama_place: %s failed\n", call);
    std::abort();
}
status_error::status_error(const char * device, enum ggml_status status) {
    std::snprintf(text, sizeof(text), "%s: status %d", device, (int) status);
}
} // namespace gp

namespace {

// The place of `value` among `words`, which are the enum's members from `first` on.
int choice(const std::string & value, const std::vector<std::string> & words, int first) {
    for (size_t i = 0; i < words.size(); i++) {
        if (words[i] == value) {
            return first + (int) i;
        }
    }
    throw std::invalid_argument("unknown value " + value);
}

// A card, and the settings of the device that it is.
void be_card(const std::string & text, gp_sim_settings & settings, gp_sim_decisions & decisions) {
    const std::vector<std::string> parts = split(text, '|');
    std::vector<const char *> values;
    for (size_t i = 1; i < parts.size(); i++) {
        values.push_back(parts[i].c_str());
    }
    char why[256];
    settings.card = gp_card_open(parts.at(0).c_str(), values.data(), why, sizeof(why));
    if (settings.card == nullptr) {
        throw std::invalid_argument(why);
    }
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(settings.card, &props);
    ggml_backend_buffer_type_t buft = ggml_backend_dev_buffer_type(settings.card);
    settings.type        = props.type;
    settings.async_      = props.caps.async;
    settings.host_buffer = props.caps.host_buffer;
    settings.alignment   = std::max<size_t>(ggml_backend_buft_get_alignment(buft), 32);
    settings.max_size    = ggml_backend_buft_get_max_size(buft);
    settings.optimize    = gp_card_orders(settings.card) ? GP_SIM_ORDER_CARD : GP_SIM_ORDER_NONE;
    decisions.mode       = GP_SIM_CARD;
    decisions.batch      = GP_SIM_BY_CARD;
}

void open_sim(const std::string & text) {
    std::vector<std::string> parts = split(text, ',');
    gp_sim_settings settings = {};
    settings.type      = GGML_BACKEND_DEVICE_TYPE_GPU;
    settings.async_    = true;
    settings.memory    = size_t(8) << 30;
    settings.max_size  = SIZE_MAX;
    settings.alignment = 128;
    gp_sim_decisions decisions = {};
    decisions.mode              = GP_SIM_ALL;
    decisions.offload_min_batch = 32;
    for (size_t i = 1; i < parts.size(); i++) {
        const std::string key = parts[i].substr(0, parts[i].find('=')), value = parts[i].substr(key.size() + 1);
        if (key == "memory") {
            settings.memory = std::stoull(value);
        } else if (key == "host_buffer") {
            settings.host_buffer = value == "1";
        } else if (key == "async") {
            settings.async_ = value == "1";
        } else if (key == "type") {
            settings.type = value == "igpu" ? GGML_BACKEND_DEVICE_TYPE_IGPU : GGML_BACKEND_DEVICE_TYPE_GPU;
        } else if (key == "card") {
            be_card(value, settings, decisions);
        } else if (key == "no") {
            decisions.mode      = GP_SIM_ASK;
            decisions.predicate = new std::vector<std::string>(split(value, '|')); // as long as the device
        } else if (key == "min_batch") {
            decisions.offload_min_batch = std::stoll(value);
        } else {
            throw std::invalid_argument("--sims: " + parts[i]);
        }
    }
    gp_sim_decide(gp_sim_open(parts.at(0).c_str(), &settings), &decisions);
}

// As parse_tensor_buffer_overrides of llama.cpp's common/arg.cpp; the names stay alive.
std::vector<llama_model_tensor_buft_override> parse_overrides(const std::string & text) {
    static std::vector<std::string> patterns;
    std::vector<llama_model_tensor_buft_override> overrides;
    const std::vector<std::string> pairs = split(text, ',');
    patterns.reserve(pairs.size());
    for (const std::string & pair : pairs) {
        const size_t at = pair.find('=');
        ggml_backend_buffer_type_t found = nullptr;
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            ggml_backend_buffer_type_t buft = ggml_backend_dev_buffer_type(ggml_backend_dev_get(i));
            if (pair.substr(at + 1) == ggml_backend_buft_name(buft)) {
                found = buft;
            }
        }
        if (at == std::string::npos || found == nullptr) {
            throw std::invalid_argument("--overrides: " + pair);
        }
        patterns.push_back(pair.substr(0, at));
        overrides.push_back({patterns.back().c_str(), found});
    }
    overrides.push_back({nullptr, nullptr});
    return overrides;
}

int run(const arguments & args) {
    if (args.plain.size() != 2) {
        throw std::invalid_argument("expected MODEL N_TOKENS");
    }
    for (const std::string & sim : split(args.word("--sims", ""), ';')) {
        open_sim(sim);
    }
    const auto overrides = parse_overrides(args.word("--overrides", ""));
    std::vector<float> tensor_split(llama_max_devices());
    const std::vector<std::string> parts = split(args.word("--tensor-split", ""), ',');
    for (size_t i = 0; i < parts.size(); i++) {
        tensor_split.at(i) = std::stof(parts[i]);
    }
    const auto edit_model = [&](llama_model_params & params) {
        params.n_gpu_layers          = std::stoi(args.word("--n-gpu-layers", "0"));
        params.split_mode            = (llama_split_mode) choice(args.word("--split-mode", "layer"), {"none", "layer", "row", "tensor"}, 0);
        params.load_mode             = (llama_load_mode) choice(args.word("--load-mode", "auto"), {"auto", "none", "mmap"}, -1);
        params.main_gpu              = std::stoi(args.word("--main-gpu", "0"));
        params.tensor_split          = tensor_split.data();
        params.tensor_buft_overrides = overrides.data();
        params.no_host               = args.flag("--no-host");
    };
    const auto edit_context = [&](llama_context_params & params) {
        params.offload_kqv = !args.flag("--no-kv-offload");
        params.op_offload  = !args.flag("--no-op-offload");
    };
    session own(args, args.plain[0], edit_model, edit_context);
    for (const auto & [buft, bytes] : llama_get_memory_breakdown(own.ctx)) {
        std::fprintf(stderr, "memory %s %zu %zu %zu\n", ggml_backend_buft_name(buft), bytes.model, bytes.context,
            bytes.compute);
    }
    for (const std::string & n : split(args.plain[1], ',')) {
        llama_memory_clear(llama_get_memory(own.ctx), true);
        std::vector<llama_token> tokens(std::stoul(n), 1);
        std::fprintf(stderr, "\nn_tokens=%s\n", n.c_str());
        const int status = llama_decode(own.ctx, llama_batch_get_one(tokens.data(), (int32_t) tokens.size()));
        if (status != 0) {
            throw std::runtime_error("llama_decode: " + std::to_string(status));
        }
        // What an integrated GPU reads in place must not be written before it is done; libllama does not wait.
        llama_synchronize(own.ctx);
    }
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    return guarded("llama_place", [&] {
        arguments args(argc, argv, {"--no-kv-offload", "--no-op-offload", "--no-host"});
        args.options["--log"] = "";
        return run(args);
    });
}

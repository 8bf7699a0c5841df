// Where upstream's libllama, unmodified, puts weights and nodes: what our placements are compared with. GPUs
// are our simulated devices (ggml_py/native/sim_*.cpp, which are compiled in), registered as any backend.
//
//   llama_place MODEL N_TOKENS [--sims TEXT] [--blas LIBGGML_BLAS] [--overrides TEXT] [--n-gpu-layers N]
//               [--tensor-split A,B] [--split-mode none|layer] [--main-gpu N] [--load-mode auto|none|mmap]
//               [--flash-attn on|off|auto] [--type-k TYPE] [--type-v TYPE] [--n-ctx N] [--n-ubatch N]
//               [--no-kv-offload] [--no-op-offload] [--no-host] [--repack]
//
// N_TOKENS are numbers with commas between them: for each, so many tokens are evaluated in an empty context.
// TEXT of --sims is devices with ";" between them, each NAME,memory=BYTES,host_buffer=1,min_batch=N,async=0,
// type=gpu|igpu; TEXT of --overrides as llama.cpp's -ot takes it. Standard error gets all that ggml logs (run
// it with GGML_SCHED_DEBUG=2), and "n_tokens=N" before each evaluation.

#include "ggml-backend.h"
#include "guard.h"
#include "llama.h"
#include "sim_device.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// --- what the simulated devices need of the cffi module: nothing is caught here

extern "C" bool gp_sim_ask(const ggml_tensor *, void *) { return true; }
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

using options = std::map<std::string, std::string>;

std::vector<std::string> split(const std::string & text, char separator) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, separator);) {
        parts.push_back(part);
    }
    return parts;
}

std::string word(const options & opts, const std::string & name, const std::string & fallback) {
    const auto it = opts.find(name);
    return it == opts.end() ? fallback : it->second;
}

int number(const options & opts, const std::string & name, int fallback) {
    return std::stoi(word(opts, name, std::to_string(fallback)));
}

// The place of `value` among `words`, which are the enum's members from `first` on.
int choice(const std::string & value, const std::vector<std::string> & words, int first) {
    for (size_t i = 0; i < words.size(); i++) {
        if (words[i] == value) {
            return first + (int) i;
        }
    }
    throw std::invalid_argument("unknown value " + value);
}

ggml_type type_by_name(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * known = ggml_type_name((ggml_type) i);
        if (known && name == known) {
            return (ggml_type) i;
        }
    }
    throw std::invalid_argument("no type " + name);
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
        } else if (key == "min_batch") {
            decisions.offload_min_batch = std::stoll(value);
        } else {
            throw std::invalid_argument("--sims: " + parts[i]);
        }
    }
    gp_sim_decide(gp_sim_open(parts.at(0).c_str(), &settings), &decisions);
}

void register_blas(const std::string & path) {
    void * library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    void * symbol  = library ? dlsym(library, "ggml_backend_blas_reg") : nullptr;
    if (!symbol) {
        throw std::runtime_error(dlerror());
    }
    ggml_backend_register(reinterpret_cast<ggml_backend_reg_t (*)()>(symbol)());
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

void log_all(ggml_log_level, const char * text, void *) {
    std::fputs(text, stderr);
}

int run(const std::string & path, const std::string & n_tokens, const options & opts) {
    llama_log_set(log_all, nullptr);
    llama_backend_init();
    for (const std::string & sim : split(word(opts, "--sims", ""), ';')) {
        open_sim(sim);
    }
    if (opts.count("--blas")) {
        register_blas(opts.at("--blas"));
    }
    const auto overrides = parse_overrides(word(opts, "--overrides", ""));
    std::vector<float> tensor_split(llama_max_devices());
    const std::vector<std::string> parts = split(word(opts, "--tensor-split", ""), ',');
    for (size_t i = 0; i < parts.size(); i++) {
        tensor_split.at(i) = std::stof(parts[i]);
    }

    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers          = number(opts, "--n-gpu-layers", 0);
    model_params.split_mode            = (llama_split_mode) choice(word(opts, "--split-mode", "layer"), {"none", "layer"}, 0);
    model_params.load_mode             = (llama_load_mode) choice(word(opts, "--load-mode", "auto"), {"auto", "none", "mmap"}, -1);
    model_params.main_gpu              = number(opts, "--main-gpu", 0);
    model_params.tensor_split          = tensor_split.data();
    model_params.tensor_buft_overrides = overrides.data();
    model_params.use_extra_bufts       = opts.count("--repack");
    model_params.no_host               = opts.count("--no-host");
    llama_model * model = llama_model_load_from_file(path.c_str(), model_params);
    if (!model) {
        throw std::runtime_error("cannot load " + path);
    }

    llama_context_params params = llama_context_default_params();
    params.n_ctx           = (uint32_t) number(opts, "--n-ctx", 512);
    params.n_batch         = params.n_ctx;
    params.n_ubatch        = (uint32_t) number(opts, "--n-ubatch", 512);
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    params.flash_attn_type = (llama_flash_attn_type) choice(word(opts, "--flash-attn", "auto"), {"auto", "off", "on"}, -1);
    params.type_k          = type_by_name(word(opts, "--type-k", "f16"));
    params.type_v          = type_by_name(word(opts, "--type-v", "f16"));
    params.offload_kqv     = !opts.count("--no-kv-offload");
    params.op_offload      = !opts.count("--no-op-offload");
    llama_context * ctx = llama_init_from_model(model, params);
    if (!ctx) {
        throw std::runtime_error("cannot make a context");
    }
    for (const std::string & n : split(n_tokens, ',')) {
        llama_memory_clear(llama_get_memory(ctx), true);
        std::vector<llama_token> tokens(std::stoul(n), 1);
        std::fprintf(stderr, "\nn_tokens=%s\n", n.c_str());
        const int status = llama_decode(ctx, llama_batch_get_one(tokens.data(), (int32_t) tokens.size()));
        if (status != 0) {
            throw std::runtime_error("llama_decode: " + std::to_string(status));
        }
        // What an integrated GPU reads in place must not be written before it is done; libllama does not wait.
        llama_synchronize(ctx);
    }
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    std::vector<std::string> plain;
    options opts;
    const std::vector<std::string> flags = {"--no-kv-offload", "--no-op-offload", "--no-host", "--repack"};
    for (int i = 1; i < argc; i++) {
        const std::string arg = argv[i];
        bool flag = false;
        for (const std::string & known : flags) {
            flag = flag || known == arg;
        }
        if (arg.rfind("--", 0) != 0) {
            plain.push_back(arg);
        } else {
            opts[arg] = flag || i + 1 == argc ? "" : argv[++i];
        }
    }
    try {
        if (plain.size() != 2) {
            throw std::invalid_argument("expected MODEL N_TOKENS");
        }
        return run(plain[0], plain[1], opts);
    } catch (const std::exception & error) {
        std::fprintf(stderr, "llama_place: %s\n", error.what());
        return 1;
    }
}

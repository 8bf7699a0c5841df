// Simulated devices (sim_device.h) for any program of ggml: a backend that ggml loads because GGML_BACKEND_PATH names it.
// ggml_py/record/programs/devices.py writes the list of devices.
//
//   GGML_PY_SIMS   devices with "\n" between them, each its name and settings with "\t" between them
//   settings       type, memory, max_size, alignment, host, host_buffer, async: numbers; min_batch: a number;
//                  card: a backend whose card it is, with p.PROPERTY=VALUE for each property that is given;
//                  optimize: an enum gp_sim_order; only=OP: it supports such ops only, may be repeated; none: no op
#include "cards/card.h"
#include "guard.h"
#include "sim_device.h"

#include "ggml-backend-impl.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>

// --- ggml's registry: the program's libggml registers the one that ggml_backend_init returns

static void * libggml = nullptr; // that called ggml_backend_init

extern "C" {
void ggml_backend_register(ggml_backend_reg_t) {}
void ggml_backend_device_register(ggml_backend_dev_t) {}
void ggml_backend_unload(ggml_backend_reg_t) {}
ggml_backend_dev_t ggml_backend_dev_by_type(enum ggml_backend_dev_type type) {
    typedef ggml_backend_dev_t (*by_type_t)(enum ggml_backend_dev_type);
    const by_type_t by_type = (by_type_t) dlsym(libggml ? libggml : RTLD_DEFAULT, "ggml_backend_dev_by_type");
    return by_type ? by_type(type) : nullptr;
}

// --- what the devices need of ggml_py's own process: nothing is caught here

bool gp_sim_ask(const ggml_tensor * op, void * predicate) {
    const std::vector<std::string> & only = *(const std::vector<std::string> *) predicate;
    const auto named = [&](const char * name) { return std::find(only.begin(), only.end(), name) != only.end(); };
    return op->op == GGML_OP_NONE || op->op == GGML_OP_RESHAPE || op->op == GGML_OP_VIEW || op->op == GGML_OP_PERMUTE ||
        op->op == GGML_OP_TRANSPOSE || named(ggml_op_name(op->op)) || named(ggml_op_desc(op));
}
bool gp_sim_ask_order(ggml_tensor **, int, int32_t *, void *, void *) { return false; }
bool gp_interrupted(void) { return false; }
gp_error * gp_last_error(void) {
    static thread_local gp_error error;
    return &error;
}

struct gp_division;
__attribute__((noreturn)) void __ubsan_handle_divrem_overflow_abort(struct gp_division *, uintptr_t, uintptr_t) {
    GGML_ABORT("a function of a simulated device's card divided by zero");
}
__attribute__((noreturn)) void __ubsan_handle_divrem_overflow(struct gp_division *, uintptr_t, uintptr_t) {
    GGML_ABORT("a function of a simulated device's card divided by zero");
}
}

namespace gp {
scope::scope() {}
scope::~scope() {}
void caught(const char * call) {
    GGML_ABORT("a simulated device failed in %s", call);
}
status_error::status_error(const char * device, enum ggml_status status) {
    std::snprintf(text, sizeof(text), "%s: status %d", device, (int) status);
}
} // namespace gp

namespace {

std::vector<std::string> split(const std::string & text, char by) {
    std::vector<std::string> parts(1);
    for (char c : text) {
        if (c == by) {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    return parts;
}

ggml_backend_dev_t open_card(const std::string & backend, const std::map<std::string, std::string> & given) {
    std::vector<const char *> values;
    for (int32_t i = 0; const gp_card_property * one = gp_card_property_of(backend.c_str(), i); i++) {
        const auto found = given.find(one->name);
        values.push_back(found == given.end() ? one->text : found->second.c_str());
    }
    char why[256] = "this build has no such backend's functions";
    ggml_backend_dev_t card = values.empty() ? nullptr : gp_card_open(backend.c_str(), values.data(), why, sizeof(why));
    if (card == nullptr) {
        throw std::invalid_argument("card of " + backend + ": " + why);
    }
    return card;
}

void open_device(const std::string & text) {
    const std::vector<std::string> parts = split(text, '\t');
    gp_sim_settings settings = {};
    gp_sim_decisions decisions = {};
    settings.max_size = SIZE_MAX;
    decisions.mode    = GP_SIM_ALL;
    decisions.offload_min_batch = 32;
    std::string card;
    std::map<std::string, std::string> properties;
    std::vector<std::string> only;
    for (size_t i = 1; i < parts.size(); i++) {
        const size_t at = parts[i].find('=');
        const std::string key = parts[i].substr(0, at), value = at == std::string::npos ? "" : parts[i].substr(at + 1);
        const unsigned long long number = std::strtoull(value.c_str(), nullptr, 10);
        if (key == "type") {
            settings.type = (int32_t) number;
        } else if (key == "memory") {
            settings.memory = number;
        } else if (key == "max_size") {
            settings.max_size = number;
        } else if (key == "largest") {
            settings.largest = number;
        } else if (key == "alignment") {
            settings.alignment = number;
        } else if (key == "host") {
            settings.host = number != 0;
        } else if (key == "host_buffer") {
            settings.host_buffer = number != 0;
        } else if (key == "async") {
            settings.async_ = number != 0;
        } else if (key == "optimize") {
            settings.optimize = (int32_t) number;
        } else if (key == "min_batch") {
            decisions.offload_min_batch = (int64_t) number;
        } else if (key == "batch") {
            decisions.batch = (int32_t) number;
        } else if (key == "card") {
            card = value;
        } else if (key.compare(0, 2, "p.") == 0) {
            properties[key.substr(2)] = value;
        } else if (key == "only") {
            only.push_back(value);
        } else if (key == "none") {
            decisions.mode = GP_SIM_NONE;
        } else {
            throw std::invalid_argument("unknown setting " + key);
        }
    }
    if (!card.empty()) {
        settings.card  = open_card(card, properties);
        decisions.mode = GP_SIM_CARD;
    } else if (!only.empty()) {
        decisions.mode      = GP_SIM_ASK;
        decisions.predicate = new std::vector<std::string>(only); // as long as the process
    }
    std::snprintf(decisions.description, sizeof(decisions.description), "simulated by ggml_py%s%s", card.empty() ? "" : ": ",
        properties.count("name") ? properties["name"].c_str() : card.c_str());
    gp_sim_decide(gp_sim_open(parts[0].c_str(), &settings), &decisions);
}

} // namespace

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    Dl_info caller = {};
    if (dladdr(__builtin_return_address(0), &caller) && caller.dli_fname) {
        libggml = dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }
    const char * text = std::getenv("GGML_PY_SIMS");
    try {
        for (const std::string & device : split(text ? text : "", '\n')) {
            if (!device.empty()) {
                open_device(device);
            }
        }
    } catch (const std::exception & error) {
        std::fprintf(stderr, "ggml-py record: no simulated devices: %s\n", error.what());
        return nullptr;
    }
    std::fprintf(stderr, "ggml-py record: the program has simulated devices\n");
    return gp_sim_registry();
}

// AIFoundry's ET-SoC-1: ggml-et. Properties have the names of rt::DeviceProperties'.
#include "card.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace gp {
namespace {

// --- stubs of the toolkit

namespace rt {
typedef int DeviceId; // a card's number
typedef int StreamId;
typedef int KernelId;
typedef int EventId;

struct DeviceProperties { uint64_t memorySize_, cacheLineSize_; };
} // namespace rt

constexpr int max_cards = 16;

std::array<rt::DeviceProperties, max_cards> toolkit;

namespace rt {
struct IRuntime {
    DeviceProperties getDeviceProperties(DeviceId device) const { return toolkit[device]; }
};
} // namespace rt

std::shared_ptr<rt::IRuntime> ggml_et_runtime() {
    return std::make_shared<rt::IRuntime>();
}

#include GP_CUT

// --- cards

const gp_card_property properties[] = {
    {"name", NULL},
    {"memorySize_", NULL},
    {"cacheLineSize_", "64"},
    {NULL, NULL},
};

using slots = card_slots<ggml_backend_et_device_context, max_cards>;

std::array<ggml_backend_buffer_type, max_cards> buffer_types;

ggml_backend_dev_t open(const card_values & values) {
    const int i = slots::find();
    toolkit[i] = {(uint64_t) values.number("memorySize_"), (uint64_t) values.number("cacheLineSize_")};
    ggml_backend_et_device_context & context = slots::all()[i].context;
    context.devidx    = i;
    context.rtid      = i;
    context.name      = GP_CARD_NAME + std::to_string(i);
    context.desc      = values.text("name");
    context.total_mem = (size_t) toolkit[i].memorySize_;
    context.buftype   = &buffer_types[i];
    ggml_backend_dev_t made = slots::open(i, ggml_backend_et_device_i);
    buffer_types[i] = {ggml_backend_et_buffer_type_i, made, nullptr};
    return made;
}

const card_registration registration({GP_CARD_NAME, properties, open, slots::close});

} // namespace
} // namespace gp

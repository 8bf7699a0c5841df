// Apple's GPUs: ggml-metal. Properties have the names of MTLDevice's; families are MTLGPUFamily's.
#include "card.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace gp {
namespace {

// --- stubs of the toolkit

typedef int NSInteger;
enum { MTLGPUFamilyApple6 = 1006, MTLGPUFamilyApple7 = 1007 };

struct MTLDevice {
    char   name[128];
    int    family_apple; // 7: MTLGPUFamilyApple7
    int    family_metal; // 3: MTLGPUFamilyMetal3
    bool   hasUnifiedMemory;
    size_t maxBufferLength;
    size_t maxThreadgroupMemoryLength;

    bool supportsFamily(int family) const {
        return family > 5000 ? family - 4998 <= family_metal : family - 1000 <= family_apple; // 5001: Metal 3
    }
};
template <class T> using id = T;

ggml_backend_reg_t ggml_backend_metal_reg();

// A simulated device counts its memory itself.
void ggml_backend_metal_device_get_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; }

#include GP_CUT

// --- cards

#ifdef GP_HAS_g_devices
constexpr int max_cards = 16;
#else
constexpr int max_cards = 1; // this release has buffer types for one device
#endif

const gp_card_property properties[] = {
    {"name", NULL},
    {"family_apple", NULL},
    {"family_metal", NULL},
    {"hasUnifiedMemory", "1"},
    {"maxBufferLength", NULL},
    {"maxThreadgroupMemoryLength", "32768"},
    {"recommendedMaxWorkingSetSize", NULL},
    {NULL, NULL},
};

using slots = card_slots<ggml_metal_device, max_cards>;

ggml_backend_reg_t ggml_backend_metal_reg() {
    return slots::reg();
}

// Older releases have one device, without a name of its own.
template <class Props> auto set_name(Props & props, int device, const char * name, int) -> decltype(props.desc, void()) {
    props.device = device;
    snprintf(props.name, sizeof(props.name), "%s%d", GP_CARD_NAME, device);
    snprintf(props.desc, sizeof(props.desc), "%s", name);
}
template <class Props> void set_name(Props & props, int, const char * name, long) {
    snprintf(props.name, sizeof(props.name), "%s", name);
}

ggml_backend_dev_t open(const card_values & values) {
    const int device = slots::find();
#ifdef GP_HAS_g_devices
    g_devices = max_cards;
#endif
    ggml_metal_device & context = slots::all()[device].context;
    context = {};
    MTLDevice & mtl = context.mtl_device;
    snprintf(mtl.name, sizeof(mtl.name), "%s", values.text("name").c_str());
    mtl.family_apple               = (int) values.number("family_apple");
    mtl.family_metal               = (int) values.number("family_metal");
    mtl.hasUnifiedMemory           = values.flag("hasUnifiedMemory");
    mtl.maxBufferLength            = (size_t) values.number("maxBufferLength");
    mtl.maxThreadgroupMemoryLength = (size_t) values.number("maxThreadgroupMemoryLength");
    values.number("recommendedMaxWorkingSetSize");
    gp_ggml_metal_device_init(&context);
    set_name(context.props, device, mtl.name, 0);
    ggml_backend_dev_t made = slots::open(device, ggml_backend_metal_device_i);
#ifdef GP_HAS_g_ggml_metal_device // this release's buffer types belong to a device of that name
    g_ggml_metal_device = *made;
    made = &g_ggml_metal_device;
#endif
    return made;
}

void close(ggml_backend_dev_t dev) {
#ifdef GP_HAS_g_ggml_metal_device
    dev = &slots::all()[0].device;
#endif
    slots::close(dev);
}

const card_registration registration({GP_CARD_NAME, properties, open, close});

} // namespace
} // namespace gp

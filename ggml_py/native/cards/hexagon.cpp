// Qualcomm's NPUs: ggml-hexagon. Properties have the names of htp_iface_hwinfo's results.
#include "card.h"

#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "ggml-quants.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cinttypes>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace gp {
namespace {

// --- stubs of the toolkit

#define __fp16 uint16_t // only its size counts; clang has a type of that name

struct ggml_backend_hexagon_device_context;

// Sessions of the same graph on other devices: none.
struct ggml_hexagon_mdev_group { uint32_t idx = 0, count = 1; };

// Weights that need repacking, while an op is asked about.
struct repacked {
    static std::unordered_set<const ggml_tensor *> & all() {
        static thread_local std::unordered_set<const ggml_tensor *> it;
        return it;
    }

    void   insert(const ggml_tensor * tensor) const { all().insert(tensor); }
    size_t count(const ggml_tensor * tensor) const { return all().count(tensor); }
};

// What a session has learned from the device.
struct ggml_hexagon_session {
    std::string name;
    uint32_t    n_threads = 0;
    uint32_t    n_hvx     = 0;
    uint32_t    n_hmx     = 0;
    uint64_t    vtcm_size = 0;
    size_t      max_vmem  = 0;
    int         phys_idx  = 0;
    int         virt_idx  = 0;

    ggml_hexagon_mdev_group               mdev;
    ggml_backend_hexagon_device_context * dev_ctx = nullptr;

    repacked needs_repack;

    ggml_hexagon_session() = default;
    template <class... T> explicit ggml_hexagon_session(const T &...) {}

    const char * c_name() const { return name.c_str(); }
};

template <class... T> void ggml_hexagon_dump_op_supp(const T &...) {}

#include GP_CUT

// --- cards

constexpr int max_cards = 16;

const gp_card_property properties[] = {
    {"name", NULL},
    {"n_threads", NULL},
    {"n_hmx", NULL},
    {"vtcm_size", NULL},
    {"max_vmem", NULL},
    {NULL, NULL},
};

struct device_context : ggml_backend_hexagon_device_context {
    device_context() : ggml_backend_hexagon_device_context(0, {}, nullptr) {}
    device_context(int i, const ggml_hexagon_device_config & config, ggml_backend_dev_t dev)
        : ggml_backend_hexagon_device_context(i, config, dev) {}
};

using slots = card_slots<device_context, max_cards>;

bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    repacked::all().clear();
    return ggml_backend_hexagon_device_i.supports_op(dev, op);
}

const char * get_description(ggml_backend_dev_t dev) {
    return ((ggml_backend_hexagon_device_context *) dev->context)->sess->name.c_str();
}

ggml_backend_dev_t open(const card_values & values) {
    const int i = slots::find();
    auto sess = std::make_unique<ggml_hexagon_session>();
    sess->name      = values.text("name");
    sess->n_threads = (uint32_t) values.number("n_threads");
    sess->n_hvx     = sess->n_threads;
    sess->n_hmx     = (uint32_t) values.number("n_hmx");
    sess->vtcm_size = (uint64_t) values.number("vtcm_size");
    sess->max_vmem  = (size_t) values.number("max_vmem");

    ggml_hexagon_device_config config;
    config.name = "HTP" + std::to_string(i);
    device_context & context = slots::all()[i].context;
    context.~device_context();
    new (&context) device_context(i, config, &slots::all()[i].device);
    sess->dev_ctx = &context;
    context.sess  = std::move(sess);

    ggml_backend_device_i iface = ggml_backend_hexagon_device_i;
    iface.supports_op     = supports_op;
    iface.get_description = get_description;
    return slots::open(i, iface);
}

const card_registration registration({GP_CARD_NAME, properties, open, slots::close});

} // namespace
} // namespace gp

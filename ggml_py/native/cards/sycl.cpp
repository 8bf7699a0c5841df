// Intel's GPUs by SYCL: ggml-sycl. Properties have the names of dpct::device_info's, without "get_".
#include "card.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

// --- stubs of the toolkit, in namespaces of their own

namespace gp {
namespace {

struct sycl_card {
    std::string name;
    int         architecture, major_version, minor_version, max_compute_units, max_work_group_size, integrated;
    size_t      local_mem_size, global_mem_size, max_mem_alloc_size;
    bool        onednn_optimized_gemm; // upstream tries whether oneDNN has a fast kernel
};

constexpr int max_cards = 16; // of GGML_SYCL_MAX_DEVICES

std::array<sycl_card, max_cards> toolkit;
int              first_device = 0;   // of the toolkit while it is initialised
thread_local int current_device = 0; // the one that a card's functions were asked about last

// What SYCL calls an architecture (device_architecture.def). Alchemist's have two names.
#define GP_SYCL_ARCHITECTURES(x)                                                                                          \
    x(bdw) x(skl) x(kbl) x(cfl) x(apl) x(glk) x(whl) x(aml) x(cml) x(icllp) x(ehl) x(tgllp) x(rkl) x(adl_s) x(adl_p)      \
    x(adl_n) x(dg1) x(acm_g10) x(acm_g11) x(acm_g12) x(pvc) x(pvc_vg) x(mtl_u) x(mtl_h) x(arl_h) x(bmg_g21) x(bmg_g31)    \
    x(lnl_m) x(ptl_h) x(ptl_u) x(wcl)

namespace sycl {
typedef uint16_t half;
enum class backend { ext_oneapi_level_zero, opencl };
enum class aspect { usm_system_allocations, ext_oneapi_virtual_mem };
namespace info {
namespace device {
struct name {};
}
}
namespace ext {
namespace intel {
namespace info {
namespace device {
struct device_id {};
}
}
}
namespace oneapi {
namespace experimental {
#define GP_X(name) intel_gpu_##name,
enum class architecture {
    GP_SYCL_ARCHITECTURES(GP_X)
    intel_gpu_dg2_g10 = intel_gpu_acm_g10, intel_gpu_dg2_g11 = intel_gpu_acm_g11, intel_gpu_dg2_g12 = intel_gpu_acm_g12
};
#undef GP_X
enum class arch_category { intel_gpu };
namespace info {
namespace device {
struct architecture {};
}
}
}
}
}

struct queue {
    int device;

    backend get_backend() const { return backend::ext_oneapi_level_zero; }
    int     get_device() const { return device; }
};

struct device {
    queue its;

    explicit device(int device) : its{device} {}

    const sycl_card & card() const { return toolkit[its.device]; }
    queue &           default_queue() { return its; }
    bool              is_gpu() const { return true; }
    bool              has(aspect) const { return false; }
    bool              ext_oneapi_architecture_is(ext::oneapi::experimental::arch_category) const { return true; }
    size_t            get_max_mem_alloc_size() const { return card().max_mem_alloc_size; }

    template <class What> auto get_info() const { return answer(What()); }

private:
    int         answer(ext::intel::info::device::device_id) const { return 0; } // only logged
    std::string answer(info::device::name) const { return card().name; }
    ext::oneapi::experimental::architecture answer(ext::oneapi::experimental::info::device::architecture) const {
        return ext::oneapi::experimental::architecture(card().architecture);
    }
};

template <backend> int get_native(int device) { return device; }
} // namespace sycl

namespace dpct {
enum err0 { success };
typedef sycl::queue * queue_ptr;

struct device_info {
    sycl_card card;

    const char * get_name() const { return card.name.c_str(); }
    int          get_major_version() const { return card.major_version; }
    int          get_minor_version() const { return card.minor_version; }
    int          get_max_compute_units() const { return card.max_compute_units; }
    int          get_max_work_group_size() const { return card.max_work_group_size; }
    size_t       get_local_mem_size() const { return card.local_mem_size; }
    size_t       get_global_mem_size() const { return card.global_mem_size; }
};

void get_device_info(device_info & out, const sycl::device & device) {
    out.card = device.card();
}

struct dev_mgr {
    static dev_mgr & instance() {
        static dev_mgr it;
        return it;
    }

    sycl::device devices[max_cards] = {
        sycl::device(0), sycl::device(1), sycl::device(2), sycl::device(3), sycl::device(4), sycl::device(5), sycl::device(6),
        sycl::device(7), sycl::device(8), sycl::device(9), sycl::device(10), sycl::device(11), sycl::device(12),
        sycl::device(13), sycl::device(14), sycl::device(15),
    };

    int            device_count() const { return 1; }
    sycl::device & get_device(int i) { return devices[first_device + i]; }
};
} // namespace dpct

// As in upstream's files.
using namespace std;
using namespace dpct;
namespace syclex = sycl::ext::oneapi::experimental;

typedef int ze_device_handle_t;
enum ze_result_t { ZE_RESULT_SUCCESS };
enum { ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES = 3, ZE_DEVICE_PROPERTY_FLAG_INTEGRATED = 1 };
struct ze_device_properties_t { int stype, flags; };

ze_result_t zeDeviceGetProperties(ze_device_handle_t device, ze_device_properties_t * props) {
    props->flags = toolkit[device].integrated ? ZE_DEVICE_PROPERTY_FLAG_INTEGRATED : 0;
    return ZE_RESULT_SUCCESS;
}

bool ggml_sycl_dnnl_detect_optimized_gemm(int device) {
    return toolkit[first_device + device].onednn_optimized_gemm;
}

struct ggml_backend_sycl_context {
    int device;

    dpct::queue_ptr stream(int, int) { return nullptr; }
};

struct ggml_sycl_device_info;
const ggml_sycl_device_info & ggml_sycl_info();
ggml_backend_reg_t ggml_backend_sycl_reg();
int ggml_sycl_get_device() { return current_device; }
dpct::err0 ggml_sycl_set_device(int device) { current_device = device; return dpct::success; }

// A simulated device counts its memory itself.
void ggml_backend_sycl_device_get_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; }

const sycl::device & gp_device_of(ggml_backend_buffer_type_t buft); // that a buffer type is for

#include GP_CUT

// --- cards

const gp_card_property properties[] = {
    {"name", NULL},
    {"architecture", NULL},
    {"major_version", NULL},
    {"minor_version", NULL},
    {"max_compute_units", NULL},
    {"max_work_group_size", "1024"},
    {"local_mem_size", NULL},
    {"global_mem_size", NULL},
    {"max_mem_alloc_size", NULL},
    {"integrated", "0"},
    {"onednn_optimized_gemm", NULL},
    {NULL, NULL},
};

using slots = card_slots<ggml_backend_sycl_device_context, max_cards>;

ggml_sycl_device_info infos; // of all cards, open or not

const ggml_sycl_device_info & ggml_sycl_info() {
    return infos;
}

ggml_backend_reg_t ggml_backend_sycl_reg() {
    return slots::reg();
}

int device_of(ggml_backend_dev_t dev) {
    return ((ggml_backend_sycl_device_context *) dev->context)->device;
}

const sycl::device & gp_device_of(ggml_backend_buffer_type_t buft) {
    return dpct::dev_mgr::instance().devices[((ggml_backend_sycl_buffer_type_context *) buft->context)->device];
}

int architecture(const std::string & name) {
    static const char * const names[] = {
#define GP_X(name) "intel_gpu_" #name,
        GP_SYCL_ARCHITECTURES(GP_X)
#undef GP_X
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (name == names[i]) {
            return (int) i;
        }
    }
    card_refused("architecture: expected SYCL's name of one of Intel's, such as intel_gpu_acm_g10");
}

// Some of upstream's functions ask for the current device: it is the one that the question is about.
bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    current_device = device_of(dev);
    return ggml_backend_sycl_device_interface.supports_op(dev, op);
}

size_t get_alloc_size(ggml_backend_buffer_type_t buft, const ggml_tensor * tensor) {
    current_device = ((ggml_backend_sycl_buffer_type_context *) buft->context)->device;
    return ggml_backend_sycl_buffer_type_interface.get_alloc_size(buft, tensor);
}

ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t dev) {
    ggml_backend_buffer_type_t buft = ggml_backend_sycl_device_interface.get_buffer_type(dev);
    buft->iface.get_alloc_size = get_alloc_size;
    return buft;
}

// Older releases offload from a constant number of rows on.
template <class Context> auto set_min_batch_size(Context & context, int) -> decltype(context.op_offload_min_batch_size, void()) {
    context.op_offload_min_batch_size = 32;
}
template <class Context> void set_min_batch_size(Context &, long) {}

ggml_backend_dev_t open(const card_values & values) {
    const int i = slots::find();
    sycl_card card;
    card.name                  = values.text("name");
    card.architecture          = architecture(values.text("architecture"));
    card.major_version         = (int) values.number("major_version");
    card.minor_version         = (int) values.number("minor_version");
    card.max_compute_units     = (int) values.number("max_compute_units");
    card.max_work_group_size   = (int) values.number("max_work_group_size");
    card.local_mem_size        = (size_t) values.number("local_mem_size");
    card.global_mem_size       = (size_t) values.number("global_mem_size");
    card.max_mem_alloc_size    = (size_t) values.number("max_mem_alloc_size");
    card.integrated            = (int) values.number("integrated");
    card.onednn_optimized_gemm = values.flag("onednn_optimized_gemm");
    if (card.max_compute_units < 1 || card.global_mem_size < 1) {
        card_refused("max_compute_units, global_mem_size: expected a positive number");
    }

    toolkit[i]   = card;
    first_device = i;
    gp_ggml_check_sycl();
    const ggml_sycl_device_info alone = ggml_sycl_init(); // as the only device
    first_device = 0;
    infos.devices[i]              = alone.devices[0];
    infos.max_work_group_sizes[i] = alone.max_work_group_sizes[0];
    infos.device_count            = max_cards;

    ggml_backend_sycl_device_context & context = slots::all()[i].context;
    context.device      = i;
    context.name        = GP_CARD_NAME + std::to_string(i);
    context.description = card.name;
    set_min_batch_size(context, 0);
    ggml_backend_device_i iface = ggml_backend_sycl_device_interface;
    iface.supports_op     = supports_op;
    iface.get_buffer_type = get_buffer_type;
    return slots::open(i, iface);
}

const card_registration registration({GP_CARD_NAME, properties, open, slots::close});

} // namespace
} // namespace gp

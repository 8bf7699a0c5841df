// Huawei's NPUs: ggml-cann. Upstream's build is for one family of them, which its functions go by.
#include "card.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace gp {
namespace {

// --- stubs of the toolkit

typedef int aclError;
enum { ACL_SUCCESS = 0, ACL_MEM_HANDLE_TYPE_NONE = 0, ACL_MEM_ALLOCATION_TYPE_PINNED = 0, ACL_HBM_MEM_HUGE = 0 };
enum { ACL_HBM_MEM = 0, ACL_MEM_LOCATION_TYPE_DEVICE = 1, ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };
enum aclDataType { ACL_DT_UNDEFINED = -1, ACL_FLOAT, ACL_FLOAT16 };

struct aclrtPhysicalMemProp {
    int handleType, allocationType, memAttr;
    struct { int id, type; } location;
    uint64_t reserve;
};
struct aclIntArray { int64_t ne[2]; };

constexpr int max_cards = 16; // GGML_CANN_MAX_DEVICES

const char * aclGetRecentErrMsg() { return ""; }
aclError aclrtGetDevice(int32_t * id) { *id = 0; return ACL_SUCCESS; }
aclError aclrtSetDevice(int32_t) { return ACL_SUCCESS; }
aclError aclrtGetDeviceCount(uint32_t * n) { *n = max_cards; return ACL_SUCCESS; }
aclError aclrtMemGetAllocationGranularity(const aclrtPhysicalMemProp *, int, size_t * size) { *size = 2 << 20; return ACL_SUCCESS; }
aclError aclrtGetMemInfo(int, size_t * free, size_t * total) { *free = *total = 0; return ACL_SUCCESS; }

// The bytes of a weight in tiles of 16 x 16.
const aclIntArray * aclCreateIntArray(const int64_t * ne, int) { return new aclIntArray{{ne[0], ne[1]}}; }
aclError aclDestroyIntArray(const aclIntArray * of) { delete of; return ACL_SUCCESS; }
aclDataType ggml_cann_type_mapping(ggml_type type) { return type == GGML_TYPE_F16 ? ACL_FLOAT16 : ACL_FLOAT; }
template <class Size> aclError aclnnCalculateMatmulWeightSizeV2(const aclIntArray * of, aclDataType type, Size * size) {
    *size = (Size) (GGML_PAD(of->ne[0], 16) * GGML_PAD(of->ne[1], 16) * (type == ACL_FLOAT16 ? 2 : 4));
    return ACL_SUCCESS;
}

struct ggml_cann_device_info;
const ggml_cann_device_info & ggml_cann_info();
ggml_backend_reg_t ggml_backend_cann_reg();

// A simulated device counts its memory itself.
void ggml_backend_cann_get_device_memory(int32_t, size_t * free, size_t * total) { *free = *total = 0; }

#include GP_CUT

// --- cards

const gp_card_property properties[] = {
    {"name", NULL},
    {"ACL_HBM_MEM", NULL},
    {NULL, NULL},
};

using slots = card_slots<ggml_backend_cann_device_context, max_cards>;

const ggml_cann_device_info & ggml_cann_info() {
    static ggml_cann_device_info info = ggml_cann_init();
    return info;
}

ggml_backend_reg_t ggml_backend_cann_reg() {
    return slots::reg();
}

// Older releases offload from a constant number of rows on.
template <class Context> auto set_min_batch_size(Context & context, int) -> decltype(context.op_offload_min_batch_size, void()) {
    context.op_offload_min_batch_size = 32;
}
template <class Context> void set_min_batch_size(Context &, long) {}

ggml_backend_dev_t open(const card_values & values) {
    const int i = slots::find();
    values.number("ACL_HBM_MEM");
    ggml_backend_cann_device_context & context = slots::all()[i].context;
    context.device      = i;
    context.name        = GP_CARD_NAME + std::to_string(i);
    context.description = values.text("name");
    set_min_batch_size(context, 0);
    return slots::open(i, ggml_backend_cann_device_interface);
}

const card_registration registration({GP_CARD_NAME, properties, open, slots::close});

} // namespace
} // namespace gp

// NVIDIA's cards, and with GGML_USE_HIP or GGML_USE_MUSA those of AMD and Moore Threads: ggml-cuda.
// Properties have the names of cudaDeviceProp's fields.
#include "card.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h" // struct ggml_cgraph

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gp {
namespace {

#define __host__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

// --- stubs of the toolkit

typedef int cudaError_t;
typedef int cublasStatus_t;
typedef int CUdevice;
typedef int CUresult;
typedef void * cudaStream_t;
typedef void * cudaEvent_t;

enum { cudaSuccess = 0, CUDA_SUCCESS = 0, CUBLAS_STATUS_SUCCESS = 0 };
enum cudaDeviceAttr { cudaDevAttrCooperativeLaunch };
enum CUdevice_attribute { CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED };
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };
enum { cudaDeviceScheduleSpin = 1, cudaEventDisableTiming = 2 };

struct CUmemAllocationProp {
    int type;
    struct { int type, id; } location;
};

struct cudaDeviceProp {
    char   name[256];
    char   gcnArchName[256];
    int    major;
    int    minor;
    int    multiProcessorCount;
    size_t sharedMemPerBlock;
    size_t sharedMemPerBlockOptin;
    int    warpSize;
    int    integrated;
    size_t totalGlobalMem;
};

constexpr int max_cards = 16; // GGML_CUDA_MAX_DEVICES

std::array<cudaDeviceProp, max_cards> props;
int device_now = 0; // whose properties the toolkit is asked for while it is initialised

const char * cudaGetErrorString(cudaError_t) { return ""; }
const char * cublas_get_error_str(cublasStatus_t) { return ""; }
const char * cu_get_error_str(CUresult) { return ""; }
CUresult cuGetErrorString(CUresult, const char **) { return CUDA_SUCCESS; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int * n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int * id) { *id = device_now; return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaSetDeviceFlags(int) { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int * can, int, int) { *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp * prop, int id) { *prop = props[device_now + id]; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int * value, cudaDeviceAttr, int) { *value = 1; return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t * free, size_t * total) { *free = *total = 0; return cudaSuccess; }
CUresult cuDeviceGet(CUdevice * device, int id) { *device = id; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int * value, CUdevice_attribute, CUdevice) { *value = 1; return CUDA_SUCCESS; }
CUresult cuMemGetAllocationGranularity(size_t * size, const CUmemAllocationProp *, int) { *size = 2 << 20; return CUDA_SUCCESS; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t * event, unsigned) { *event = nullptr; return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

// What graph_optimize looks at.
struct ggml_cuda_stream_context;
struct ggml_backend_cuda_context {
    int                        device = 0;
    ggml_cuda_stream_context & stream_context();
};

// Kernels of attention: only whether there is one counts.
template <int D, ggml_type type_K, ggml_type type_V>
void ggml_cuda_flash_attn_ext_vec_case(ggml_backend_cuda_context &, ggml_tensor *) {}

// The pairs of K and V that upstream's default build (GGML_CUDA_FA_QUANTS) has vector kernels for. They decide about
// memory, not about support.
#define GP_FA_ALL_V(K, F16_, Q4_0_, Q8_0_, BF16_)                                                                        \
    constexpr bool GGML_CUDA_FA_##K##_F16 = F16_, GGML_CUDA_FA_##K##_Q4_0 = Q4_0_, GGML_CUDA_FA_##K##_Q4_1 = false,       \
                   GGML_CUDA_FA_##K##_Q5_0 = false, GGML_CUDA_FA_##K##_Q5_1 = false, GGML_CUDA_FA_##K##_Q8_0 = Q8_0_,     \
                   GGML_CUDA_FA_##K##_BF16 = BF16_;
GP_FA_ALL_V(F16,  true,  false, false, false)
GP_FA_ALL_V(Q4_0, false, true,  false, false)
GP_FA_ALL_V(Q4_1, false, false, false, false)
GP_FA_ALL_V(Q5_0, false, false, false, false)
GP_FA_ALL_V(Q5_1, false, false, false, false)
GP_FA_ALL_V(Q8_0, false, false, true,  false)
GP_FA_ALL_V(BF16, false, false, false, true)

struct ggml_cuda_device_info;
const ggml_cuda_device_info & ggml_cuda_info();
ggml_backend_reg_t ggml_backend_cuda_reg();

// A simulated device counts its memory itself.
void ggml_backend_cuda_device_get_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; }

#include GP_CUT

// --- cards

const gp_card_property properties[] = {
    {"name", NULL},
#ifdef GGML_USE_HIP
    {"gcnArchName", NULL},
#endif
    {"major", NULL},
    {"minor", NULL},
    {"multiProcessorCount", NULL},
    {"sharedMemPerBlock", "49152"},
    {"sharedMemPerBlockOptin", NULL},
    {"warpSize", "32"},
    {"integrated", "0"},
    {"totalGlobalMem", NULL},
    {NULL, NULL},
};

using slots = card_slots<ggml_backend_cuda_device_context, max_cards>;

ggml_cuda_device_info infos; // of all cards, open or not

const ggml_cuda_device_info & ggml_cuda_info() {
    return infos;
}

ggml_backend_reg_t ggml_backend_cuda_reg() {
    return slots::reg();
}

// Newer releases may show a physical device as several.
template <class Info> auto set_physical_device(Info & info, int device, int) -> decltype(info.devices[0].physical_device, void()) {
    info.devices[device].physical_device = device;
}
template <class Info> void set_physical_device(Info &, int, long) {}

// Older releases offload from a constant number of rows on.
template <class Context> auto set_min_batch_size(Context & context, int) -> decltype(context.op_offload_min_batch_size, void()) {
    context.op_offload_min_batch_size = 32;
}
template <class Context> void set_min_batch_size(Context &, long) {}

ggml_backend_dev_t open(const card_values & values) {
    const int device = slots::find();

    cudaDeviceProp prop = {};
    snprintf(prop.name, sizeof(prop.name), "%s", values.text("name").c_str());
#ifdef GGML_USE_HIP
    snprintf(prop.gcnArchName, sizeof(prop.gcnArchName), "%s", values.text("gcnArchName").c_str());
#endif
    prop.major                  = (int) values.number("major");
    prop.minor                  = (int) values.number("minor");
    prop.multiProcessorCount    = (int) values.number("multiProcessorCount");
    prop.sharedMemPerBlock      = (size_t) values.number("sharedMemPerBlock");
    prop.sharedMemPerBlockOptin = (size_t) values.number("sharedMemPerBlockOptin");
    prop.warpSize               = (int) values.number("warpSize");
    prop.integrated             = (int) values.number("integrated");
    prop.totalGlobalMem         = (size_t) values.number("totalGlobalMem");

    props[device] = prop;
    device_now    = device;
    const ggml_cuda_device_info alone = ggml_cuda_init(); // as the only device
    device_now    = 0;
    infos.devices[device] = alone.devices[0];
    infos.device_count    = max_cards;
    set_physical_device(infos, device, 0);

    ggml_backend_cuda_device_context & context = slots::all()[device].context;
    context.device      = device;
    context.name        = GP_CARD_NAME + std::to_string(device);
    context.description = prop.name;
    set_min_batch_size(context, 0);
    return slots::open(device, ggml_backend_cuda_device_interface);
}

#ifdef GP_HAS_ggml_backend_cuda_graph_optimize
// Only with an environment variable are nodes computed side by side.
ggml_cuda_stream_context & ggml_backend_cuda_context::stream_context() {
    static thread_local ggml_cuda_stream_context it;
    return it;
}

void order(ggml_backend_dev_t dev, ggml_cgraph * graph, card_keeper keeper) {
    ggml_backend_cuda_context context;
    context.device = static_cast<ggml_backend_cuda_device_context *>(dev->context)->device;
    ggml_backend backend = {};
    backend.device  = dev;
    backend.context = &context;
    card_order_by(ggml_backend_cuda_graph_optimize, &backend, graph, keeper);
}
#else
constexpr void (*order)(ggml_backend_dev_t, ggml_cgraph *, card_keeper) = nullptr;
#endif

const card_registration registration({GP_CARD_NAME, properties, open, slots::close, order});

} // namespace
} // namespace gp

// Adapters of Dawn: ggml-webgpu. Properties have the names of WebGPU's limits and of GPUAdapterInfo.
#include "card.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace gp {
namespace {

// --- stubs of the toolkit

namespace wgpu {
struct StringView { operator const char *() const { return ""; } };

struct Limits {
    uint64_t maxBufferSize, maxStorageBufferBindingSize;
    uint32_t minStorageBufferOffsetAlignment, minUniformBufferOffsetAlignment;
    uint32_t maxComputeWorkgroupStorageSize, maxComputeInvocationsPerWorkgroup, maxComputeWorkgroupSizeX;
    uint32_t maxComputeWorkgroupsPerDimension;
};

enum class FeatureName { ShaderF16, Subgroups, ChromiumExperimentalSubgroupMatrix, ImplicitDeviceSynchronization, TimestampQuery };
enum class WGSLLanguageFeatureName { Packed4x8IntegerDotProduct };
enum class CallbackMode { AllowSpontaneous };
enum class RequestDeviceStatus { Success, Error };
enum class RequestAdapterStatus { Success, Error };
enum class DeviceLostReason { Unknown, Destroyed };
enum class ErrorType { Unknown };
enum class BufferUsage { CopyDst = 1, CopySrc = 2, Uniform = 4, Storage = 8, MapRead = 16, MapWrite = 32 };
enum class SubgroupMatrixComponentType { F32, F16 };

inline BufferUsage operator|(BufferUsage a, BufferUsage b) { return BufferUsage((int) a | (int) b); }

struct SubgroupMatrixConfig {
    SubgroupMatrixComponentType componentType, resultComponentType;
    uint32_t                    M, N, K;
};

struct AdapterPropertiesSubgroupMatrixConfigs {
    const SubgroupMatrixConfig * configs     = nullptr;
    size_t                       configCount = 0;
};

struct AdapterInfo {
    AdapterPropertiesSubgroupMatrixConfigs * nextInChain = nullptr;
    std::string vendor, architecture, device, description;
    uint32_t    vendorID = 0, deviceID = 0, subgroupMinSize = 0, subgroupMaxSize = 0;
};

// What is not looked into.
struct object {
    bool is = false;

    object() = default;
    object(std::nullptr_t) {}
    operator bool() const { return is; }
    bool operator!=(std::nullptr_t) const { return is; }
    bool operator==(std::nullptr_t) const { return !is; }
    void Destroy() {}
};

struct Buffer : object { using object::object; };
struct Queue : object { using object::object; };
struct ComputePipeline : object { using object::object; };
struct Future {};
struct DawnTogglesDescriptor {
    const char * const * enabledToggles  = nullptr;
    const char * const * disabledToggles = nullptr;
    size_t enabledToggleCount = 0, disabledToggleCount = 0;
};
struct RequestAdapterOptions { const void * nextInChain = nullptr; };
struct SupportedFeatures {
    size_t              featureCount = 0;
    const FeatureName * features     = nullptr;
};

struct Device : object {
    using object::object;

    Queue GetQueue() const { return {}; }
};

struct DeviceDescriptor {
    const void * requiredLimits       = nullptr;
    const void * nextInChain          = nullptr;
    const FeatureName * requiredFeatures = nullptr;
    size_t       requiredFeatureCount = 0;

    template <class... T> void SetDeviceLostCallback(T...) {}
    template <class... T> void SetUncapturedErrorCallback(T...) {}
};

struct Adapter : object {
    Limits               limits;
    AdapterInfo          info;
    SubgroupMatrixConfig config;    // M is 0 without matrices
    bool                 subgroups;

    using object::object;

    bool HasFeature(FeatureName what) const {
        switch (what) {
            case FeatureName::Subgroups:                          return subgroups;
            case FeatureName::ChromiumExperimentalSubgroupMatrix: return config.M > 0;
            default:                                              return true;
        }
    }

    void GetLimits(Limits * to) const { *to = limits; }
    void GetFeatures(SupportedFeatures *) const {}

    void GetInfo(AdapterInfo * to) const {
        AdapterPropertiesSubgroupMatrixConfigs * chained = to->nextInChain;
        *to = info;
        if (chained) {
            chained->configs     = &config;
            chained->configCount = 1;
        }
    }

    template <class Call> Future RequestDevice(const DeviceDescriptor *, CallbackMode, Call call) const {
        Device device;
        device.is = true;
        call(RequestDeviceStatus::Success, device, StringView());
        return {};
    }
};

Adapter adapter_now; // that the toolkit has while a device is made

struct Instance : object {
    using object::object;

    template <class... T> int WaitAny(T...) { return 0; }
    bool HasWGSLLanguageFeature(WGSLLanguageFeatureName) const { return true; }

    template <class Call> Future RequestAdapter(const RequestAdapterOptions *, CallbackMode, Call call) const {
        call(RequestAdapterStatus::Success, adapter_now, StringView());
        return {};
    }
};
} // namespace wgpu

// Kernels and buffers are not made.
template <class... T> void ggml_webgpu_init_memset_pipeline(T &&...) {}
template <class... T> void ggml_webgpu_create_buffer(T &&...) {}

struct webgpu_global_context_struct;
struct webgpu_context_struct {
    std::shared_ptr<webgpu_global_context_struct> global_ctx;
};

#include GP_CUT

// --- cards

constexpr int max_cards = 16; // upstream has one device

const gp_card_property properties[] = {
    {"name", NULL},
    {"vendor", NULL},
    {"maxBufferSize", NULL},
    {"maxStorageBufferBindingSize", NULL},
    {"minStorageBufferOffsetAlignment", "256"},
    {"maxComputeWorkgroupStorageSize", "32768"},
    {"maxComputeInvocationsPerWorkgroup", "1024"},
    {"maxComputeWorkgroupsPerDimension", "65535"},
    {"subgroups", "1"},
    {"subgroupMinSize", NULL},
    {"subgroupMaxSize", NULL},
    {"subgroupMatrixM", "0"},
    {"subgroupMatrixN", "0"},
    {"subgroupMatrixK", "0"},
    {NULL, NULL},
};

using slots = card_slots<ggml_backend_webgpu_device_context, max_cards>;

std::array<ggml_backend_buffer_type, max_cards> buffer_types;

// Upstream has one device, and so one buffer type that it takes.
ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t dev) {
    for (int i = 0; i < max_cards; i++) {
        if (&slots::all()[i].device == dev) {
            buffer_types[i]        = *ggml_backend_webgpu_device_i.get_buffer_type(dev);
            buffer_types[i].device = dev;
            return &buffer_types[i];
        }
    }
    return nullptr;
}

bool supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) {
    return ggml_backend_webgpu_device_i.supports_buft(dev, buft) && buft->device == dev;
}

ggml_backend_dev_t open(const card_values & values) {
    const int i = slots::find();
    wgpu::Adapter adapter;
    adapter.is                                       = true;
    adapter.info.vendor                              = values.text("vendor");
    adapter.info.subgroupMinSize                     = (uint32_t) values.number("subgroupMinSize");
    adapter.info.subgroupMaxSize                     = (uint32_t) values.number("subgroupMaxSize");
    adapter.subgroups                                = values.flag("subgroups");
    adapter.config.componentType                     = wgpu::SubgroupMatrixComponentType::F16;
    adapter.config.resultComponentType               = wgpu::SubgroupMatrixComponentType::F16;
    adapter.config.M                                 = (uint32_t) values.number("subgroupMatrixM");
    adapter.config.N                                 = (uint32_t) values.number("subgroupMatrixN");
    adapter.config.K                                 = (uint32_t) values.number("subgroupMatrixK");
    adapter.limits.maxBufferSize                     = (uint64_t) values.number("maxBufferSize");
    adapter.limits.maxStorageBufferBindingSize       = (uint64_t) values.number("maxStorageBufferBindingSize");
    adapter.limits.minStorageBufferOffsetAlignment   = (uint32_t) values.number("minStorageBufferOffsetAlignment");
    adapter.limits.minUniformBufferOffsetAlignment   = 256;
    adapter.limits.maxComputeWorkgroupStorageSize    = (uint32_t) values.number("maxComputeWorkgroupStorageSize");
    adapter.limits.maxComputeInvocationsPerWorkgroup = (uint32_t) values.number("maxComputeInvocationsPerWorkgroup");
    adapter.limits.maxComputeWorkgroupSizeX          = adapter.limits.maxComputeInvocationsPerWorkgroup;
    adapter.limits.maxComputeWorkgroupsPerDimension  = (uint32_t) values.number("maxComputeWorkgroupsPerDimension");

    wgpu::adapter_now = adapter;
    ggml_backend_webgpu_reg_context reg = {};
    reg.webgpu_global_ctx = std::make_shared<webgpu_global_context_struct>();
    create_webgpu_device(&reg);

    ggml_backend_webgpu_device_context & context = slots::all()[i].context;
    context.webgpu_global_ctx = reg.webgpu_global_ctx;
    context.device_name       = GP_CARD_NAME + std::to_string(i);
    context.device_desc       = values.text("name");
    ggml_backend_device_i iface = ggml_backend_webgpu_device_i;
    iface.get_buffer_type = get_buffer_type;
    iface.supports_buft   = supports_buft;
    return slots::open(i, iface);
}

const card_registration registration({GP_CARD_NAME, properties, open, slots::close});

} // namespace
} // namespace gp

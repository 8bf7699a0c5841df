// Devices under Vulkan: ggml-vulkan. Properties have the names of Vulkan's structures' fields.
//
// A card is initialised by upstream's ggml_vk_get_device, whole, with stubs that answer its queries. It also makes the
// pipelines, but compiles no shader: which ones there are decides about some ops.
#include "card.h"
#include "vulkan_stubs.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h" // struct ggml_cgraph

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <sstream>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#define VK_NULL_HANDLE nullptr

namespace gp {
namespace {

constexpr int max_cards = 16; // GGML_VK_MAX_DEVICES

std::array<card_values, max_cards> values_of;

// --- queries about a device

bool has_extension(const card_values & values, const std::string & name) {
    return ("+" + values.text("extensions") + "+").find("+" + name + "+") != std::string::npos;
}

void set_text(vk::text & to, const std::string & from) {
    snprintf(to.chars, sizeof(to.chars), "%s", from.c_str());
}

struct component {
    const char *       name;
    VkComponentTypeKHR type;
};
constexpr component components[] = {
    {"f16",  VK_COMPONENT_TYPE_FLOAT16_KHR},
    {"f32",  VK_COMPONENT_TYPE_FLOAT32_KHR},
    {"bf16", VK_COMPONENT_TYPE_BFLOAT16_KHR},
    {"s8",   VK_COMPONENT_TYPE_SINT8_KHR},
    {"s32",  VK_COMPONENT_TYPE_SINT32_KHR},
    {"u8",   VK_COMPONENT_TYPE_UINT8_KHR},
    {"u32",  VK_COMPONENT_TYPE_UINT32_KHR},
};

VkComponentTypeKHR component_of(const std::string & text, const std::string & shape) {
    for (const component & one : components) {
        if (text == one.name) {
            return one.type;
        }
    }
    card_refused("cooperativeMatrix=" + shape + ": expected shapes like 16x16x16/f16/f32");
}

// The shapes of matrices of a subgroup: M x N x K, the types of A and B, those of C and the result.
std::vector<VkCooperativeMatrixPropertiesKHR> cooperative_matrices(const card_values & values) {
    std::vector<VkCooperativeMatrixPropertiesKHR> found;
    std::istringstream shapes(values.text("cooperativeMatrix"));
    for (std::string shape; std::getline(shapes, shape, '+');) {
        VkCooperativeMatrixPropertiesKHR made;
        char factors[8] = {}, result[8] = {};
        if (sscanf(shape.c_str(), "%ux%ux%u/%7[a-z0-9]/%7[a-z0-9]", &made.MSize, &made.NSize, &made.KSize, factors, result) != 5) {
            component_of("", shape);
        }
        made.AType = made.BType      = component_of(factors, shape);
        made.CType = made.ResultType = component_of(result, shape);
        made.scope = VK_SCOPE_SUBGROUP_KHR;
        found.push_back(made);
    }
    return found;
}

// Matrices of a workgroup (NVIDIA's cooperative_matrix2). Cards with the extension have the sizes of NVIDIA's cards.
std::vector<VkCooperativeMatrixFlexibleDimensionsPropertiesNV> flexible_matrices(const card_values & values) {
    std::vector<VkCooperativeMatrixFlexibleDimensionsPropertiesNV> found;
    const auto add = [&](VkComponentTypeKHR factors, VkComponentTypeKHR result) {
        for (uint32_t invocations : {128, 256}) {
            VkCooperativeMatrixFlexibleDimensionsPropertiesNV made;
            made.MGranularity = 32;
            made.NGranularity = invocations == 128 ? 16 : 32;
            made.KGranularity = 16;
            made.AType = made.BType      = factors;
            made.CType = made.ResultType = result;
            made.scope                   = VK_SCOPE_WORKGROUP_KHR;
            made.workgroupInvocations    = invocations;
            found.push_back(made);
        }
    };
    add(VK_COMPONENT_TYPE_FLOAT16_KHR, VK_COMPONENT_TYPE_FLOAT16_KHR);
    add(VK_COMPONENT_TYPE_FLOAT16_KHR, VK_COMPONENT_TYPE_FLOAT32_KHR);
    if (has_extension(values, "VK_KHR_shader_bfloat16")) {
        add(VK_COMPONENT_TYPE_BFLOAT16_KHR, VK_COMPONENT_TYPE_FLOAT32_KHR);
    }
    return found;
}

void fill(const card_values & values, vk::PhysicalDeviceProperties & to) {
    const auto number = [&](const char * name) { return (uint32_t) values.number(name); };
    to.vendorID      = number("vendorID");
    to.deviceID      = number("deviceID");
    to.driverVersion = number("driverVersion");
    to.deviceType    = (vk::PhysicalDeviceType) number("deviceType");
    set_text(to.deviceName, values.text("name"));
    vk::PhysicalDeviceLimits & limits      = to.limits;
    limits.maxComputeSharedMemorySize      = number("maxComputeSharedMemorySize");
    limits.maxComputeWorkGroupInvocations  = number("maxComputeWorkGroupInvocations");
    limits.maxPushConstantsSize            = number("maxPushConstantsSize");
    limits.maxStorageBufferRange           = number("maxStorageBufferRange");
    limits.minStorageBufferOffsetAlignment = number("minStorageBufferOffsetAlignment");
    limits.minMemoryMapAlignment           = number("minMemoryMapAlignment");
    for (int i = 0; i < 3; i++) {
        limits.maxComputeWorkGroupCount[i] = number("maxComputeWorkGroupCount");
    }
}

// A structure of a chain. The features of an extension are asked for only if the device has it, so they are there.
void fill(const card_values & values, VkBaseOutStructure * any) {
    const auto number = [&](const char * name) { return (uint32_t) values.number(name); };
#define GP_AS(type) case type::number_in_chains: { auto & to = *reinterpret_cast<type *>(any);
#define GP_END break; }
    switch (any->sType) {
        GP_AS(vk::PhysicalDeviceProperties2) fill(values, to.properties); GP_END
        GP_AS(vk::PhysicalDeviceMaintenance3Properties)
            to.maxMemoryAllocationSize = (uint64_t) values.number("maxMemoryAllocationSize"); GP_END
        GP_AS(vk::PhysicalDeviceMaintenance4Properties)
            to.maxBufferSize = (uint64_t) values.number("maxBufferSize"); GP_END
        GP_AS(vk::PhysicalDeviceSubgroupProperties)
            to.subgroupSize        = number("subgroupSize");
            to.supportedStages     = vk::ShaderStageFlags(number("subgroupSupportedStages"));
            to.supportedOperations = vk::SubgroupFeatureFlags(number("subgroupSupportedOperations")); GP_END
        GP_AS(vk::PhysicalDeviceDriverProperties) to.driverID = (vk::DriverId) number("driverID"); GP_END
        GP_AS(vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV)
            to.shaderSMCount    = number("shaderSMCount");
            to.shaderWarpsPerSM = number("shaderWarpsPerSM"); GP_END
        GP_AS(vk::PhysicalDeviceShaderCoreProperties2AMD)
            to.activeComputeUnitCount = number("activeComputeUnitCount"); GP_END
        GP_AS(vk::PhysicalDeviceShaderCorePropertiesAMD) to.wavefrontsPerSimd = number("wavefrontsPerSimd"); GP_END
        GP_AS(vk::PhysicalDeviceVulkan11Properties)
            to.subgroupSize                = number("subgroupSize");
            to.subgroupSupportedStages     = vk::ShaderStageFlags(number("subgroupSupportedStages"));
            to.subgroupSupportedOperations = vk::SubgroupFeatureFlags(number("subgroupSupportedOperations"));
            to.maxMemoryAllocationSize     = (uint64_t) values.number("maxMemoryAllocationSize"); GP_END
        GP_AS(vk::PhysicalDeviceVulkan12Properties)
            to.shaderRoundingModeRTEFloat16 = number("shaderRoundingModeRTEFloat16");
            to.shaderDenormPreserveFloat16  = number("shaderDenormPreserveFloat16"); GP_END
        GP_AS(vk::PhysicalDeviceSubgroupSizeControlPropertiesEXT)
            to.minSubgroupSize            = number("minSubgroupSize");
            to.maxSubgroupSize            = number("maxSubgroupSize");
            to.requiredSubgroupSizeStages = vk::ShaderStageFlags(number("requiredSubgroupSizeStages")); GP_END
        GP_AS(vk::PhysicalDeviceShaderIntegerDotProductPropertiesKHR)
            to.integerDotProduct4x8BitPackedSignedAccelerated =
                number("integerDotProduct4x8BitPackedSignedAccelerated");
            to.integerDotProduct4x8BitPackedMixedSignednessAccelerated =
                number("integerDotProduct4x8BitPackedMixedSignednessAccelerated"); GP_END
        GP_AS(vk::PhysicalDeviceExternalMemoryHostPropertiesEXT)
            to.minImportedHostPointerAlignment = number("minImportedHostPointerAlignment"); GP_END
        GP_AS(vk::PhysicalDeviceCooperativeMatrix2PropertiesNV)
            to.cooperativeMatrixFlexibleDimensionsMaxDimension =
                number("cooperativeMatrixFlexibleDimensionsMaxDimension"); GP_END
        GP_AS(VkPhysicalDeviceFeatures2) to.features.shaderInt64 = number("shaderInt64"); GP_END
        GP_AS(VkPhysicalDeviceVulkan11Features) to.storageBuffer16BitAccess = number("storageBuffer16BitAccess"); GP_END
        GP_AS(VkPhysicalDeviceVulkan12Features)
            to.shaderFloat16       = number("shaderFloat16");
            to.bufferDeviceAddress = number("bufferDeviceAddress");
            to.vulkanMemoryModel   = number("vulkanMemoryModel");
            to.runtimeDescriptorArray = to.storageBuffer8BitAccess = VK_TRUE; GP_END
        GP_AS(VkPhysicalDeviceSubgroupSizeControlFeaturesEXT)
            to.subgroupSizeControl  = number("subgroupSizeControl");
            to.computeFullSubgroups = number("computeFullSubgroups"); GP_END
        GP_AS(VkPhysicalDevicePipelineRobustnessFeaturesEXT) to.pipelineRobustness = VK_TRUE; GP_END
        GP_AS(VkPhysicalDeviceCooperativeMatrixFeaturesKHR) to.cooperativeMatrix = VK_TRUE; GP_END
        GP_AS(VkPhysicalDeviceShaderBfloat16FeaturesKHR) to.shaderBFloat16Type = VK_TRUE; GP_END
        GP_AS(VkPhysicalDeviceMaintenance4Features) to.maintenance4 = VK_TRUE; GP_END
        GP_AS(VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR) to.shaderIntegerDotProduct = VK_TRUE; GP_END
        GP_AS(VkPhysicalDeviceShader64BitIndexingFeaturesEXT) to.shader64BitIndexing = VK_TRUE; GP_END
        GP_AS(VkPhysicalDeviceCooperativeMatrix2FeaturesNV)
            to.cooperativeMatrixWorkgroupScope = to.cooperativeMatrixFlexibleDimensions = VK_TRUE;
            to.cooperativeMatrixReductions = to.cooperativeMatrixConversions = VK_TRUE;
            to.cooperativeMatrixPerElementOperations = to.cooperativeMatrixTensorAddressing = VK_TRUE;
            to.cooperativeMatrixBlockLoads = VK_TRUE; GP_END
        default: break; // decides about nothing here
    }
#undef GP_AS
#undef GP_END
}

} // namespace

namespace vk {
namespace {

std::vector<ExtensionProperties> PhysicalDevice::enumerateDeviceExtensionProperties() const {
    std::vector<ExtensionProperties> found;
    std::istringstream names(values->text("extensions"));
    for (std::string name; std::getline(names, name, '+');) {
        found.emplace_back();
        set_text(found.back().extensionName, name);
    }
    return found;
}

std::vector<QueueFamilyProperties> PhysicalDevice::getQueueFamilyProperties() const {
    QueueFamilyProperties all;
    all.queueFlags = QueueFlagBits::eGraphics | QueueFlagBits::eCompute | QueueFlagBits::eTransfer;
    all.queueCount = 1;
    return {all};
}

void PhysicalDevice::getProperties2(void * chain) const {
    for (auto * any = static_cast<VkBaseOutStructure *>(chain); any; any = any->pNext) {
        fill(*values, any);
    }
}

PhysicalDeviceProperties2 PhysicalDevice::getProperties2() const {
    PhysicalDeviceProperties2 all;
    getProperties2(&all);
    return all;
}

PhysicalDeviceProperties PhysicalDevice::getProperties() const {
    return getProperties2().properties;
}

PhysicalDeviceFeatures PhysicalDevice::getFeatures() const {
    VkPhysicalDeviceFeatures2 all;
    getProperties2(&all);
    return all.features;
}

std::vector<PhysicalDevice> Instance::enumeratePhysicalDevices() const {
    std::vector<PhysicalDevice> found(max_cards);
    for (int i = 0; i < max_cards; i++) {
        found[i].values = &values_of[i];
    }
    return found;
}

} // namespace
} // namespace vk

namespace {

template <class One> void listed(const std::vector<One> & all, uint32_t * n, One * to) {
    if (to) {
        std::copy_n(all.begin(), std::min<size_t>(*n, all.size()), to);
    }
    *n = (uint32_t) all.size();
}

typedef void (*PFN_vkGetDeviceFaultInfoEXT)();
typedef void (*PFN_vkSetDebugUtilsObjectNameEXT)();
typedef void (*PFN_vkQueueBeginDebugUtilsLabelEXT)();
typedef void (*PFN_vkQueueEndDebugUtilsLabelEXT)();
typedef void (*PFN_vkCmdBeginDebugUtilsLabelEXT)();
typedef void (*PFN_vkCmdEndDebugUtilsLabelEXT)();
typedef void (*PFN_vkCmdInsertDebugUtilsLabelEXT)();
typedef void (*PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(
    vk::PhysicalDevice, uint32_t *, VkCooperativeMatrixPropertiesKHR *);
typedef void (*PFN_vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV)(
    vk::PhysicalDevice, uint32_t *, VkCooperativeMatrixFlexibleDimensionsPropertiesNV *);

void vkGetPhysicalDeviceFeatures2(vk::PhysicalDevice device, VkPhysicalDeviceFeatures2 * chain) {
    device.getProperties2(chain);
}
void vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(
        vk::PhysicalDevice device, uint32_t * n, VkCooperativeMatrixPropertiesKHR * to) {
    listed(cooperative_matrices(*device.values), n, to);
}
void vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV(
        vk::PhysicalDevice device, uint32_t * n, VkCooperativeMatrixFlexibleDimensionsPropertiesNV * to) {
    listed(flexible_matrices(*device.values), n, to);
}
// The code asks for no other function of an instance whose result it uses.
vk::function vkGetInstanceProcAddr(const vk::Instance &, const char * name) {
    return strstr(name, "Flexible") ? (vk::function) vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV
                                    : (vk::function) vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR;
}
vk::function vkGetDeviceProcAddr(const vk::Device &, const char *) { return nullptr; }

} // namespace

namespace vk {
namespace {

function Instance::getProcAddr(const char * name) const {
    return vkGetInstanceProcAddr(*this, name);
}

} // namespace
} // namespace vk

namespace {

// What vulkan-shaders-gen makes of the shaders: only whether there is one counts.
struct shader {
    template <class I> const shader & operator[](I) const { return *this; }
    operator uint64_t() const { return 1; }
    operator const void *() const { return this; }
    operator const unsigned char *() const { return nullptr; }
};

struct vk_device_struct;
struct vk_pipeline_struct;
struct vk_buffer_struct;
struct vk_queue;
typedef std::shared_ptr<vk_device_struct> vk_device;

ggml_backend_reg_t ggml_backend_vk_reg();
void ggml_vk_instance_init() {}
void ggml_vk_print_gpu_info(size_t) {}
struct compiles_nothing {
    template <class... A> void operator()(A &&...) const {}
};
constexpr compiles_nothing ggml_vk_create_pipeline_func;
struct no_queue {
    template <class Queue> operator std::unique_ptr<Queue>() const { return nullptr; }
};
no_queue ggml_vk_create_queue(vk_device &, uint32_t, uint32_t, vk::PipelineStageFlags &&, bool) { return {}; }
void ggml_vk_create_queue(vk_device &, vk_queue &, uint32_t, uint32_t, vk::PipelineStageFlags &&, bool) {} // in older releases
no_queue ggml_vk_create_aliased_queue(vk_device &, const std::unique_ptr<vk_queue> &) { return {}; }
void ggml_vk_destroy_pipeline(vk::Device &, std::shared_ptr<vk_pipeline_struct> &) {}
void ggml_vk_destroy_buffer(std::shared_ptr<vk_buffer_struct> &) {}

// A simulated device counts its memory itself.
void ggml_backend_vk_get_device_memory(int, size_t * free, size_t * total) { *free = *total = 0; }
std::string ggml_backend_vk_get_device_pci_id(int) { return ""; }
vk::PhysicalDeviceType ggml_backend_vk_get_device_type(int device) {
    return (vk::PhysicalDeviceType) values_of[device].number("deviceType");
}

// Upstream's list of pipelines takes compilers half a minute to optimise; it runs once for a card.
#pragma GCC push_options
#pragma GCC optimize("O0")
#ifdef __clang__
#pragma clang optimize off
#endif
#include GP_CUT
#ifdef __clang__
#pragma clang optimize on
#endif
#pragma GCC pop_options

// --- cards

#define GP_TRUE "1"
const gp_card_property properties[] = {
    {"name", NULL},
    {"vendorID", NULL},
    {"deviceID", "0"},
    {"driverID", NULL},
    {"driverVersion", "0"},
    {"deviceType", "2"}, // VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
    {"extensions", "VK_KHR_16bit_storage+VK_KHR_shader_float16_int8+VK_KHR_maintenance4+VK_EXT_subgroup_size_control"
                   "+VK_KHR_shader_integer_dot_product+VK_EXT_pipeline_robustness+VK_EXT_external_memory_host"},
    {"maxComputeSharedMemorySize", NULL},
    {"maxComputeWorkGroupInvocations", "1024"},
    {"maxComputeWorkGroupCount", "65535"},
    {"maxPushConstantsSize", "256"},
    {"maxStorageBufferRange", "4294967295"},
    {"minStorageBufferOffsetAlignment", "16"},
    {"minMemoryMapAlignment", "64"},
    {"maxMemoryAllocationSize", NULL},
    {"maxBufferSize", NULL},
    {"subgroupSize", NULL},
    {"minSubgroupSize", NULL},
    {"maxSubgroupSize", NULL},
    {"requiredSubgroupSizeStages", "32"}, // VK_SHADER_STAGE_COMPUTE_BIT
    {"subgroupSupportedStages", "32"},
    {"subgroupSupportedOperations", "255"}, // all of Vulkan 1.1
    {"subgroupSizeControl", GP_TRUE},
    {"computeFullSubgroups", GP_TRUE},
    {"storageBuffer16BitAccess", GP_TRUE},
    {"shaderFloat16", GP_TRUE},
    {"shaderInt64", GP_TRUE},
    {"bufferDeviceAddress", GP_TRUE},
    {"vulkanMemoryModel", GP_TRUE},
    {"shaderRoundingModeRTEFloat16", GP_TRUE},
    {"shaderDenormPreserveFloat16", GP_TRUE},
    {"integerDotProduct4x8BitPackedSignedAccelerated", GP_TRUE},
    {"integerDotProduct4x8BitPackedMixedSignednessAccelerated", GP_TRUE},
    {"cooperativeMatrix", ""},
    {"cooperativeMatrixFlexibleDimensionsMaxDimension", "0"},
    {"minImportedHostPointerAlignment", "4096"},
    {"shaderSMCount", "0"},
    {"shaderWarpsPerSM", "0"},
    {"activeComputeUnitCount", "0"},
    {"wavefrontsPerSimd", "0"},
    {"memoryHeapSize", NULL},
    {NULL, NULL},
};

using slots = card_slots<ggml_backend_vk_device_context, max_cards>;

ggml_backend_reg_t ggml_backend_vk_reg() {
    return slots::reg();
}

void initialise(int device, const card_values & values) {
    if (vk_instance.devices[device]) {
        delete (ggml_backend_vk_buffer_type_context *) vk_instance.devices[device]->buffer_type.context;
    }
    vk_instance.devices[device].reset();
    values_of[device] = values;
    ggml_vk_get_device(device);
}

ggml_backend_dev_t open(const card_values & values) {
    vk_instance.device_indices.resize(max_cards);
    for (int i = 0; i < max_cards; i++) {
        vk_instance.device_indices[i] = i;
    }
    // Upstream's type of host memory is that of the first device. So this is the first card, for as long as the process
    // runs: it may be asked about while cards are opened.
    if (!vk_instance.devices[0]) {
        initialise(0, values);
        slots::all()[0].open = true;
    }
    const int device = slots::find();
    values.number("memoryHeapSize");
    initialise(device, values);
    ggml_backend_vk_device_context & context = slots::all()[device].context;
    context = {};
    gp_ggml_backend_vk_reg_get_device(&context, device, values.text("name").c_str(), 32);
    return slots::open(device, ggml_backend_vk_device_i);
}

void order(ggml_backend_dev_t dev, ggml_cgraph * graph, card_keeper keeper) {
    ggml_backend_vk_context context = {};
    context.device = ggml_vk_get_device(static_cast<ggml_backend_vk_device_context *>(dev->context)->device);
    ggml_backend backend = {};
    backend.device  = dev;
    backend.context = &context;
    card_order_by(ggml_vk_graph_optimize, &backend, graph, keeper);
}

const card_registration registration({GP_CARD_NAME, properties, open, slots::close, order});

} // namespace
} // namespace gp

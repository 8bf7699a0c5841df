// Stubs of Vulkan, for the code that is cut out of ggml-vulkan: the types that it names, and the queries about a device,
// which a card answers. Fields, constants and numbers are those of vulkan_core.h and vulkan.hpp.
#pragma once

#include "card.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <ostream>
#include <string>
#include <vector>

namespace gp {
namespace {

// --- the C interface

typedef uint32_t VkBool32;
typedef uint32_t VkFlags;
typedef int VkStructureType;
typedef int VkComponentTypeKHR;
typedef int VkScopeKHR;

enum { VK_FALSE = 0, VK_TRUE = 1 };
enum {
    VK_COMPONENT_TYPE_FLOAT16_KHR = 0, VK_COMPONENT_TYPE_FLOAT32_KHR = 1, VK_COMPONENT_TYPE_SINT8_KHR = 3,
    VK_COMPONENT_TYPE_SINT32_KHR = 5, VK_COMPONENT_TYPE_UINT8_KHR = 7, VK_COMPONENT_TYPE_UINT32_KHR = 9,
    VK_COMPONENT_TYPE_BFLOAT16_KHR = 1000141000,
};
enum { VK_SCOPE_WORKGROUP_KHR = 2, VK_SCOPE_SUBGROUP_KHR = 3 };
enum { VK_COMMAND_POOL_CREATE_TRANSIENT_BIT = 1, VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT = 2 };

struct VkBaseOutStructure {
    VkStructureType      sType;
    VkBaseOutStructure * pNext;
};

// A structure in a chain of queries. Its number only has to be its own.
template <VkStructureType number> struct chained {
    enum { number_in_chains = number };
    VkStructureType sType = number;
    void *          pNext = nullptr;
};

#define GP_VK(number, type, s_type, fields)                                                                              \
    enum { s_type = number };                                                                                            \
    struct type : chained<number> { fields };

typedef VkBool32 flag;

struct VkPhysicalDeviceFeatures {
    flag shaderInt64 = 0, shaderInt16 = 0;
};
GP_VK(1, VkPhysicalDeviceFeatures2, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, VkPhysicalDeviceFeatures features;)
GP_VK(2, VkPhysicalDeviceVulkan11Features, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
      flag storageBuffer16BitAccess = 0;)
GP_VK(3, VkPhysicalDeviceVulkan12Features, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
      flag shaderFloat16 = 0; flag bufferDeviceAddress = 0; flag vulkanMemoryModel = 0; flag storageBuffer8BitAccess = 0;
      flag runtimeDescriptorArray = 0;)
GP_VK(4, VkPhysicalDevicePipelineRobustnessFeaturesEXT, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES_EXT,
      flag pipelineRobustness = 0;)
GP_VK(5, VkPhysicalDeviceMemoryPriorityFeaturesEXT, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PRIORITY_FEATURES_EXT,
      flag memoryPriority = 0;)
GP_VK(6, VkPhysicalDeviceSubgroupSizeControlFeaturesEXT,
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT,
      flag subgroupSizeControl = 0; flag computeFullSubgroups = 0;)
GP_VK(7, VkPhysicalDeviceCooperativeMatrixFeaturesKHR, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
      flag cooperativeMatrix = 0;)
GP_VK(8, VkPhysicalDeviceCooperativeMatrix2FeaturesNV, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV,
      flag cooperativeMatrixWorkgroupScope = 0; flag cooperativeMatrixFlexibleDimensions = 0;
      flag cooperativeMatrixReductions = 0; flag cooperativeMatrixConversions = 0;
      flag cooperativeMatrixPerElementOperations = 0; flag cooperativeMatrixTensorAddressing = 0;
      flag cooperativeMatrixBlockLoads = 0;)
GP_VK(9, VkPhysicalDeviceShaderBfloat16FeaturesKHR, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
      flag shaderBFloat16Type = 0;)
GP_VK(10, VkPhysicalDeviceMaintenance4Features, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
      flag maintenance4 = 0;)
GP_VK(11, VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR,
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR, flag shaderIntegerDotProduct = 0;)
GP_VK(12, VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR,
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR, flag pipelineExecutableInfo = 0;)
GP_VK(13, VkPhysicalDeviceShader64BitIndexingFeaturesEXT,
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_64_BIT_INDEXING_FEATURES_EXT, flag shader64BitIndexing = 0;)
GP_VK(14, VkPhysicalDeviceFaultFeaturesEXT, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FAULT_FEATURES_EXT, flag deviceFault = 0;)
GP_VK(15, VkCooperativeMatrixPropertiesKHR, VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR,
      uint32_t MSize = 0; uint32_t NSize = 0; uint32_t KSize = 0; VkComponentTypeKHR AType = 0;
      VkComponentTypeKHR BType = 0; VkComponentTypeKHR CType = 0; VkComponentTypeKHR ResultType = 0;
      flag saturatingAccumulation = 0; VkScopeKHR scope = 0;)
GP_VK(16, VkCooperativeMatrixFlexibleDimensionsPropertiesNV,
      VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_FLEXIBLE_DIMENSIONS_PROPERTIES_NV,
      uint32_t MGranularity = 0; uint32_t NGranularity = 0; uint32_t KGranularity = 0; VkComponentTypeKHR AType = 0;
      VkComponentTypeKHR BType = 0; VkComponentTypeKHR CType = 0; VkComponentTypeKHR ResultType = 0;
      flag saturatingAccumulation = 0; VkScopeKHR scope = 0; uint32_t workgroupInvocations = 0;)

} // namespace

// --- the C++ interface

namespace vk {
namespace {

// What is passed to Vulkan and not looked at here.
struct ignored {
    ignored() = default;
    template <class A> ignored(std::initializer_list<int>, const A &) {}
    template <class A, class B, class C> ignored(const A &, const B &, std::initializer_list<int>, const C &) {}
    template <class... A> ignored(A &&...) {}
    template <class... A> ignored & setFlags(A &&...) { return *this; }
    template <class... A> ignored & setQueueCreateInfos(A &&...) { return *this; }
    template <class... A> ignored & setPEnabledExtensionNames(A &&...) { return *this; }
    template <class... A> ignored & setPNext(A &&...) { return *this; }
    void * pNext = nullptr;
};

template <int> struct handle {
    handle(std::nullptr_t = nullptr) {}
    explicit operator bool() const { return false; }
    bool operator==(const handle &) const { return true; }
    bool operator<(const handle &) const { return false; }
    friend std::ostream & operator<<(std::ostream & to, const handle &) { return to; }
};

template <class Bits> struct Flags {
    VkFlags bits = 0;
    Flags() = default;
    Flags(Bits one) : bits((VkFlags) one) {}
    explicit Flags(VkFlags all) : bits(all) {}
    Flags operator&(Flags other) const { return Flags(bits & other.bits); }
    Flags operator|(Flags other) const { return Flags(bits | other.bits); }
    explicit operator bool() const { return bits != 0; }
    bool operator!() const { return bits == 0; }
};

struct text {
    char chars[256] = {};
    operator const char *() const { return chars; }
    const char * data() const { return chars; }
};

enum class PhysicalDeviceType { eOther, eIntegratedGpu, eDiscreteGpu, eVirtualGpu, eCpu };
enum class DriverId {
    eAmdProprietary = 1, eAmdOpenSource, eMesaRadv, eNvidiaProprietary, eIntelProprietaryWindows,
    eIntelOpenSourceMESA, eImaginationProprietary, eQualcommProprietary, eArmProprietary, eGoogleSwiftshader,
    eGgpProprietary, eBroadcomProprietary, eMesaLlvmpipe, eMoltenvk, eCoreaviProprietary, eJuiceProprietary,
    eVerisiliconProprietary, eMesaTurnip, eMesaV3Dv, eMesaPanvk, eSamsungProprietary, eMesaVenus, eMesaDozen, eMesaNvk,
    eImaginationOpenSourceMESA, eMesaHoneykrisp,
};
enum class ComponentTypeKHR {
    eFloat16 = VK_COMPONENT_TYPE_FLOAT16_KHR, eFloat32 = VK_COMPONENT_TYPE_FLOAT32_KHR,
    eSint8 = VK_COMPONENT_TYPE_SINT8_KHR, eSint32 = VK_COMPONENT_TYPE_SINT32_KHR,
    eUint8 = VK_COMPONENT_TYPE_UINT8_KHR, eUint32 = VK_COMPONENT_TYPE_UINT32_KHR,
};
enum class ScopeKHR { eWorkgroup = VK_SCOPE_WORKGROUP_KHR, eSubgroup = VK_SCOPE_SUBGROUP_KHR };
enum class DescriptorType { eStorageBuffer = 7 };
enum class PipelineStageFlagBits { eComputeShader = 0x800, eTransfer = 0x1000 };
enum class ShaderStageFlagBits { eCompute = 0x20 };
enum class SubgroupFeatureFlagBits {
    eBasic = 1, eVote = 2, eArithmetic = 4, eBallot = 8, eShuffle = 0x10, eShuffleRelative = 0x20, eClustered = 0x40,
};
enum class QueueFlagBits { eGraphics = 1, eCompute = 2, eTransfer = 4 };
enum class DeviceQueueCreateFlagBits {};
enum class MemoryPropertyFlagBits { eDeviceLocal = 1, eHostVisible = 2, eHostCoherent = 4, eHostCached = 8 };

using PipelineStageFlags     = Flags<PipelineStageFlagBits>;
using ShaderStageFlags       = Flags<ShaderStageFlagBits>;
using SubgroupFeatureFlags   = Flags<SubgroupFeatureFlagBits>;
using QueueFlags             = Flags<QueueFlagBits>;
using DeviceQueueCreateFlags = Flags<DeviceQueueCreateFlagBits>;
using MemoryPropertyFlags    = Flags<MemoryPropertyFlagBits>;
using DeviceAddress          = uint64_t;
using DeviceSize             = uint64_t;

template <class Bits> Flags<Bits> operator|(Bits one, Bits other) { return Flags<Bits>(one) | Flags<Bits>(other); }

using Buffer              = handle<0>;
using CommandBuffer       = handle<1>;
using CommandPool         = handle<2>;
using DescriptorPool      = handle<3>;
using DescriptorSet       = handle<4>;
using DescriptorSetLayout = handle<5>;
using DeviceMemory        = handle<6>;
using Event               = handle<7>;
using Fence               = handle<8>;
using Pipeline            = handle<9>;
using PipelineLayout      = handle<10>;
using QueryPool           = handle<11>;
using Queue               = handle<12>;
using Semaphore           = handle<13>;
using ShaderModule        = handle<14>;

using CommandPoolCreateFlags                   = ignored;
using CommandPoolCreateInfo                    = ignored;
using DescriptorBindingFlags                   = ignored;
using DescriptorBufferInfo                     = ignored;
using DescriptorPoolCreateInfo                 = ignored;
using DescriptorPoolSize                       = ignored;
using DescriptorSetLayoutBinding               = ignored;
using DescriptorSetLayoutBindingFlagsCreateInfo = ignored;
using DescriptorSetLayoutCreateInfo            = ignored;
using DeviceCreateFlags                        = ignored;
using DeviceCreateInfo                         = ignored;
using DeviceQueueCreateInfo                    = ignored;
using PushConstantRange                        = ignored;
using SubmitInfo                               = ignored;
template <class> using ArrayProxy = ignored;

struct Device {
    template <class... A> DescriptorSetLayout createDescriptorSetLayout(A &&...) { return {}; }
    template <class... A> CommandPool createCommandPool(A &&...) { return {}; }
    template <class... A> DescriptorPool createDescriptorPool(A &&...) { return {}; }
    template <class... A> Fence createFence(A &&...) { return {}; }
    template <class A> void createFence(std::initializer_list<A>) {}
    Fence createFence(const ignored &) { return {}; }
    template <class... A> Queue getQueue(A &&...) { return {}; }
    template <class A> void destroyBuffer(const A &) {}
    template <class A> void destroyCommandPool(const A &) {}
    template <class A> void destroyDescriptorPool(const A &) {}
    template <class A> void destroyDescriptorSetLayout(const A &) {}
    template <class A> void destroyFence(const A &) {}
    template <class A> void destroyPipeline(const A &) {}
    template <class A> void destroyPipelineLayout(const A &) {}
    template <class A> void destroyShaderModule(const A &) {}
    template <class A> void freeMemory(const A &) {}
    void destroy() {}
};

struct PhysicalDeviceLimits {
    uint32_t   maxComputeSharedMemorySize = 0, maxComputeWorkGroupInvocations = 0, maxPushConstantsSize = 0;
    uint32_t   maxStorageBufferRange = 0;
    uint32_t   maxComputeWorkGroupSize[3] = {}, maxComputeWorkGroupCount[3] = {};
    DeviceSize minStorageBufferOffsetAlignment = 0, minMemoryMapAlignment = 0;
    float      timestampPeriod = 0;
};
struct PhysicalDeviceProperties {
    uint32_t             apiVersion = 0, driverVersion = 0, vendorID = 0, deviceID = 0;
    PhysicalDeviceType   deviceType = PhysicalDeviceType::eOther;
    text                 deviceName;
    PhysicalDeviceLimits limits;
};
using PhysicalDeviceFeatures = VkPhysicalDeviceFeatures;

struct PhysicalDeviceProperties2 : chained<101> { PhysicalDeviceProperties properties; };
struct PhysicalDeviceMaintenance3Properties : chained<102> { DeviceSize maxMemoryAllocationSize = 0; };
struct PhysicalDeviceMaintenance4Properties : chained<103> { DeviceSize maxBufferSize = 0; };
struct PhysicalDeviceSubgroupProperties : chained<104> {
    uint32_t             subgroupSize = 0;
    ShaderStageFlags     supportedStages;
    SubgroupFeatureFlags supportedOperations;
};
struct PhysicalDeviceDriverProperties : chained<105> {
    DriverId driverID = {};
    text     driverName;
};
struct PhysicalDeviceShaderSMBuiltinsPropertiesNV : chained<106> { uint32_t shaderSMCount = 0, shaderWarpsPerSM = 0; };
struct PhysicalDeviceShaderCoreProperties2AMD : chained<107> { uint32_t activeComputeUnitCount = 0; };
struct PhysicalDeviceShaderCorePropertiesAMD : chained<108> { uint32_t wavefrontsPerSimd = 0; };
struct PhysicalDeviceVulkan11Properties : chained<109> {
    uint32_t             subgroupSize = 0;
    ShaderStageFlags     subgroupSupportedStages;
    SubgroupFeatureFlags subgroupSupportedOperations;
    DeviceSize           maxMemoryAllocationSize = 0;
};
struct PhysicalDeviceVulkan12Properties : chained<110> {
    VkBool32 shaderRoundingModeRTEFloat16 = 0, shaderDenormPreserveFloat16 = 0;
};
struct PhysicalDeviceSubgroupSizeControlPropertiesEXT : chained<111> {
    uint32_t         minSubgroupSize = 0, maxSubgroupSize = 0;
    ShaderStageFlags requiredSubgroupSizeStages;
};
struct PhysicalDeviceShaderIntegerDotProductPropertiesKHR : chained<112> {
    VkBool32 integerDotProduct4x8BitPackedSignedAccelerated = 0;
    VkBool32 integerDotProduct4x8BitPackedMixedSignednessAccelerated = 0;
};
struct PhysicalDeviceExternalMemoryHostPropertiesEXT : chained<113> { DeviceSize minImportedHostPointerAlignment = 0; };
struct PhysicalDeviceCooperativeMatrix2PropertiesNV : chained<114> {
    uint32_t cooperativeMatrixFlexibleDimensionsMaxDimension = 0;
};

struct ExtensionProperties {
    text extensionName;
};
struct QueueFamilyProperties {
    QueueFlags queueFlags;
    uint32_t   queueCount = 0;
};
std::string to_string(QueueFlags flags) { return std::to_string(flags.bits); }

// A device that is not here. It answers by the values of a card.
struct PhysicalDevice {
    const card_values * values = nullptr;

    std::vector<ExtensionProperties>   enumerateDeviceExtensionProperties() const;
    std::vector<QueueFamilyProperties> getQueueFamilyProperties() const;
    PhysicalDeviceProperties           getProperties() const;
    PhysicalDeviceProperties2          getProperties2() const;
    void                               getProperties2(void * chain) const;
    PhysicalDeviceFeatures             getFeatures() const;
    Device                             createDevice(const DeviceCreateInfo &) const { return {}; }
};

typedef void (*function)();

struct Instance {
    function                    getProcAddr(const char * name) const;
    std::vector<PhysicalDevice> enumeratePhysicalDevices() const;
};

} // namespace
} // namespace vk

namespace {

typedef vk::PhysicalDeviceProperties2 VkPhysicalDeviceProperties2;

} // namespace
} // namespace gp

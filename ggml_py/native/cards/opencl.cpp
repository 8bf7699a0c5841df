// Qualcomm's GPUs by OpenCL: ggml-opencl. Properties have the names of OpenCL's queries.
#include "card.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace gp {
namespace {

// --- stubs of the toolkit

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef cl_uint cl_bool;
typedef cl_uint cl_version;
typedef cl_uint cl_channel_type;
typedef cl_ulong cl_device_type;
typedef cl_ulong cl_device_svm_capabilities;
typedef cl_ulong cl_mem_flags;
typedef cl_ulong cl_command_queue_properties;
typedef void * cl_mem;
typedef void * cl_event;
typedef void * cl_command_queue;
typedef const void * cl_program;
typedef const void * cl_kernel;

struct cl_name_version { cl_version version; char name[64]; };

// A device, and the platform and context that it is alone in.
struct opencl_device {
    std::string name, version, driver, extensions;
    uint64_t    global_mem_size, max_alloc_size, image_buffer_size, image2d_size, work_group_size;
    uint64_t    kernel_work_group_size; // of every kernel that is compiled
    cl_uint     align_in_bits;
};
typedef const opencl_device * cl_device_id;
typedef const opencl_device * cl_platform_id;
typedef const opencl_device * cl_context;

enum { CL_SUCCESS = 0, CL_OUT_OF_RESOURCES = -5, CL_OUT_OF_HOST_MEMORY = -6, CL_INVALID_VALUE = -30, CL_FLOAT = 1 };
enum {
    CL_PLATFORM_VERSION, CL_DRIVER_VERSION, CL_DEVICE_VERSION, CL_DEVICE_OPENCL_C_VERSION, CL_DEVICE_OPENCL_C_ALL_VERSIONS,
    CL_DEVICE_EXTENSIONS, CL_DEVICE_MEM_BASE_ADDR_ALIGN, CL_DEVICE_GLOBAL_MEM_SIZE, CL_DEVICE_MAX_MEM_ALLOC_SIZE,
    CL_DEVICE_IMAGE_MAX_BUFFER_SIZE, CL_DEVICE_IMAGE2D_MAX_WIDTH, CL_DEVICE_IMAGE2D_MAX_HEIGHT, CL_DEVICE_MAX_WORK_GROUP_SIZE,
    CL_DEVICE_SVM_CAPABILITIES, CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT,
};
enum { CL_DEVICE_TYPE_GPU = 4, CL_MEM_READ_WRITE = 1, CL_PROGRAM_BUILD_LOG = 0, CL_QUEUE_PROFILING_ENABLE = 2 };
enum {
    CL_DEVICE_SVM_COARSE_GRAIN_BUFFER = 1, CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 2, CL_DEVICE_SVM_FINE_GRAIN_SYSTEM = 4,
    CL_DEVICE_SVM_ATOMICS = 8,
};
enum { CL_KERNEL_WORK_GROUP_SIZE, CL_KERNEL_PRIVATE_MEM_SIZE, CL_KERNEL_FUNCTION_NAME };
enum {
    CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_SUBMIT, CL_PROFILING_COMMAND_START, CL_PROFILING_COMMAND_END,
    CL_PROFILING_COMMAND_COMPLETE,
};
#define CL_VERSION_MAJOR(v) ((v) >> 22)
#define CL_VERSION_MINOR(v) (((v) >> 12) & 0x3ff)

cl_int give(const std::string & text, size_t size, void * value, size_t * needed) {
    if (needed) { *needed = text.size() + 1; }
    if (value) { snprintf((char *) value, size, "%s", text.c_str()); }
    return CL_SUCCESS;
}

cl_int give(uint64_t number, size_t size, void * value, size_t * needed) {
    if (needed) { *needed = size; }
    if (value) { memcpy(value, &number, std::min(size, sizeof(number))); }
    return CL_SUCCESS;
}

// "OpenCL 3.0 Adreno(TM) 750" is "OpenCL C 3.0 Adreno(TM) 750".
std::string opencl_c_version(cl_device_id device) {
    const std::string prefix = "OpenCL ";
    return device->version.compare(0, prefix.size(), prefix) == 0 ? prefix + "C " + device->version.substr(prefix.size()) : "";
}

// A driver of OpenCL 3.0 lists the versions of OpenCL C: here one, the device's. Older ones refuse.
cl_int give_opencl_c_versions(cl_device_id device, size_t size, void * value, size_t * needed) {
    unsigned major = 0, minor = 0;
    if (sscanf(device->version.c_str(), "OpenCL %u.%u", &major, &minor) != 2 || major < 3) {
        return CL_INVALID_VALUE;
    }
    const cl_name_version one = {major << 22 | minor << 12, "OpenCL C"};
    if (needed) { *needed = sizeof(one); }
    if (value) { memcpy(value, &one, std::min(size, sizeof(one))); }
    return CL_SUCCESS;
}

cl_int clGetPlatformInfo(cl_platform_id device, int, size_t size, void * value, size_t * needed) {
    return give(device->version, size, value, needed);
}

cl_int clGetDeviceInfo(cl_device_id device, int what, size_t size, void * value, size_t * needed) {
    switch (what) {
        case CL_DEVICE_VERSION:               return give(device->version, size, value, needed);
        case CL_DRIVER_VERSION:               return give(device->driver, size, value, needed);
        case CL_DEVICE_OPENCL_C_VERSION:      return give(opencl_c_version(device), size, value, needed);
        case CL_DEVICE_OPENCL_C_ALL_VERSIONS: return give_opencl_c_versions(device, size, value, needed);
        case CL_DEVICE_EXTENSIONS:            return give(device->extensions, size, value, needed);
        case CL_DEVICE_MEM_BASE_ADDR_ALIGN:   return give(device->align_in_bits, size, value, needed);
        case CL_DEVICE_GLOBAL_MEM_SIZE:       return give(device->global_mem_size, size, value, needed);
        case CL_DEVICE_MAX_MEM_ALLOC_SIZE:    return give(device->max_alloc_size, size, value, needed);
        case CL_DEVICE_IMAGE_MAX_BUFFER_SIZE: return give(device->image_buffer_size, size, value, needed);
        case CL_DEVICE_IMAGE2D_MAX_WIDTH:
        case CL_DEVICE_IMAGE2D_MAX_HEIGHT:    return give(device->image2d_size, size, value, needed);
        case CL_DEVICE_MAX_WORK_GROUP_SIZE:   return give(device->work_group_size, size, value, needed);
        case CL_DEVICE_SVM_CAPABILITIES:
        case CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT: return give(uint64_t(1), size, value, needed);
        default:                              return CL_INVALID_VALUE;
    }
}

cl_int clGetKernelWorkGroupInfo(cl_kernel, cl_device_id device, int what, size_t size, void * value, size_t * needed) {
    return give(what == CL_KERNEL_WORK_GROUP_SIZE ? device->kernel_work_group_size : 0, size, value, needed);
}

// Every kernel compiles.
template <class... T> void load_cl_kernels(T...) {}
template <class... T> cl_program clCreateProgramWithSource(cl_context device, T...) { return device; }
template <class... T> cl_program clCreateProgramWithBinary(cl_context device, T...) { return device; }
template <class... T> cl_program cl_program_cache_try_load(const T & ...) { return nullptr; }
template <class... T> void cl_program_cache_try_save(const T & ...) {}
template <class... T> cl_int clBuildProgram(T...) { return CL_SUCCESS; }
template <class... T> cl_int clGetProgramBuildInfo(T...) { return CL_INVALID_VALUE; }
template <class... T> cl_int clReleaseProgram(T...) { return CL_SUCCESS; }
template <class... T> cl_int clReleaseKernel(T...) { return CL_SUCCESS; }
template <class... T> cl_int clReleaseMemObject(T...) { return CL_SUCCESS; }
template <class... T> cl_int clReleaseEvent(T...) { return CL_SUCCESS; }
template <class... T> cl_int clWaitForEvents(T...) { return CL_SUCCESS; }
template <class... T> cl_int clGetEventProfilingInfo(T...) { return CL_INVALID_VALUE; }
template <class... T> cl_int clGetKernelInfo(T...) { return CL_INVALID_VALUE; }
template <class... T> cl_int clEnqueueNDRangeKernel(T...) { return CL_INVALID_VALUE; }
template <class... T> cl_int clFinish(T...) { return CL_SUCCESS; }

cl_kernel clCreateKernel(cl_program program, const char *, cl_int * error) {
    *error = CL_SUCCESS;
    return program;
}

cl_mem clCreateBuffer(cl_context, cl_mem_flags, size_t, void *, cl_int * error) {
    *error = CL_SUCCESS;
    return nullptr;
}

cl_command_queue clCreateCommandQueue(cl_context, cl_device_id, cl_command_queue_properties, cl_int * error) {
    *error = CL_SUCCESS;
    return nullptr;
}

#include GP_CUT

// --- cards

constexpr int max_cards = 16;

const gp_card_property properties[] = {
    {"name", NULL}, // CL_DEVICE_NAME
    {"CL_DEVICE_VERSION", NULL},
    {"CL_DRIVER_VERSION", NULL},
    {"CL_DEVICE_EXTENSIONS", NULL},
    {"CL_DEVICE_GLOBAL_MEM_SIZE", NULL},
    {"CL_DEVICE_MAX_MEM_ALLOC_SIZE", NULL},
    {"CL_DEVICE_MEM_BASE_ADDR_ALIGN", "1024"},
    {"CL_DEVICE_IMAGE_MAX_BUFFER_SIZE", "134217728"},
    {"CL_DEVICE_IMAGE2D_MAX_WIDTH", "16384"},
    {"CL_DEVICE_MAX_WORK_GROUP_SIZE", "1024"},
    {"CL_KERNEL_WORK_GROUP_SIZE", NULL},
    {NULL, NULL},
};

using slots = card_slots<ggml_backend_opencl_device_context, max_cards>;

std::array<opencl_device, max_cards> toolkit;

// Newer releases keep the OpenCL context of a device.
template <class Context> auto set_context(Context & context, cl_context its, int) -> decltype(context.context, void()) {
    context.context = its;
}
template <class Context> void set_context(Context &, cl_context, long) {}

bool initialised(ggml_backend_dev_t dev) {
#ifdef GP_HAS_ggml_opencl_is_device_supported
    if (!ggml_opencl_is_device_supported(dev)) {
        return false;
    }
#endif
#ifdef GP_HAS_ggml_cl2_init
    return ggml_cl2_init(dev) != nullptr;
#else
    return ggml_cl_init(dev) != nullptr;
#endif
}

ggml_backend_dev_t open(const card_values & values) {
    const int i = slots::find();
    opencl_device & device = toolkit[i];
    device.name                   = values.text("name");
    device.version                = values.text("CL_DEVICE_VERSION");
    device.driver                 = values.text("CL_DRIVER_VERSION");
    device.extensions             = values.text("CL_DEVICE_EXTENSIONS");
    device.global_mem_size        = (uint64_t) values.number("CL_DEVICE_GLOBAL_MEM_SIZE");
    device.max_alloc_size         = (uint64_t) values.number("CL_DEVICE_MAX_MEM_ALLOC_SIZE");
    device.align_in_bits          = (cl_uint) values.number("CL_DEVICE_MEM_BASE_ADDR_ALIGN");
    device.image_buffer_size      = (uint64_t) values.number("CL_DEVICE_IMAGE_MAX_BUFFER_SIZE");
    device.image2d_size           = (uint64_t) values.number("CL_DEVICE_IMAGE2D_MAX_WIDTH");
    device.work_group_size        = (uint64_t) values.number("CL_DEVICE_MAX_WORK_GROUP_SIZE");
    device.kernel_work_group_size = (uint64_t) values.number("CL_KERNEL_WORK_GROUP_SIZE");

    ggml_backend_opencl_device_context & context = slots::all()[i].context;
    delete context.backend_ctx;
    context = {};
    context.platform = context.device = &device;
    context.device_name    = device.name;
    context.device_type    = CL_DEVICE_TYPE_GPU;
    context.device_version = device.version;
    set_context(context, &device, 0);
    ggml_backend_dev_t made = slots::open(i, ggml_backend_opencl_device_i);
    if (!initialised(made)) {
        slots::close(made);
        card_refused("ggml-opencl does not use such a device");
    }
    return made;
}

const card_registration registration({GP_CARD_NAME, properties, open, slots::close});

} // namespace
} // namespace gp

"""The backends whose devices are described without a toolkit: what is cut out of each.

A row has the backend's sources, the tables of functions that describe a device to ggml, and the
functions in them that only a real device needs. The stubs are in `ggml_py/native/cards/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# What asks, allocates or runs on the device itself.
ENDS = (
    "*_init_backend", "*_device_init", "*_event_new", "*_event_free", "*_event_synchronize",
    "*alloc_buffer", "*_buffer_from_host_ptr",
)  # fmt: skip


@dataclass(frozen=True)
class Backend:
    """Where a backend's device is described in upstream's sources."""

    folder: str  # below upstream's src/
    files: tuple[str, ...]  # those that a release has are read
    roots: tuple[str, ...]
    answers: tuple[str, ...]  # the function that answers supports_op
    stubs: str  # in native/cards/
    headers: tuple[str, ...] = ()  # of the toolkit: empty files take their place
    defines: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # other folders and files whose text belongs to the backend
    aliases: str = ""  # a header of the backend that renames the toolkit's names
    asked: tuple[str, ...] = ()  # names, also roots, that some lack: the stubs get GP_HAS_NAME
    edits: tuple[tuple[str, str], ...] = ()  # patterns of what is not C++, and what it becomes
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # see cut.Wanted
    slices: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    generated: Mapping[str, str] = field(default_factory=dict)


_CUDA = Backend(
    "ggml-cuda",
    ("ggml-cuda.cu", "fattn.cu", "fwht.cu", "lightning-indexer.cu", "mmq.cu", "topk-moe.cu"),
    (
        "ggml_backend_cuda_device_interface", "ggml_backend_cuda_buffer_type_interface",
        "ggml_cuda_init", "ggml_backend_cuda_graph_optimize",
    ),
    ("ggml_backend_cuda_device_supports_op",),
    "cuda.cpp",
    (
        "cuda_runtime.h", "cuda.h", "cublas_v2.h", "cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h",
        "cuda_fp4.h", "cub/cub.cuh", "cooperative_groups.h", "cooperative_groups/reduce.h",
        "mma.h", "nccl.h",
    ),
    ("CUDART_VERSION=12080", "GGML_CUDA_PEER_MAX_BATCH_SIZE=128"),
    more=("vendors", "ggml-cuda.h"),
    asked=("ggml_backend_cuda_graph_optimize",),
)  # fmt: skip

_METAL = Backend(
    "ggml-metal",
    (
        "ggml-metal.cpp", "ggml-metal-device.m", "ggml-metal-ops.cpp", "ggml-metal-common.cpp",
        "ggml-metal-tuning.cpp",
    ),
    ("ggml_backend_metal_device_i",),
    ("ggml_metal_device_supports_op",),
    "metal.cpp",
    ("Foundation/Foundation.h", "Metal/Metal.h", "stdatomic.h"),
    ("GGML_METAL_EMBED_LIBRARY=1", "__has_feature(x)=0"),
    ("*_device_buffer_mapped", "*_device_event_init"),
    edits=(
        (r"\[dev->mtl_device supportsFamily:(\w+)\]", r"dev->mtl_device.supportsFamily(\1)"),
        (r"\[\[dev->mtl_device name\] UTF8String\]", "dev->mtl_device.name"),
    ),
    asked=("g_devices", "g_ggml_metal_device"),
    members={"ggml_metal_device": ("mtl_device", "props")},
    # Not what a kernel compiled on the device tells (bfloat, the tensor API).
    slices={
        "ggml_metal_device_init": (
            "ggml_metal_device_t dev",
            r"dev->props\.(has_simd\w+|has_bfloat|has_unified_memory|use_shared_buffers|device_id"
            r"|op_offload_min_batch_size|max_(?!working)\w+)\s*\|?= ",
        ),
    },
    more=("ggml-metal.h",),
)  # fmt: skip

# As built with recent headers and a glslc that knows all extensions: a card says which of them its
# driver has.
_VULKAN = Backend(
    "ggml-vulkan",
    ("ggml-vulkan.cpp", "ggml-vulkan-buffers.cpp", "ggml-vulkan-debug.cpp"),
    (
        "ggml_backend_vk_device_i", "ggml_backend_vk_buffer_type_interface", "ggml_vk_get_device",
        "ggml_vk_graph_optimize",
    ),
    ("ggml_backend_vk_device_supports_op",),
    "vulkan.cpp",
    ("vulkan/vulkan_core.h", "vulkan/vulkan.h", "vulkan/vulkan.hpp", "ggml-vulkan-shaders.hpp"),
    (
        "VK_HEADER_VERSION=330", "VK_KHR_cooperative_matrix=1", "VK_NV_cooperative_matrix2=1",
        "VK_KHR_shader_bfloat16=1", "VK_EXT_shader_64bit_indexing=1",
        *(f"GGML_VULKAN_{name}_GLSLC_SUPPORT" for name in (
            "COOPMAT", "COOPMAT2", "COOPMAT2_DECODE_VECTOR", "INTEGER_DOT", "BFLOAT16",
        )),
    ),
    edits=((r"\bthrow std::runtime_error\(", "card_refused("),),  # compiled without exceptions
    slices={
        "ggml_backend_vk_reg_get_device": (
            "ggml_backend_vk_device_context * ctx, int i, const char * desc, int min_batch_size",
            r"ctx->\w+ = ",
        ),
    },
    more=("ggml-vulkan.h",),
    generated={"*_data": "shader", "*_len": "shader"},
)  # fmt: skip

_OPENCL = Backend(
    "ggml-opencl",
    ("ggml-opencl.cpp",),
    (
        "ggml_backend_opencl_device_i", "ggml_opencl_is_device_supported", "ggml_cl_init",
        "ggml_cl2_init",
    ),
    ("ggml_opencl_supports_op",),
    "opencl.cpp",
    ("CL/cl.h",),
    (
        "GGML_OPENCL_TARGET_VERSION=300", "GGML_OPENCL_SOA_Q", "GGML_OPENCL_USE_ADRENO_KERNELS",
        "GGML_OPENCL_EMBED_KERNELS",
    ),
    more=("ggml-opencl.h",),
    edits=(
        (r"static size_t max_size = -1", "size_t max_size = -1"),  # that of the first device
        (r"\bnamespace\s*\{(?=\s*struct ggml_backend_device_i)", ""),  # the contents are not read
    ),
    asked=("ggml_opencl_is_device_supported", "ggml_cl_init", "ggml_cl2_init"),
)  # fmt: skip

# Cards are compiled without exceptions.
_NO_EXCEPTIONS = (
    (r"\btry\s*\{", "{"),
    (r"\bcatch\s*\([^()]*\)\s*\{(?:[^{}]|\{[^{}]*\})*\}", ""),
)

_SYCL = Backend(
    "ggml-sycl",
    ("ggml-sycl.cpp", "common.cpp", "fattn.cpp", "fattn-onednn.cpp", "sycl_hw.cpp"),
    ("ggml_backend_sycl_device_interface", "ggml_sycl_init"),
    # In new releases the first is called by the second, which only logs.
    ("do_ggml_backend_sycl_device_supports_op", "ggml_backend_sycl_device_supports_op"),
    "sycl.cpp",
    ("sycl/sycl.hpp",),
    (
        "GGML_SYCL_WARP_SIZE=16", "GGML_SYCL_DNNL=1", "GGML_SYCL_SUPPORT_LEVEL_ZERO_API",
        "GGML_SYCL_HAS_BF16",  # with Intel's compiler
    ),
    more=("ggml-sycl.h",),
    asked=("do_ggml_backend_sycl_device_supports_op",),
    edits=(
        *_NO_EXCEPTIONS,
        (r"(= do_\w+_supports_op\(dev, op\);[^}]*\breturn) res;", r"\1 {res};"),  # not the answer
        # The current device is the buffer type's.
        (r"dpct::get_current_device\(\)(\.get_max_mem_alloc_size)", r"gp_device_of(buft)\1"),
    ),
    slices={
        "ggml_check_sycl": (
            "", r"g_ggml_sycl_(fa_\w+|enable_mkl_fa|enable_flash_attention|\w*pinned_mem\w*) =\s",
        ),
    },
)  # fmt: skip

_CANN = Backend(
    "ggml-cann",
    ("ggml-cann.cpp",),
    ("ggml_backend_cann_device_interface", "ggml_cann_init"),
    ("ggml_backend_cann_supports_op",),
    "cann.cpp",
    ("acl/acl.h",),
    ("ASCEND_910B", "USE_ACL_GRAPH"),
    more=("ggml-cann.h",),
)  # fmt: skip

_WEBGPU = Backend(
    "ggml-webgpu",
    ("ggml-webgpu.cpp",),
    ("ggml_backend_webgpu_device_i", "create_webgpu_device"),
    ("ggml_backend_webgpu_device_supports_op",),
    "webgpu.cpp",
    ("webgpu/webgpu_cpp.h",),
    ends=("*_backend_init",),
    more=("ggml-webgpu.h",),
    # The answer is the last of several values.
    edits=(
        (r"\bsupports_op (\|?=) ([^;]*);", r"supports_op \1 (GP_ANSWER \2);"),
        (r"\breturn supports_op;", "return {supports_op};"),
    ),
)  # fmt: skip

_HEXAGON = Backend(
    "ggml-hexagon",
    ("ggml-hexagon.cpp",),
    ("ggml_backend_hexagon_device_i",),
    ("ggml_backend_hexagon_device_supports_op",),
    "hexagon.cpp",
    # The answer is the last of several values.
    edits=(
        *_NO_EXCEPTIONS,
        (r"\bsupp = ([^;]*);(?=\s*(?:break|switch))", r"supp = (GP_ANSWER \1);"),
        (r"\breturn supp;", "return {supp};"),
        # On its hosts, which are ARM's, a division by zero is zero.
        (r"- d\) / d \+ 1\)", "- d) / (d ? d : UINT64_MAX) + 1)"),
    ),
    ends=("*_alloc_buffer*", "*_buffer_type_get_alloc_size_n"),
    more=("ggml-hexagon.h", "htp"),
)  # fmt: skip

_ET = Backend(
    "ggml-et",
    ("ggml-et.cpp",),
    ("ggml_backend_et_device_i", "ggml_backend_et_buffer_type_i"),
    ("ggml_backend_et_device_supports_op",),
    "et.cpp",
    edits=(  # the answer is the last of several values
        *_NO_EXCEPTIONS,
        (r"\bsupported = ([^;]*);", r"supported = (GP_ANSWER \1);"),
        (r"\breturn supported;", "return {supported};"),
    ),
    ends=("*_init_backend",),
    more=("ggml-et.h",),
)  # fmt: skip

BACKENDS: dict[str, Backend] = {
    "metal": _METAL,
    "vulkan": _VULKAN,
    "cuda": _CUDA,
    "hip": replace(
        _CUDA,
        defines=("GGML_USE_HIP", "__HIP_PLATFORM_AMD__", "HIP_VERSION=70000000", _CUDA.defines[1]),
        headers=(
            "hip/hip_runtime.h", "hipblas/hipblas.h", "hip/hip_fp16.h", "hip/hip_bf16.h",
            "hip/hip_fp8.h", "rccl/rccl.h", "hip/hip_cooperative_groups.h", *_CUDA.headers,
        ),
        aliases="vendors/hip.h",
    ),
    "musa": replace(
        _CUDA,
        defines=("GGML_USE_MUSA", _CUDA.defines[1]),
        headers=(
            "musa_runtime.h", "musa.h", "mublas.h", "musa_bf16.h", "musa_fp16.h", "mudnn.h",
            "mccl.h", *_CUDA.headers,
        ),
        aliases="vendors/musa.h",
    ),
    "opencl": _OPENCL,
    "sycl": _SYCL,
    "webgpu": _WEBGPU,
    "hexagon": _HEXAGON,
    "et": _ET,
    "cann": _CANN,
    "cann-310p": replace(_CANN, defines=("ASCEND_310P",)),  # its build is another
}

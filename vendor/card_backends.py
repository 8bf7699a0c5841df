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
    also: tuple[str, ...] = ()  # roots that some releases lack
    asked: tuple[str, ...] = ()  # names that some releases lack: the stubs get GP_HAS_NAME
    edits: tuple[tuple[str, str], ...] = ()  # patterns of what is not C++, and what it becomes
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # see cut.Wanted
    slices: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    generated: Mapping[str, str] = field(default_factory=dict)


_CUDA = Backend(
    "ggml-cuda",
    ("ggml-cuda.cu", "fattn.cu", "fwht.cu", "lightning-indexer.cu", "mmq.cu", "topk-moe.cu"),
    (
        "ggml_backend_cuda_device_interface", "ggml_backend_cuda_buffer_type_interface",
        "ggml_cuda_init",
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
    also=("ggml_backend_cuda_graph_optimize",),
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
}

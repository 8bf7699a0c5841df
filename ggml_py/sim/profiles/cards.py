"""Named cards: the properties that upstream's backends ask of a device, for those people have.

Keys are the names that the toolkit gives the properties: the fields of `cudaDeviceProp`, and so on
(native/cards/). What a card does not name has the default of its backend (`gp_card_property`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1 << 30
KIB = 1 << 10

_NVIDIA = "NVIDIA's data sheet; CUDA C++ Programming Guide, table of compute capabilities"
_APPLE = "Apple's Metal feature set tables"
_AMD = "AMD's data sheet; ROCm's table of accelerators and GPUs"
_MUSA = "Moore Threads' data sheet"
_RADV = "Mesa's RADV (radv_physical_device.c); AMD's data sheet"
_ANV = "Intel's data sheet; what its driver reports to Vulkan is assumed"
_NV_VULKAN = "NVIDIA's data sheet; what its driver reports to Vulkan is assumed"
_LLVMPIPE = "vulkaninfo of Mesa 22.3.6 (Debian 12)"
_INTEL = "Intel's data sheet; what Level Zero reports is assumed"
_ADRENO = "Qualcomm's data sheet; what its driver reports to OpenCL is assumed"
_ASCEND = "Huawei's data sheet"
_HEXAGON = "upstream's defaults (ggml_hexagon_session::allocate)"
_ET = "AIFoundry's documentation"
_DAWN = "Dawn's limits, which follow those of Metal and Vulkan"


@dataclass(frozen=True)
class Card:
    """A device by name. `memory` is nominal, in bytes: drivers keep some of it."""

    backend: str
    title: str
    memory: int
    properties: Mapping[str, str | int]
    source: str
    assumed: tuple[str, ...] = field(default=())  # properties that the source does not say


def _nvidia(
    title: str, memory: float, cc: str, n_sm: int, smem: float, integrated: int = 0
) -> Card:
    """`smem` is the shared memory that a block may have, in KiB."""
    major, minor = map(int, cc.split("."))
    properties = {
        "major": major,
        "minor": minor,
        "multiProcessorCount": n_sm,
        "sharedMemPerBlockOptin": int(smem * KIB),
        "integrated": integrated,
    }
    return Card("cuda", f"NVIDIA {title}", int(memory * GIB), properties, _NVIDIA)


def _amd(title: str, memory: float, arch: str, n_cu: int, warp: int, integrated: int = 0) -> Card:
    """`n_cu` as ROCm counts: compute units, or pairs of them (WGP) where it works in pairs."""
    properties: dict[str, str | int] = {
        "gcnArchName": arch,
        "major": int(arch[3:-2]),
        "minor": int(arch[-2], 16),
        "multiProcessorCount": n_cu,
        "sharedMemPerBlock": 64 * KIB,
        "sharedMemPerBlockOptin": 64 * KIB,
        "warpSize": warp,
        "integrated": integrated,
    }
    return Card("hip", f"AMD {title}", int(memory * GIB), properties, _AMD)


def _mthreads(title: str, memory: float, cc: str, n_mp: int) -> Card:
    major, minor = map(int, cc.split("."))
    properties = {
        "major": major,
        "minor": minor,
        "multiProcessorCount": n_mp,
        "sharedMemPerBlockOptin": 48 * KIB,
    }
    # Upstream's host code has flash attention only if its compiler defines __MUSA_ARCH__ there.
    assumed = ("sharedMemPerBlock", "sharedMemPerBlockOptin", "warpSize", "no __MUSA_ARCH__")
    return Card("musa", f"Moore Threads {title}", int(memory * GIB), properties, _MUSA, assumed)


def _apple(title: str, ram: int, family: int) -> Card:
    """`ram` in GiB; macOS gives the GPU two thirds of it, three quarters from 36 GiB on."""
    memory = ram * GIB * 3 // 4 if ram >= 36 else ram * GIB * 2 // 3
    properties = {
        "family_apple": family,
        "family_metal": 3,
        "maxBufferLength": ram * GIB * 9 // 16,
        "maxThreadgroupMemoryLength": 32 * KIB,
    }
    # Whether bfloat kernels compile on the device; upstream's init tries one.
    assumed = ("maxBufferLength", "recommendedMaxWorkingSetSize", "bfloat kernels compile")
    return Card("metal", f"Apple {title}", memory, properties, _APPLE, assumed)


def _intel(title: str, memory: float, arch: str, cc: str, n_ve: int, slm: int,
           integrated: int = 0) -> Card:  # fmt: skip
    """`n_ve` vector engines, `slm` KiB of local memory. Level Zero gives one buffer of 4 GiB on
    Alchemist, nearly all memory on later ones."""
    major, minor = map(int, cc.split("."))
    size = int(memory * GIB)
    properties: dict[str, str | int] = {
        "architecture": arch,
        "major_version": major,
        "minor_version": minor,
        "max_compute_units": n_ve,
        "local_mem_size": slm * KIB,
        "max_mem_alloc_size": 4294959104 if "_acm_" in arch else size * 19 // 20,
        "integrated": integrated,
        "onednn_optimized_gemm": 1,
    }
    # Upstream tries on the device whether oneDNN has a matrix product that is not its reference.
    assumed = ("architecture", "local_mem_size", "max_mem_alloc_size", "onednn_optimized_gemm")
    return Card("sycl", f"Intel {title}", size, properties, _INTEL, assumed)


def _adreno(title: str, memory: int, compiler: str, max_alloc: int, extensions: str = "") -> Card:
    """`compiler` as the driver's version ends, `max_alloc` in MiB. OpenCL has half of the RAM."""
    properties: dict[str, str | int] = {
        "CL_DEVICE_VERSION": f"OpenCL 3.0 Adreno(TM) {title}",
        "CL_DRIVER_VERSION": f"OpenCL 3.0 QUALCOMM build: commit unknown Compiler {compiler}",
        "CL_DEVICE_EXTENSIONS": f"cl_khr_fp16 cl_khr_subgroups {extensions}".rstrip(),
        "CL_DEVICE_MAX_MEM_ALLOC_SIZE": max_alloc << 20,
        "CL_KERNEL_WORK_GROUP_SIZE": 512,  # as on record (docs/ops): ARGSORT of up to 512
    }
    # Upstream compiles its kernels for argsort and attention on the device.
    assumed = ("CL_DEVICE_GLOBAL_MEM_SIZE", *properties, "attention's kernels compile")
    name = f"Qualcomm Adreno {title}"
    return Card("opencl", name, memory * GIB, properties, _ADRENO, assumed)


def _dawn(
    title: str, vendor: str, max_buffer: int, max_binding: int, align: int, subgroup: int, tile: int
) -> Card:
    """`subgroup` lanes, matrices of `tile` rows and columns. WebGPU tells no memory: upstream takes
    the largest buffer for it."""
    properties: dict[str, str | int] = {
        "vendor": vendor,
        "maxStorageBufferBindingSize": max_binding,
        "minStorageBufferOffsetAlignment": align,
        "subgroupMinSize": subgroup,
        "subgroupMaxSize": subgroup,
        **dict.fromkeys(("subgroupMatrixM", "subgroupMatrixN", "subgroupMatrixK"), tile),
    }
    return Card("webgpu", f"{title} (WebGPU)", max_buffer, properties, _DAWN, tuple(properties))


def _hexagon(title: str, memory: int) -> Card:
    """What upstream goes by where it cannot ask the device; `memory` is what can be mapped."""
    properties = {"n_threads": 8, "n_hmx": 1, "vtcm_size": 8 << 20}
    assumed = (*properties, "max_vmem")
    return Card("hexagon", f"Qualcomm Hexagon {title}", memory, properties, _HEXAGON, assumed)


def _ascend(title: str, backend: str, memory: int) -> Card:
    # What a weight takes in tiles is told by a function of CANN.
    assumed = ("aclnnCalculateMatmulWeightSizeV2",)
    return Card(backend, f"Huawei Ascend {title}", memory * GIB, {}, _ASCEND, assumed)


_NAVI = {
    "family_apple": 0,
    "family_metal": 3,
    "hasUnifiedMemory": 0,
    "maxBufferLength": 7 * GIB // 2,
    "maxThreadgroupMemoryLength": 64 * KIB,
}

# What the drivers of all GPUs here have, and upstream looks at.
_EXTENSIONS = (
    "VK_KHR_16bit_storage+VK_KHR_shader_float16_int8+VK_KHR_maintenance4"
    "+VK_EXT_subgroup_size_control+VK_KHR_shader_integer_dot_product"
    "+VK_EXT_pipeline_robustness+VK_EXT_external_memory_host"
)
_INTEGRATED = 1  # VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU


def _reported(properties: Mapping[str, str | int]) -> tuple[str, ...]:
    """The properties that only the driver tells, not a data sheet or a list of numbers."""
    known = ("vendorID", "deviceID", "driverID", "shaderSMCount", "shaderWarpsPerSM")
    return tuple(name for name in properties if name not in known)


def _radv(title: str, memory: float, device_id: int, n_cu: int, rdna: int, type_: int = 2) -> Card:
    """A GPU of AMD with Mesa's driver. `rdna` is its generation."""
    extensions = _EXTENSIONS + "+VK_AMD_shader_core_properties+VK_AMD_shader_core_properties2"
    properties: dict[str, str | int] = {
        "vendorID": 0x1002,
        "deviceID": device_id,
        "driverID": 3,  # VK_DRIVER_ID_MESA_RADV
        "deviceType": type_,
        "extensions": extensions + ("+VK_KHR_cooperative_matrix" if rdna >= 3 else ""),
        "maxComputeSharedMemorySize": 64 * KIB,
        "minStorageBufferOffsetAlignment": 4,
        "minMemoryMapAlignment": 4 * KIB,
        "maxMemoryAllocationSize": 0xFFFFFFFC,
        "maxBufferSize": 0xFFFFFFFC,
        "subgroupSize": 64,
        "minSubgroupSize": 32,
        "maxSubgroupSize": 64,
        "integerDotProduct4x8BitPackedMixedSignednessAccelerated": int(rdna >= 3),
        "activeComputeUnitCount": n_cu,
        "wavefrontsPerSimd": 20 if rdna == 1 else 16,
    }
    assumed: tuple[str, ...] = ("no VK_KHR_shader_bfloat16", "no VK_EXT_shader_64bit_indexing")
    if rdna >= 3:
        shapes = ("16x16x16/f16/f32", "16x16x16/f16/f16", "16x16x16/s8/s32")
        properties["cooperativeMatrix"] = "+".join(shapes)
        assumed = ("cooperativeMatrix", *assumed)
    if type_ == _INTEGRATED:
        assumed = ("memoryHeapSize", *assumed)
    return Card("vulkan", f"AMD {title}", int(memory * GIB), properties, _RADV, assumed)


def _anv(title: str, memory: float, device_id: int, n_min: int, extensions: str, mma: str) -> Card:
    """A GPU of Intel with Mesa's driver. `n_min` is the smallest subgroup, `mma` its matrices."""
    properties: dict[str, str | int] = {
        "vendorID": 0x8086,
        "deviceID": device_id,
        "driverID": 6,  # VK_DRIVER_ID_INTEL_OPEN_SOURCE_MESA
        "extensions": _EXTENSIONS + extensions,
        "maxComputeSharedMemorySize": 64 * KIB,
        "minStorageBufferOffsetAlignment": 4,
        "minMemoryMapAlignment": 4 * KIB,
        "maxMemoryAllocationSize": 0xFFFFFFFF,
        "maxBufferSize": 0xFFFFFFFF,
        "subgroupSize": 32,
        "minSubgroupSize": n_min,
        "maxSubgroupSize": 32,
        "cooperativeMatrix": mma,
    }
    assumed = _reported(properties)
    return Card("vulkan", f"Intel {title}", int(memory * GIB), properties, _ANV, assumed)


def _nvidia_vulkan(title: str, memory: float, device_id: int, n_sm: int, warps: int) -> Card:
    """A GPU of NVIDIA with its own driver. `warps` is how many an SM holds."""
    properties: dict[str, str | int] = {
        "vendorID": 0x10DE,
        "deviceID": device_id,
        "driverID": 4,  # VK_DRIVER_ID_NVIDIA_PROPRIETARY
        "extensions": _EXTENSIONS + "+VK_NV_shader_sm_builtins+VK_KHR_cooperative_matrix"
        "+VK_NV_cooperative_matrix2+VK_KHR_shader_bfloat16",
        "maxComputeSharedMemorySize": 48 * KIB,
        "maxMemoryAllocationSize": 0xFFE00000,
        "maxBufferSize": 1 << 40,
        "subgroupSize": 32,
        "minSubgroupSize": 32,
        "maxSubgroupSize": 32,
        "cooperativeMatrix": "16x16x16/f16/f16+16x16x16/f16/f32+16x16x32/s8/s32+16x16x16/bf16/f32",
        "cooperativeMatrixFlexibleDimensionsMaxDimension": 1024,
        "shaderSMCount": n_sm,
        "shaderWarpsPerSM": warps,
    }
    assumed = _reported(properties)
    return Card("vulkan", f"NVIDIA {title}", int(memory * GIB), properties, _NV_VULKAN, assumed)


# The device of a machine without a GPU: upstream's backend was built and asked on it
# (benchmarks/vulkan_oracle.py).
_LLVMPIPE_CARD = Card(
    "vulkan",
    "llvmpipe (LLVM 15.0.6, 256 bits)",
    2 * GIB,
    {
        "vendorID": 0x10005,
        "driverID": 13,  # VK_DRIVER_ID_MESA_LLVMPIPE
        "deviceType": 4,  # VK_PHYSICAL_DEVICE_TYPE_CPU
        "extensions": "VK_KHR_16bit_storage+VK_KHR_shader_float16_int8+VK_KHR_maintenance4"
        "+VK_EXT_subgroup_size_control+VK_KHR_shader_integer_dot_product"
        "+VK_EXT_external_memory_host",
        "maxComputeSharedMemorySize": 32 * KIB,
        "maxPushConstantsSize": 128,
        "maxStorageBufferRange": 128 << 20,
        "maxMemoryAllocationSize": 2 * GIB,
        "maxBufferSize": 0xFFFFFFFF,
        "subgroupSize": 8,
        "minSubgroupSize": 8,
        "maxSubgroupSize": 8,
        "requiredSubgroupSizeStages": 0x30,  # fragment and compute
        "subgroupSupportedStages": 0x30,
        "subgroupSupportedOperations": 0xBF,  # all but clustered
        "shaderDenormPreserveFloat16": 0,
        "integerDotProduct4x8BitPackedSignedAccelerated": 0,
        "integerDotProduct4x8BitPackedMixedSignednessAccelerated": 0,
    },
    _LLVMPIPE,
)

CARDS: dict[str, Card] = {
    "rtx5090": _nvidia("GeForce RTX 5090", 32, "12.0", 170, 99),
    "rtx5080": _nvidia("GeForce RTX 5080", 16, "12.0", 84, 99),
    "rtx4090": _nvidia("GeForce RTX 4090", 24, "8.9", 128, 99),
    "rtx4080": _nvidia("GeForce RTX 4080", 16, "8.9", 76, 99),
    "rtx4070": _nvidia("GeForce RTX 4070", 12, "8.9", 46, 99),
    "rtx4060": _nvidia("GeForce RTX 4060", 8, "8.9", 24, 99),
    "rtx3090": _nvidia("GeForce RTX 3090", 24, "8.6", 82, 99),
    "rtx3080": _nvidia("GeForce RTX 3080", 10, "8.6", 68, 99),
    "rtx3060": _nvidia("GeForce RTX 3060", 12, "8.6", 28, 99),
    "rtx2080ti": _nvidia("GeForce RTX 2080 Ti", 11, "7.5", 68, 64),
    "gtx1660": _nvidia("GeForce GTX 1660", 6, "7.5", 22, 64),
    "gtx1080ti": _nvidia("GeForce GTX 1080 Ti", 11, "6.1", 28, 48),
    "p40": _nvidia("Tesla P40", 24, "6.1", 30, 48),
    "v100": _nvidia("Tesla V100", 32, "7.0", 80, 96),
    "t4": _nvidia("Tesla T4", 16, "7.5", 40, 64),
    "a100": _nvidia("A100 80GB", 80, "8.0", 108, 163),
    "l40s": _nvidia("L40S", 48, "8.9", 142, 99),
    "h100": _nvidia("H100 80GB", 80, "9.0", 132, 227),
    "h200": _nvidia("H200", 141e9 / GIB, "9.0", 132, 227),
    "b200": _nvidia("B200", 180e9 / GIB, "10.0", 148, 227),
    "orin": _nvidia("Jetson AGX Orin", 64, "8.7", 16, 163, integrated=1),
    "spark": _nvidia("DGX Spark (GB10)", 128, "12.1", 48, 99, integrated=1),
    "rx7900xtx": _amd("Radeon RX 7900 XTX", 24, "gfx1100", 48, 32),
    "rx9070xt": _amd("Radeon RX 9070 XT", 16, "gfx1201", 32, 32),
    "rx6800xt": _amd("Radeon RX 6800 XT", 16, "gfx1030", 36, 32),
    "strix-halo": _amd("Radeon 8060S (Strix Halo)", 96, "gfx1151", 20, 32, integrated=1),
    "mi50": _amd("Instinct MI50", 32, "gfx906", 60, 64),
    "mi100": _amd("Instinct MI100", 32, "gfx908", 120, 64),
    "mi250x": _amd("Instinct MI250X (one of its two devices)", 64, "gfx90a", 110, 64),
    "mi300x": _amd("Instinct MI300X", 192, "gfx942", 304, 64),
    "m1": _apple("M1", 16, 7),
    "m1max": _apple("M1 Max", 64, 7),
    "m2": _apple("M2", 16, 8),
    "m2ultra": _apple("M2 Ultra", 192, 8),
    "m3": _apple("M3", 16, 9),
    "m3max": _apple("M3 Max", 128, 9),
    "m3ultra": _apple("M3 Ultra", 512, 9),
    "m4": _apple("M4", 16, 9),
    "m4max": _apple("M4 Max", 128, 9),
    "m5": _apple("M5", 32, 10),
    "radeon-pro-5500m": Card(
        "metal", "AMD Radeon Pro 5500M (in a Mac)", 8 * GIB, _NAVI, _APPLE, ("maxBufferLength",)
    ),
    "vulkan-rx9070xt": _radv("Radeon RX 9070 XT", 16, 0x7550, 64, 4),
    "vulkan-rx7900xtx": _radv("Radeon RX 7900 XTX", 24, 0x744C, 96, 3),
    "vulkan-rx6800xt": _radv("Radeon RX 6800 XT", 16, 0x73BF, 72, 2),
    "vulkan-890m": _radv("Radeon 890M", 16, 0x150E, 16, 3, _INTEGRATED),
    "vulkan-steam-deck": _radv("Custom GPU 0405 (Steam Deck)", 8, 0x163F, 8, 2, _INTEGRATED),
    "vulkan-arc-a770": _anv("Arc A770", 16, 0x56A0, 8, "", ""),
    "vulkan-arc-b580": _anv(
        "Arc B580", 12, 0xE20B, 16, "+VK_KHR_cooperative_matrix", "8x16x16/f16/f32+8x16x32/s8/s32"
    ),
    "vulkan-rtx4090": _nvidia_vulkan("GeForce RTX 4090", 24, 0x2684, 128, 48),
    "vulkan-rtx3060": _nvidia_vulkan("GeForce RTX 3060", 12, 0x2504, 28, 48),
    "vulkan-llvmpipe": _LLVMPIPE_CARD,
    "s80": _mthreads("MTT S80", 16, "2.1", 64),
    "s4000": _mthreads("MTT S4000", 48, "2.2", 64),
    "s5000": _mthreads("MTT S5000", 80, "3.1", 64),
    "arc-a770": _intel("Arc A770", 16, "intel_gpu_acm_g10", "12.55", 512, 64),
    "arc-a380": _intel("Arc A380", 6, "intel_gpu_acm_g11", "12.56", 128, 64),
    "arc-b580": _intel("Arc B580", 12, "intel_gpu_bmg_g21", "20.1", 160, 128),
    "arc-b60": _intel("Arc Pro B60", 24, "intel_gpu_bmg_g21", "20.1", 160, 128),
    "arc-140v": _intel("Arc 140V (Lunar Lake)", 16, "intel_gpu_lnl_m", "20.4", 64, 128, 1),
    "max1100": _intel("Data Center GPU Max 1100", 48, "intel_gpu_pvc", "12.60", 448, 128),
    "adreno-x1": _adreno("X1-85", 16, "DX.18.02.00", 2048, "cl_qcom_subgroup_shuffle"),
    "adreno-830": _adreno(
        "830", 8, "E031.47.18.23", 1024, "cl_qcom_subgroup_shuffle cl_qcom_large_buffer"
    ),
    "adreno-750": _adreno(
        "750", 8, "E031.45.02.06", 1024, "cl_qcom_subgroup_shuffle cl_qcom_large_buffer"
    ),
    "adreno-740": _adreno(
        "740", 8, "E031.41.03.44", 1024, "cl_qcom_subgroup_shuffle cl_qcom_large_buffer"
    ),
    "webgpu-m3max": _dawn("Apple M3 Max", "apple", 72 * GIB, 72 * GIB, 32, 32, 8),
    "webgpu-rtx4090": _dawn("NVIDIA RTX 4090", "nvidia", 4 * GIB, 4 * GIB - 4, 256, 32, 16),
    "hexagon-v79": _hexagon("v79 (Snapdragon 8 Elite)", 3200 << 20),
    "hexagon-v73": _hexagon("v73 (Snapdragon X Elite)", 3000 << 20),
    "et-soc-1": Card(
        "et", "AIFoundry ET-SoC-1", 32 * GIB, {}, _ET, ("memorySize_", "cacheLineSize_")
    ),
    "ascend-910b": _ascend("910B", "cann", 64),
    "ascend-310p": _ascend("310P", "cann-310p", 48),
}

# The card that a backend's name alone means.
OF_BACKEND: dict[str, str] = {
    "cann": "ascend-910b",
    "cann-310p": "ascend-310p",
    "cuda": "rtx4090",
    "et": "et-soc-1",
    "hexagon": "hexagon-v79",
    "hip": "rx7900xtx",
    "metal": "m3max",
    "musa": "s4000",
    "opencl": "adreno-x1",
    "sycl": "arc-a770",
    "vulkan": "vulkan-rx7900xtx",
    "webgpu": "webgpu-m3max",
}

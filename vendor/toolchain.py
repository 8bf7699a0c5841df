"""Checks that the machine has what a build needs, before any long step begins.

Every ggml backend has a row: the toolkit that it needs, and the package that provides the toolkit.
The backend's name also gives its CMake switch and its source folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vendor.report import BuildError


@dataclass(frozen=True)
class Backend:
    """The build requirements of one ggml backend."""

    programs: tuple[str, ...] = ()      # any one of these must be on the PATH
    headers: tuple[str, ...] = ()       # all of these must be in an include folder
    variables: tuple[str, ...] = ()     # an environment or -D variable that names the toolkit
    brings: str = ""                    # what provides it, for the message
    system: str = ""                    # the only sys.platform that has it, empty = any


BACKENDS: dict[str, Backend] = {
    "cpu": Backend(),
    "blas": Backend(),
    "rpc": Backend(),
    "cuda": Backend(),      # cuda.py finds its toolkit
    "metal": Backend(system="darwin"),
    "vulkan": Backend(
        ("glslc",), ("vulkan/vulkan.h", "spirv/unified1/spirv.hpp"),
        ("Vulkan_GLSLC_EXECUTABLE", "Vulkan_INCLUDE_DIR", "VULKAN_SDK"),
        "the Vulkan SDK (apt: glslc libvulkan-dev spirv-headers; or set VULKAN_SDK)"),
    "hip": Backend(
        ("hipconfig", "hipcc"), (), ("HIPCXX", "ROCM_PATH"), "ROCm (apt: hipcc rocblas-dev)"),
    "musa": Backend(("mcc",), (), ("MUSA_PATH",), "the MUSA SDK of Moore Threads"),
    "sycl": Backend(
        ("icpx", "dpcpp"), (), ("ONEAPI_ROOT",), "Intel's oneAPI (source its setvars.sh)"),
    "opencl": Backend(
        (), ("CL/cl.h",), ("OpenCL_INCLUDE_DIR",),
        "OpenCL's headers and loader (apt: opencl-headers ocl-icd-opencl-dev)"),
    "openvino": Backend((), (), ("OpenVINO_DIR", "INTEL_OPENVINO_DIR"), "Intel's OpenVINO"),
    "cann": Backend(
        (), (), ("CANN_INSTALL_DIR", "ASCEND_TOOLKIT_HOME"), "Huawei's CANN (source set_env.sh)"),
    "webgpu": Backend((), (), ("Dawn_DIR", "CMAKE_PREFIX_PATH"), "a build of Dawn (set Dawn_DIR)"),
    "zdnn": Backend((), ("zdnn.h",), ("ZDNN_ROOT",), "IBM's zDNN (set ZDNN_ROOT)"),
    "zendnn": Backend((), (), ("ZENDNN_ROOT",), "AMD's ZenDNN (set ZENDNN_ROOT)"),
    "hexagon": Backend((), (), ("HEXAGON_SDK_ROOT",), "Qualcomm's Hexagon SDK"),
    "virtgpu": Backend((), ("xf86drm.h",), (), "libdrm (apt: libdrm-dev)", "linux"),
    "et": Backend((), (), ("ET_TOOLCHAIN", "CMAKE_PREFIX_PATH"), "the ET platform's toolchain"),
}


SANITIZERS = ("address", "undefined", "thread")


def default_backends() -> tuple[str, ...]:
    """The backends of a plain build on this platform."""
    return ("cpu", "blas", "rpc", "metal") if sys.platform == "darwin" else ("cpu", "blas", "rpc")


def check_names(names: tuple[str, ...]) -> None:
    """Raise BuildError with the list of backends if a name is unknown."""
    unknown = [name for name in names if name not in BACKENDS]
    if unknown:
        raise BuildError(
            f"unknown backend {', '.join(map(repr, unknown))}; known: {', '.join(BACKENDS)}")


def check_sources(names: tuple[str, ...], ggml: Path, label: str) -> None:
    """Raise BuildError if this release lacks the source of a backend (webgpu is recent, say)."""
    have = {folder.name.removeprefix("ggml-") for folder in (ggml / "src").glob("ggml-*/")}
    missing = [name for name in names if name not in have]
    if missing:
        raise BuildError(
            f"ggml {label} has no backend {', '.join(missing)}; it has: "
            f"{', '.join(sorted(have & BACKENDS.keys()))}")


def check_vulkan_headers(ggml: Path, defines: Mapping[str, str]) -> None:
    """Raise BuildError if this release needs newer Vulkan headers than the machine has.

    Distributions are often behind, and the compiler would fail only after minutes of shaders.
    """
    needs = "LayerSettingEXT"       # since headers 1.3.272
    source = ggml / "src" / "ggml-vulkan" / "ggml-vulkan.cpp"
    if needs not in source.read_text(encoding="utf-8", errors="replace"):
        return
    for folder in _include_folders(defines):
        header = folder / "vulkan" / "vulkan_core.h"
        if header.is_file():
            text = header.read_text(encoding="utf-8", errors="replace")
            if f"Vk{needs}" in text:
                return
            found = re.search(r"#define VK_HEADER_VERSION (\d+)", text)
            raise BuildError(
                f"backend vulkan needs Vulkan headers 1.3.272 or newer, but {header} is revision "
                f"{found[1] if found else 'unknown'}: install a newer libvulkan-dev, set "
                "VULKAN_SDK, or remove vulkan from --backend")


def _include_folders(defines: Mapping[str, str]) -> list[Path]:
    folders = [Path(value) for name, value in defines.items() if "INCLUDE" in name.upper()]
    prefixes = [Path(value) for name, value in defines.items() if "PREFIX" in name.upper()
                for value in value.split(";")]
    if sdk := os.environ.get("VULKAN_SDK"):
        prefixes.append(Path(sdk))
    prefixes += [Path("/usr"), Path("/usr/local"), Path("/opt/homebrew")]
    for prefix in prefixes:
        folders += [prefix, prefix / "include"]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders.append(Path("/usr/include") / multiarch)
    for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"):
        folders += [Path(part) for part in os.environ.get(name, "").split(os.pathsep) if part]
    return folders


def check_toolkits(names: tuple[str, ...], defines: Mapping[str, str]) -> None:
    """Raise BuildError if a backend's toolkit is missing, naming the package that provides it."""
    folders = _include_folders(defines)
    for name in names:
        need = BACKENDS[name]
        if need.system and sys.platform != need.system:
            raise BuildError(f"backend {name} can only be built on {need.system}")
        named = [one for one in need.variables if os.environ.get(one) or defines.get(one)]
        missing = [header for header in need.headers
                   if not any((folder / header).is_file() for folder in folders)]
        if need.programs and not named and not any(map(shutil.which, need.programs)):
            missing.insert(0, need.programs[0])
        if need.variables and not (need.programs or need.headers or named):
            missing.append(" or ".join(need.variables))
        if missing:
            raise BuildError(
                f"backend {name} needs {' and '.join(missing)}, not found here: install "
                f"{need.brings}, or remove {name} from --backend")


def check_python() -> None:
    """Raise BuildError on a free-threaded Python, which has no stable ABI to build against."""
    if "t" in getattr(sys, "abiflags", ""):
        raise BuildError(
            f"{sys.executable} is a free-threaded Python: the module is built for the stable ABI, "
            "which a free-threaded Python does not have. Use the usual Python of the same version")


@dataclass(frozen=True)
class Tools:
    """Absolute paths of the programs that a build uses. `launcher` is ccache or None."""

    cc: str
    cxx: str
    cmake: str
    ninja: str
    launcher: str | None


def _compiler(variable: str, candidates: tuple[str, ...], language: str) -> str:
    asked = os.environ.get(variable, "").split()
    for name in asked[:1] or candidates:
        if path := shutil.which(name):
            return path
    given = f"{variable}={asked[0]} is not a program" if asked else \
        f"none of {', '.join(candidates)} is on the PATH"
    raise BuildError(
        f"no {language} compiler ({given}): install one (apt: build-essential; macOS: "
        f"xcode-select --install), or set {variable}")


def _program(name: str) -> str | None:
    """A program on the PATH, or beside this Python, where pip puts programs in a virtual env."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def missing_programs() -> list[str]:
    """Those of cmake and ninja that must be installed from the package index."""
    return [name for name in ("cmake", "ninja") if _program(name) is None]


def find_tools() -> Tools:
    """Find the programs that every build needs. Raises BuildError for the first missing one."""
    cc = _compiler("CC", ("cc", "gcc", "clang"), "C")
    cxx = _compiler("CXX", ("c++", "g++", "clang++"), "C++")
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        raise BuildError(
            f"Python.h is not in {include}: install this Python's headers (apt: python3-dev)")
    for name in missing_programs():
        raise BuildError(f"no {name} on the PATH: python -m pip install cmake ninja (or apt)")
    return Tools(cc, cxx, str(_program("cmake")), str(_program("ninja")), shutil.which("ccache"))


def cpu_identity() -> str:
    """The processor's feature flags, which `-march=native` depends on.

    They are part of a native build's key, because different machines may share a home folder.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        if sys.platform != "darwin":
            return ""
        return subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True, text=True, check=False,
        ).stdout.strip()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


# GCC's _tile_loadconfig says that it reads a pointer's 8 bytes, not the 64 of a tile configuration.
_CUT_OPERAND = re.compile(r"ldtilecfg.*\(const void \*\*\)")


def flags_without_amx() -> tuple[str, ...]:
    """Flags that leave AMX out, for a processor with AMX and a GCC that compiles it wrongly: GCC
    drops the stores of the tile configuration, and ggml's products of matrices die of SIGILL."""
    if "amx_tile" not in cpu_identity().split():
        return ()
    try:
        cc = _compiler("CC", ("cc", "gcc", "clang"), "C")
    except BuildError:
        return ()       # what is built already is found without one
    done = subprocess.run([cc, "-print-file-name=include/amxtileintrin.h"],
                          capture_output=True, text=True, check=False)
    try:
        text = Path(done.stdout.strip()).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()       # clang has it built in
    if not _CUT_OPERAND.search(text):
        return ()
    return ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")

"""Finds the CUDA toolkit of a build (nvcc, cuBLAS, architectures, driver), or says what is missing.

nvcc comes from a toolkit; cuBLAS comes from that toolkit or from NVIDIA's Python package. The
package's 500 MB are not copied: the backend's library gets an rpath to them.
"""

from __future__ import annotations

import ctypes
import functools
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

# Used when no GPU is here to ask. Runs on every GPU since Ampere, on newer ones through its PTX.
PORTABLE_ARCHITECTURE = "80"
USUAL = (Path("/usr/local/cuda/bin"), Path("/opt/cuda/bin"))
CAPABILITY = (75, 76)       # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


@dataclass(frozen=True)
class Toolkit:
    """The CUDA toolkit, as absolute paths. `cublas` is the Python package's folder, or None if the
    toolkit has cuBLAS."""

    nvcc: Path
    root: Path
    version: str
    cublas: Path | None

    @property
    def major(self) -> int:
        """The major version, which is part of the names of libraries and packages."""
        return int(self.version.split(".")[0])

    @property
    def rpath(self) -> str:
        """The rpath: NVIDIA's packages relative to an installed package's build, then the
        toolkit."""
        packages = "$ORIGIN/../../../../nvidia"
        parts = ("cublas", "cuda_runtime") if self.major < 13 else (f"cu{self.major}",)
        runtime = f"libcudart.so.{self.major}"
        # CMake omits the toolkit's own folder, and the loader may not know it.
        own = [folder for name in ("lib64", "lib") if (folder := self.root / name) and
               (folder / runtime).is_file()]
        return ";".join([*(f"{packages}/{part}/lib" for part in parts), *map(str, own[:1])])


def _site_folders() -> list[Path]:
    # pip's build isolation hides the environment's own packages from sys.path, not from sysconfig.
    paths = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return [Path(path) for path in dict.fromkeys(paths) if path and Path(path).is_dir()]


def _find_nvcc(defines: Mapping[str, str]) -> Path:
    for name in ("CMAKE_CUDA_COMPILER", "CUDACXX"):
        if asked := defines.get(name) or os.environ.get(name):
            if found := shutil.which(asked):
                return Path(found)
            raise BuildError(f"{name}={asked} is not a program: it must name CUDA's compiler, nvcc")
    roots = [defines.get("CUDAToolkit_ROOT"),
             *(os.environ.get(name) for name in ("CUDAToolkit_ROOT", "CUDA_PATH", "CUDA_HOME"))]
    folders = [Path(root) / "bin" for root in roots if root]
    folders += [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    for folder in (*folders, *USUAL):
        if found := shutil.which("nvcc", path=str(folder)):
            return Path(found)
    raise BuildError(
        "backend cuda needs nvcc, which was not found on the PATH, in CUDA_PATH or "
        "CUDAToolkit_ROOT, or in /usr/local/cuda. Install the CUDA toolkit (apt: "
        "nvidia-cuda-toolkit, or NVIDIA's own), set CUDACXX to its nvcc, or remove cuda from "
        "--backend")


def _said(nvcc: Path, argument: str) -> str:
    try:
        result = subprocess.run([nvcc, argument, "none.cu"], capture_output=True, text=True,
                                check=False, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{nvcc} cannot be run: {error}") from error
    return result.stdout + result.stderr


def _has_cublas(root: Path) -> bool:
    folders = [root / "include", *root.glob("targets/*/include")]
    if root.is_relative_to("/usr/lib"):         # Debian's toolkit is spread over the system
        folders.append(Path("/usr/include"))
    return any((folder / "cublas_v2.h").is_file() for folder in folders)


def _cublas_package(major: int) -> Path | None:
    part = f"cu{major}" if major >= 13 else "cublas"
    for site in _site_folders():
        folder = site / "nvidia" / part
        if (folder / "include" / "cublas_v2.h").is_file() and \
                (folder / "lib" / f"libcublas.so.{major}").is_file():
            return folder
    return None


def find(defines: Mapping[str, str]) -> Toolkit:
    """The toolkit of this machine. Raises BuildError with what is missing and where it looked."""
    return _find(_find_nvcc(defines), "CUDA_cublas_LIBRARY" in defines)


@functools.cache
def _find(nvcc: Path, cublas_is_named: bool) -> Toolkit:
    version = re.search(r"release (\d+\.\d+)", _said(nvcc, "--version"))
    top = re.search(r"^#\$ TOP=(.+)$", _said(nvcc, "-v"), re.MULTILINE)
    if not (version and top):
        raise BuildError(
            f"{nvcc} does not answer nvcc --version and nvcc -v as CUDA's compiler does: "
            "set CUDACXX to the nvcc of a CUDA toolkit")
    root = Path(top[1].strip()).resolve()
    own = root / "bin" / "nvcc"                 # ccache must hash this, not a wrapper on the PATH
    found = Toolkit(own if own.is_file() else nvcc, root, version[1], None)
    if cublas_is_named or _has_cublas(root):
        return found
    package = _cublas_package(found.major)
    if package is None:
        name = "nvidia-cublas" if found.major >= 13 else f"nvidia-cublas-cu{found.major}"
        looked = ", ".join(str(site / "nvidia") for site in _site_folders()
                           if site.name.endswith("-packages"))
        raise BuildError(
            f"backend cuda needs cuBLAS {found.major} (cublas_v2.h, libcublas.so.{found.major}), "
            f"which is neither in {root} nor in {looked}: "
            f"{sys.executable} -m pip install '{name}=={found.major}.*', "
            "or remove cuda from --backend")
    return Toolkit(found.nvcc, root, found.version, package)


@functools.cache
def driver() -> tuple[Path, tuple[str, ...]] | None:
    """This machine's NVIDIA driver library and its GPUs' architectures ("90"). None if either is
    missing."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuInit(0) != 0:
            return None
    except (OSError, AttributeError):
        return None
    count, value = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    found = set()
    for device in range(count.value):
        digits = ""
        for attribute in CAPABILITY:
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            digits += str(value.value)
        found.add(digits)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    path = re.search(r"/\S*libcuda\.so\S*", maps)
    return (Path(path[0]), tuple(sorted(found, key=int))) if path and found else None


def architectures(asked: str, portable: bool) -> str:
    """CMake's list of architectures: `asked`, else this machine's GPUs, else a portable one."""
    if asked:
        parts = [part for part in re.split(r"[,;\s]+", asked) if part]
        for part in parts:
            if not re.fullmatch(r"(\d{2,3}[af]?(-real|-virtual)?|native|all|all-major)", part):
                raise BuildError(
                    f"--cuda-arch {part!r} is not a CUDA architecture: give numbers such as 80 or "
                    "80,90 (compute capability 9.0 is 90), or native")
        if parts != ["native"]:
            return ";".join(parts)
        portable = False
        if driver() is None:
            raise BuildError(
                "--cuda-arch native: this machine has no NVIDIA GPU with a driver; give numbers "
                "such as 80,90")
    here = None if portable else driver()
    return ";".join(f"{one}-real" for one in here[1]) if here else PORTABLE_ARCHITECTURE


def cmake_flags(
    defines: Mapping[str, str], *, architecture: str, portable: bool
) -> dict[str, str]:
    """CMake's flags for this toolkit. `defines` (the user's -D) take precedence."""
    toolkit = find(defines)
    flags = {
        "CMAKE_CUDA_COMPILER": str(toolkit.nvcc),
        "CUDAToolkit_ROOT": str(toolkit.root),
        "CMAKE_CUDA_ARCHITECTURES": architectures(architecture, portable),
        "GGML_PY_CUDA_RPATH": toolkit.rpath,
        "GGML_CUDA_GRAPHS": "ON",       # llama.cpp's default; ggml's own is OFF
    }
    here = None if portable else driver()
    # Virtual memory needs the driver linked in; such a library does not load without the driver.
    flags["GGML_CUDA_NO_VMM"] = "OFF" if here else "ON"
    if here:
        flags["CUDA_cuda_driver_LIBRARY"] = str(here[0])
    if toolkit.cublas:
        # The package has no unnumbered libcublas.so, so CMake would not find it.
        for name in ("cublas", "cublasLt"):
            flags[f"CUDA_{name}_LIBRARY"] = \
                str(toolkit.cublas / "lib" / f"lib{name}.so.{toolkit.major}")
        flags["CMAKE_CUDA_FLAGS"] = \
            f"{defines.get('CMAKE_CUDA_FLAGS', '')} -isystem {toolkit.cublas / 'include'}".strip()
    return {name: value for name, value in flags.items()
            if name not in defines or name == "CMAKE_CUDA_FLAGS"}

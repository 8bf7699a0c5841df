"""What this machine has of what a kit needs, found out in seconds: GPU, libraries, Python, room.

With the standard library alone. `look` never raises; `Machine.missing` has a sentence for each
thing that is not there, with what was looked at.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DRIVERS = ("/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/usr/lib64")  # in containers
ROOM = 8 << 30  # bytes for the environment and the models
# CUdevice_attribute's numbers; the names are those of cudaDeviceProp, as cards have them.
ATTRIBUTES = {
    "major": 75, "minor": 76, "multiProcessorCount": 16, "sharedMemPerBlock": 8,
    "sharedMemPerBlockOptin": 97, "warpSize": 10, "integrated": 18,
}  # fmt: skip
_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


@dataclass
class Machine:
    """What was found. `libraries` are folders for LD_LIBRARY_PATH."""

    python: str = ""
    python_version: str = ""
    gpus: list[dict[str, Any]] = field(default_factory=list)
    driver: str = ""
    libraries: list[str] = field(default_factory=list)
    cores: int = 0
    processor: str = ""
    libc: str = ""
    kernel: str = ""
    missing: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs that use the kit's libraries."""
        old = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part]
        folders = list(dict.fromkeys([*self.libraries, *old]))
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "GGML_PY_UPSTREAM")}
        return env | ({"LD_LIBRARY_PATH": os.pathsep.join(folders)} if folders else {})


def look(kit: Mapping[str, Any], work: Path) -> Machine:
    """This machine, and what it lacks for the kit (kit.json's fields)."""
    found = Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=_processor(),
        libc=" ".join(platform.libc_ver()),
        kernel=platform.release(),
    )
    _system(found, kit)
    _python(found, kit["pythons"])
    if kit["cuda"]:
        _gpus(found, kit["architectures"])
        _libraries(found, kit["libraries"])
    if (room := _room(work)) < ROOM and not kit["dry_run"]:
        found.missing.append(
            f"room: {room >> 20:,} MiB are free for {work}: expected {ROOM >> 20:,}"
        )
    return found


def _room(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _system(found: Machine, kit: Mapping[str, Any]) -> None:
    if platform.machine() != kit["machine"] or sys.platform != "linux":
        found.missing.append(
            f"Linux on {kit['machine']}: this is {sys.platform} on {platform.machine()}"
        )
        return
    flags = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "").split()
    if lacking := [need for need in kit["processor"] if flags and need not in flags]:
        found.missing.append(f"processor with {', '.join(lacking)}: {found.processor} has not")
    for library, name in (("libc.so.6", "GLIBC"), ("libstdc++.so.6", "GLIBCXX")):
        need = kit["symbols"].get(name)
        path = _path_of(library) if need else None
        if need and path is None:
            found.missing.append(f"{library}: the loader does not find it")
        elif need and path and f"{name}_{need}\0".encode() not in path.read_bytes():
            found.missing.append(f"{library} with {name}_{need}, which the kit was linked with: "
                                 f"{path} has not. Make the kit on an older system")  # fmt: skip


def _path_of(library: str) -> Path | None:
    """The file that the loader takes for a library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return None
    pattern = re.compile(rf"/\S*/{re.escape(library)}[\d.]*$")
    paths = [m[0] for line in _lines("/proc/self/maps") if (m := pattern.search(line))]
    return Path(paths[0]) if paths else None


def _python(found: Machine, versions: Iterable[str]) -> None:
    """The first Python of a version that the kit has wheels for."""
    wanted = tuple(versions)
    tried = {}
    for name in (sys.executable, "python3", *(f"python{version}" for version in wanted)):
        path = shutil.which(name)
        if path is None or path in tried:
            continue
        done = subprocess.run(
            [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        tried[path] = done.stdout.strip() or "no module venv"
        if tried[path] in wanted:
            found.python, found.python_version = path, tried[path]
            return
    said = ", ".join(f"{path} ({version})" for path, version in tried.items())
    found.missing.append(
        f"Python {' or '.join(wanted)} with its module venv, which the kit has wheels for: found "
        f"{said}. Make the kit with PYTHONS=VERSION"
    )


def _gpus(found: Machine, architectures: Iterable[str]) -> None:
    cuda = None
    for folder in ("", *DRIVERS):
        try:
            cuda = ctypes.CDLL(str(Path(folder) / "libcuda.so.1"))
        except OSError:
            continue
        found.libraries += [folder] * bool(folder)
        break
    if cuda is None:
        found.missing.append(
            f"NVIDIA's driver: neither the loader nor {', '.join(DRIVERS)} has libcuda.so.1"
        )
        return
    if status := cuda.cuInit(0):
        found.missing.append(f"a GPU that the driver can use: cuInit returned {status}")
        return
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    found.driver = f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"
    cuda.cuDeviceGetCount(ctypes.byref(number))
    for index in range(number.value):
        found.gpus.append(_gpu(cuda, index))
    if not found.gpus:
        found.missing.append("a GPU: the driver has none")
    wanted = [int(re.match(r"\d+", one)[0]) for one in architectures]  # type: ignore[index]
    for gpu in found.gpus:
        cc = int(gpu["major"]) * 10 + int(gpu["minor"])
        # Machine code of 9.0 runs on 9.x from 9.0 on, and on no other.
        if not any(one // 10 == cc // 10 and one <= cc for one in wanted):
            found.missing.append(
                f"a kit for {gpu['name']} (compute capability {cc / 10}): this one has code for "
                f"{', '.join(architectures)}. Make it with ARCH={cc}"
            )


def _gpu(cuda: Any, index: int) -> dict[str, Any]:
    name, total, value = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
    cuda.cuDeviceGetName(name, len(name), index)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), index)
    properties: dict[str, Any] = {"name": name.value.decode(), "totalGlobalMem": total.value}
    for attribute, number in ATTRIBUTES.items():
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, index)
        properties[attribute] = value.value
    return properties


def _libraries(found: Machine, names: Iterable[str]) -> None:
    """Folders with CUDA's libraries: the loader's own, a toolkit's, or those of Python packages."""
    folders = list(dict.fromkeys(_folders(found.python)))
    for name in names:
        if _loads(name):
            continue
        home = next((folder for folder in folders if (folder / name).is_file()), None)
        if home is None:
            stem = name.partition(".so")[0]
            others = sorted({str(p) for folder in folders for p in folder.glob(f"{stem}.so.*")})
            found.missing.append(
                f"{name}: neither the loader nor {', '.join(map(str, folders)) or 'a toolkit'} has "
                f"it (others: {', '.join(others) or 'none'})"
            )
        elif str(home) not in found.libraries:
            found.libraries.append(str(home))


def _loads(name: str) -> bool:
    """Whether the loader finds it, without this process: loading cuBLAS takes long."""
    if shutil.which("ldconfig"):
        done = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False)
        if re.search(rf"^\s*{re.escape(name)} ", done.stdout, re.M):
            return True
    paths = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return any((Path(path) / name).is_file() for path in paths if path)


def _folders(python: str) -> Iterable[Path]:
    roots = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME", "CUDAToolkit_ROOT")]
    homes = [Path(root) for root in roots if root]
    homes += [*sorted(Path("/usr/local").glob("cuda*"), reverse=True), Path("/opt/cuda")]
    for home in homes:
        yield from (home / part for part in ("lib64", "targets/x86_64-linux/lib", "lib"))
    sites = []
    for name in dict.fromkeys((python, sys.executable, "python3")):
        if name and shutil.which(name):
            done = subprocess.run([name, "-c", _SITE], capture_output=True, text=True, check=False)
            sites.append(Path(done.stdout.strip()))
    for site in dict.fromkeys(sites):
        yield from sorted(site.glob("nvidia/*/lib"))


if __name__ == "__main__":
    kit = json.loads((Path(sys.argv[1]) / "kit.json").read_text(encoding="utf-8"))
    print(json.dumps(look(kit, Path(sys.argv[1])).as_dict(), indent=1))

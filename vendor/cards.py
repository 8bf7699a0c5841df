"""Cuts what decides about ops out of upstream's GPU backends, for devices that are not here.

Each backend has a row: its sources, the tables of functions that describe a device to ggml, and
the functions in them that only a real device needs. What is cut compiles without a toolkit, with
the stubs in `ggml_py/native/cards/`. A backend that a release lacks, or that cannot be cut from it,
is left out with the reason; its devices then answer from upstream's record (docs/ops).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vendor import cut
from vendor.report import BuildError, step

FOLDER = "cards"  # in `native/`, and of the generated files
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
    asked: tuple[str, ...] = ()  # names that some releases lack: the stubs get GP_HAS_NAME
    edits: tuple[tuple[str, str], ...] = ()  # patterns of what is not C++, and what it becomes
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # see cut.Wanted
    slices: Mapping[str, tuple[str, str]] = field(default_factory=dict)


_CUDA = Backend(
    "ggml-cuda",
    ("ggml-cuda.cu", "fattn.cu", "fwht.cu", "lightning-indexer.cu", "mmq.cu"),
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

BACKENDS: dict[str, Backend] = {
    "metal": _METAL,
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


@dataclass(frozen=True)
class Cut:
    """A backend's file that compiles, or why there is none."""

    backend: str
    file: Path | None
    why: str = ""


def generate(ggml: Path, native: Path, target: Path, compiler: Sequence[str]) -> list[Cut]:
    """Write NAME.cpp and NAME.inc into `target` for each backend that can be cut from the release.

    `native` is the folder of our native code. `compiler` is the C++ compiler's command.
    """
    target.mkdir(exist_ok=True)
    with step("cutting out what backends support"):
        return [_cut(name, ggml, native, target, compiler) for name in BACKENDS]


def _cut(name: str, ggml: Path, native: Path, target: Path, compiler: Sequence[str]) -> Cut:
    backend = BACKENDS[name]
    files = [f for f in backend.files if (ggml / "src" / backend.folder / f).is_file()]
    if backend.files[0] not in files:
        return Cut(name, None, f"the release has no {backend.folder}/{backend.files[0]}")
    command = [*compiler, "-std=c++17", "-DNDEBUG"]  # as upstream's release builds
    stubs = native / FOLDER / backend.stubs
    try:
        with tempfile.TemporaryDirectory() as empty:
            folders = [Path(empty), ggml / "src" / backend.folder, ggml / "include", ggml / "src"]
            _make_empty(Path(empty), backend, files, command, folders)
            stream = cut.preprocessed(command, files, folders, backend.defines)
            aliases = _aliases(backend, command, folders)
        for pattern, becomes in backend.edits:
            stream = re.sub(pattern, becomes, stream)
        source = cut.read(stream, {backend.folder, *backend.more})
        provided = {aliases.get(name, name) for name in _defined(stubs)}
        wanted = cut.Wanted(
            (*backend.roots, *backend.slices), provided, (*ENDS, *backend.ends), backend.answers,
            backend.members, backend.slices,
        )  # fmt: skip
        text = cut.cut(source, wanted)
    except BuildError as error:
        return Cut(name, None, str(error))
    made = target / f"{name}.cpp"
    _write(target / f"{name}.inc", text)
    defines = "".join(f"#define {d.replace('=', ' ', 1)}\n" for d in backend.defines)
    defines += "".join(f"#define {name} {other}\n" for name, other in sorted(aliases.items()))
    defines += "".join(f"#define GP_HAS_{name}\n" for name in backend.asked if name in text)
    _write(
        made,
        f'{defines}#define GP_CARD_NAME "{name}"\n#define GP_CUT "{name}.inc"\n'
        f'#include "{FOLDER}/{backend.stubs}"\n',
    )
    folders = [native, target, ggml / "include", ggml / "src"]
    command += ["-fsyntax-only", "-fno-exceptions", "-w"]
    done = subprocess.run(
        [*command, *(f"-I{f}" for f in folders), str(made)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error:" in line]
        return Cut(name, None, "; ".join(errors[:3]) or done.stderr[-300:])
    return Cut(name, made)


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _defined(stubs: Path) -> frozenset[str]:
    """The names that the stubs define."""
    text = stubs.read_text(encoding="utf-8").partition("#include GP_CUT")[0]
    code = re.sub(r"(?m)//.*|^#(?:[^\n]*\\\n)*.*|^namespace.*", "", text)
    made = cut.read(f'# 1 "{FOLDER}/{stubs.name}"\n{code}', {FOLDER})
    return frozenset(
        name for definition in made.definitions for name in definition.names
        if definition.has_body or not definition.kind
    )  # fmt: skip


def _aliases(backend: Backend, command: Sequence[str], folders: Sequence[Path]) -> dict[str, str]:
    """The macros of a header that only give a name another one."""
    if not backend.aliases:
        return {}
    listed = cut.preprocessed([*command, "-dM"], [backend.aliases], folders, backend.defines)
    return dict(re.findall(r"(?m)^#define ([A-Za-z]\w*) ([A-Za-z]\w*)$", listed))


def _make_empty(
    folder: Path, backend: Backend, files: Sequence[str], command: Sequence[str],
    folders: Sequence[Path],
) -> None:
    """Empty files for the toolkit's headers, and for any other header that is not here."""
    text = "".join(f'#include "{file}"\n' for file in files)
    for header in backend.headers:
        _touch(folder / header)
    done = subprocess.run(
        [*command, "-M", "-MG", "-x", "c++", "-w", *(f"-I{f}" for f in folders),
         *(f"-D{d}" for d in backend.defines), "-"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    for name in done.stdout.replace("\\\n", " ").split()[1:]:
        if not name.startswith("/") and name != "-":
            _touch(folder / name)


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()

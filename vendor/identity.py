"""Identifies a build: its options, the upstream they name, and the key derived from both.

The key changes with everything that affects the result: the source, our code, the flags, and for a
native build the processor. So a finished build is never stale: it either exists or does not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vendor import cache as caches
from vendor import (
    card_backends,
    cards,
    checkout,
    cuda,
    fetch,
    op_docs,
    releases,
    toolchain,
)
from vendor.releases import Release
from vendor.report import BuildError

ROOT = Path(__file__).resolve().parent.parent       # the folder that has vendor/
# In a checkout the package is beside vendor/; an installed package has vendor/ in its `_build`.
PACKAGE = ROOT.parent if ROOT.name == "_build" else ROOT / "ggml_py"
NATIVE = PACKAGE / "native"


@dataclass(frozen=True)
class Options:
    """The user's options, named as on the command line."""

    backend: tuple[str, ...] = dataclasses.field(default_factory=toolchain.default_backends)
    upstream: str | None = None
    source: Path | None = None
    pristine: bool = False
    debug: bool = False
    sanitize: str = ""          # the compiler's names: "address,undefined"
    portable: bool = False
    cards: tuple[str, ...] = tuple(card_backends.BACKENDS)  # what is cut out for simulated devices
    cuda_arch: str = ""         # "80,90", "native"; empty = this machine's GPUs or a portable one
    reference: bool = False
    defines: tuple[tuple[str, str], ...] = ()
    jobs: int = 0               # 0 = one per processor this process may use
    cache: Path = dataclasses.field(default_factory=caches.default_folder)

    @property
    def n_jobs(self) -> int:
        """How many compilers run at once."""
        if self.jobs:
            return self.jobs
        mine = getattr(os, "sched_getaffinity", None)       # Linux only
        return len(mine(0)) if mine else os.cpu_count() or 1


@dataclass(frozen=True)
class Upstream:
    """The ggml to build: a pinned release or a checkout."""

    label: str
    ggml: str
    sha256: str                 # of the sdist, or of the checkout's ggml without comments
    release: Release | None
    folder: Path | None         # the checkout's ggml folder; None = unpacked from the release

    def ggml_dir(self, options: Options) -> Path:
        """The folder with include/ and src/, fetched and unpacked if necessary."""
        if self.folder is not None:
            return self.folder
        assert self.release is not None
        return unpacked(self.release, options.cache, whole=False) / "ggml"


def unpacked(release: Release, cache: Path, *, whole: bool) -> Path:
    """The release's llama.cpp folder in the cache: the whole tree, or only the part for ggml."""
    kind, keep = ("whole", fetch.keep_all) if whole else ("ggml", fetch.keep_ggml)
    final = cache / "sources" / f"{release.label}-{release.sha256[:16]}-{kind}"
    if not final.is_dir():
        archive = fetch.download(release, cache)
        fetch.unpack_sdist(archive, release.subfolder, final, keep, f"ggml {release.label}")
    return final


def upstream_of(options: Options) -> Upstream:
    """The ggml that the options name. Raises BuildError if the release is unknown, or if
    `--source` has no ggml."""
    if options.source is None:
        release = releases.find(options.upstream)
        return Upstream(release.label, release.ggml, release.sha256, release, None)
    given = options.source.resolve()
    for folder in (given / "ggml", given):
        if (folder / "include" / "ggml.h").is_file() and (folder / "src" / "ggml.c").is_file():
            break
    else:
        raise BuildError(
            f"--source {options.source} has no ggml: give a checkout of ggml or llama.cpp "
            "(the folder with include/ggml.h, or with ggml/include/ggml.h)")
    text = (folder / "CMakeLists.txt").read_text(encoding="utf-8")
    numbers = re.findall(r"set\(GGML_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", text)
    version = ".".join(numbers) or "unversioned"
    return Upstream(f"{version}-source", version, checkout.digest_of(folder), None, folder)


COMPILER_VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CUDACXX", "HIPCXX")


def common_flags(options: Options) -> dict[str, str]:
    """The CMake variables that our build and the reference build share."""
    without = {} if options.portable else {
        f"CMAKE_{language}_FLAGS": f"{os.environ.get(variable, '')} {flags}".strip()
        for language, variable in (("C", "CFLAGS"), ("CXX", "CXXFLAGS"))
        if (flags := " ".join(toolchain.flags_without_amx()))
    }
    if not (options.debug or options.sanitize):
        return {"CMAKE_BUILD_TYPE": "Release", "GGML_CCACHE": "OFF", **without}
    # CMake's own flags for this type disable assert() and optimise too much for a debugger.
    flags = "-O1 -g -fno-omit-frame-pointer"
    if options.sanitize:
        # NDEBUG as in a release: assert() ends the process, and no guard can catch that.
        flags += f" -DNDEBUG -fsanitize={options.sanitize}"     # the linker gets these flags too
    if "address" in options.sanitize:
        flags += " -fsanitize-recover=address"          # lets halt_on_error=0 list all errors
    return {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo",
        "CMAKE_C_FLAGS_RELWITHDEBINFO": flags,
        "CMAKE_CXX_FLAGS_RELWITHDEBINFO": flags,
        "GGML_CCACHE": "OFF",
        **without,
    }


def cmake_flags(options: Options) -> dict[str, str]:
    """The CMake variables for the options. Paths, which do not affect the result, come later."""
    flags = {
        **common_flags(options),
        "GGML_NATIVE": "OFF" if options.portable else "ON",
        "GGML_BACKEND_DL": "ON" if options.portable else "OFF",
        "GGML_CPU_ALL_VARIANTS": "ON" if options.portable else "OFF",
        "GGML_OPENMP": "OFF",       # use ggml's own thread pool: no libgomp to ship
        "GGML_LLAMAFILE": "ON",     # as in llama.cpp: other kernels would round differently
    }
    for name in toolchain.BACKENDS:
        flags[f"GGML_{name.upper()}"] = "ON" if name in options.backend else "OFF"
    if "metal" in options.backend:
        flags["GGML_METAL_EMBED_LIBRARY"] = "ON"
    return flags | dict(options.defines) | cuda_flags(options)


def cuda_flags(options: Options) -> dict[str, str]:
    """The CMake variables of a CUDA build, including paths, which end up in the rpath."""
    if "cuda" not in options.backend:
        return {}
    return cuda.cmake_flags(
        dict(options.defines), architecture=options.cuda_arch, portable=options.portable)


def uses_openblas(options: Options) -> bool:
    """Whether the build uses the pinned OpenBLAS. macOS has Accelerate; `-D` may name another."""
    chosen = {"GGML_BLAS_VENDOR", "GGML_PY_OPENBLAS"} & dict(options.defines).keys()
    return "blas" in options.backend and sys.platform != "darwin" and not chosen


def _texts(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):     # folders differ once installed
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def made_of(options: Options) -> dict[str, Path]:
    """Every file of ours that is compiled or generates compiled code, by its path in a clone.

    The generators (instrument.py, bindgen.py) stand for their output, which they and the source's
    hash determine. So a finished build is found without unpacking or parsing anything.
    """
    native = (path for folder in (NATIVE, NATIVE / cards.FOLDER) for path in folder.iterdir())
    files = {f"ggml_py/native/{path.relative_to(NATIVE).as_posix()}": path for path in native
             if path.suffix in (".h", ".c", ".cpp", ".txt", ".cmake")}
    bindings = ("headers.py", "bindgen.py", "bindgen_py.py", "op_docs.py", *cards.MAKERS)
    makers = [*(ROOT / "vendor" / name for name in bindings), *op_docs.TABLES]
    if not options.pristine:
        makers += [ROOT / "vendor" / name for name in ("edit.py", "instrument.py")]
        makers += (ROOT / "vendor").glob("*_edits.py")
    return dict(sorted((files | {f"vendor/{path.name}": path for path in makers}).items()))


def instrumentation_hash(options: Options) -> str:
    """A hash of the files of `made_of`."""
    return _texts(list(made_of(options).values()))


RECORD = "2"        # version of build.json: a build whose build.json lacks fields is not reused


def label_of(options: Options, upstream: Upstream) -> str:
    """The release's label, with suffixes for options that differ from the usual build."""
    return "-".join([upstream.label, *(one for one in releases.SUFFIXES if getattr(options, one))])


def tree_of(options: Options, upstream: Upstream) -> str:
    """The name of the build tree. A checkout has one, whatever is in it now."""
    source = str(upstream.folder) if upstream.folder else upstream.sha256
    return f"{label_of(options, upstream)}-{_hash_of(options, source)[:12]}"


def configuration(options: Options, upstream: Upstream) -> str:
    """A hash of the source and all flags, but not of our code."""
    return _hash_of(options, upstream.sha256)


def _hash_of(options: Options, source: str) -> str:
    parts: dict[str, Any] = {
        "source": source,
        "cards": sorted(options.cards),
        "flags": cmake_flags(options),
        "pristine": options.pristine,
        "openblas": releases.openblas().sha256 if uses_openblas(options) else "",
        "cpu": "" if options.portable else toolchain.cpu_identity(),
        "environment": {name: os.environ.get(name, "") for name in COMPILER_VARIABLES},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def key_of(options: Options, upstream: Upstream) -> str:
    """The name of the finished build's folder."""
    both = configuration(options, upstream) + instrumentation_hash(options) + RECORD
    return f"{label_of(options, upstream)}-{hashlib.sha256(both.encode()).hexdigest()[:8]}"

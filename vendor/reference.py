"""Builds upstream's own programs and libllama, unmodified, from the same sources, as test oracles.

They are put into `reference/<key>/bin` and `lib` of the cache, with relative rpaths, so the folder
can be moved. `oracles.py` adds our own programs.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from vendor import cache as caches
from vendor import oracles, releases, toolchain
from vendor.compile import Tree
from vendor.identity import (
    NATIVE,
    Options,
    Upstream,
    common_flags,
    cuda_flags,
    unpacked,
    upstream_of,
)
from vendor.report import BuildError, say, writing

PROGRAMS = (
    "llama-bench", "llama-eval-callback", "llama-fit-params", "test-backend-ops",
    "test-llama-archs",
)  # fmt: skip
PROOF = "build.json"
# Halves the time; other releases may have files that do not compile together.
_TOGETHER = {"CMAKE_PROJECT_llama.cpp_INCLUDE": str(NATIVE / "llama" / "together.cmake")}


def _flags(options: Options) -> dict[str, str]:
    """Native flags and upstream's defaults, plus requested backends beyond our usual ones.

    Only `-D GGML_BLAS=ON` turns blas on: a plain reference is a plain llama.cpp.
    """
    flags = {
        **common_flags(options),
        "GGML_NATIVE": "ON",
        "GGML_RPC": "ON",
        "LLAMA_CURL": "OFF",
        "LLAMA_OPENSSL": "OFF",
        "LLAMA_BUILD_SERVER": "OFF",
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_BUILD_MTMD": "OFF",
    }
    for name in options.backend:
        if name not in ("cpu", "blas", "rpc", "metal"):
            flags[f"GGML_{name.upper()}"] = "ON"
    return flags | dict(options.defines) | cuda_flags(options)


def build(options: Options, may_build: bool = True) -> Path:
    """The reference build's folder in the cache, or in a checkout the folder that has our programs
    too. Builds it if it is missing; without `may_build` that is an error. Raises BuildError."""
    toolchain.check_names(options.backend)
    upstream = upstream_of(options)
    flags = _flags(options)
    identity = json.dumps(
        [upstream.sha256, flags, toolchain.cpu_identity(), PROGRAMS], sort_keys=True)
    key = f"{upstream.label}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    final = options.cache / "reference" / key
    if not may_build:
        if not (final / PROOF).is_file():
            raise BuildError(f"{final} is not built yet: leave out --no-build")
        return final
    tools = toolchain.find_tools()
    toolchain.check_toolkits(options.backend, dict(options.defines))
    with caches.Lock(options.cache) as lock, writing("building upstream", options.cache):
        source = _source(options, upstream)
        if not (final / PROOF).is_file():
            caches.sweep(options.cache)
            say("building upstream's own programs: about three minutes on two cores, once")
            tree = Tree(options.cache / "trees" / f"reference-{key}",
                        options.cache / "logs" / f"reference-{key}.log", tools, lock)
            with caches.staged(final) as stage:
                known = upstream.release == releases.default()
                _build(tree, source, flags | (_TOGETHER if known else {}), options.n_jobs, stage)
                proof = _proof(options, upstream, key, flags)
                (stage / PROOF).write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")
            tree.finished()
            # 300 MB of object files that are not needed again: the reference never changes.
            shutil.rmtree(tree.folder, ignore_errors=True)
        programs = [final / "bin" / name for name in PROGRAMS if (final / "bin" / name).is_file()]
        if not oracles.sources():
            return final
        return oracles.build(final, programs, source, tools)


def _source(options: Options, upstream: Upstream) -> Path:
    """llama.cpp's whole tree."""
    if upstream.release is not None:
        return unpacked(upstream.release, options.cache, whole=True)
    assert upstream.folder is not None
    whole = upstream.folder.parent
    if not (whole / "include" / "llama.h").is_file():
        raise BuildError(
            f"--reference needs the whole tree of llama.cpp, but {upstream.folder} has only ggml: "
            "give --source a checkout of llama.cpp")
    return whole


def _build(tree: Tree, source: Path, flags: dict[str, str], jobs: int, stage: Path) -> None:
    origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    tree.configure(source, {
        **flags,
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "CMAKE_INSTALL_RPATH": f"{origin}/../lib;{origin}",
        "GIT_EXE": "",      # as in build_ggml.py, so that a release is not "dirty"
    }, jobs)
    listed = subprocess.run(
        [tree.tools.ninja, "-C", str(tree.build), "-t", "targets", "all"],
        capture_output=True, text=True, check=False).stdout.splitlines()
    # Old releases lack some programs: test-llama-archs was added in 2026.
    present = [name for name in PROGRAMS if f"{name}: phony" in listed]
    tree.compile(("llama", *present), jobs)
    for folder in (stage / "bin", stage / "lib"):
        folder.mkdir()
    for path in sorted((tree.build / "bin").iterdir()):
        if path.name in present:
            shutil.copy2(path, stage / "bin" / path.name)
        elif ".so" in path.suffixes or path.suffix == ".dylib":
            shutil.copy2(path, stage / "lib" / path.name, follow_symlinks=False)


def _proof(
    options: Options, upstream: Upstream, key: str, flags: dict[str, str]
) -> dict[str, Any]:
    release = upstream.release
    return {
        "key": key,
        "label": upstream.label,
        "package": release.package if release else None,
        "version": release.version if release else None,
        "ggml_version": upstream.ggml,
        "llama_build": release.build if release else None,
        "source_sha256": upstream.sha256,
        "reference": True,
        "debug": options.debug,
        "sanitize": options.sanitize,
        "cmake": flags,
        "built_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }

"""Builds upstream's `test-backend-ops` for a finished build of ggml, in `op_tests/<key>` of the
cache.

The program is one file, which needs nothing of libllama. Beside it are unmodified copies of the
libraries that the build has instrumented: these refuse some of the program's tensors. The other
libraries, of BLAS and of GPUs, are the build's own (`ggml_py/conformance/program.py` puts both on
the library path).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from vendor import cache as caches
from vendor import llama, toolchain
from vendor.compile import Tree
from vendor.identity import COMPILER_VARIABLES, Options
from vendor.report import BuildError, say, step, writing

PROOF = "op_tests.json"  # written last: a folder that has it is complete
PROGRAM = "test-backend-ops"
_NOT_NEEDED = (
    "COMMON",
    "TESTS",
    "TOOLS",
    "EXAMPLES",
    "SERVER",
    "UI",
    "MTMD",
    "APP",
)  # of llama.cpp
_INSTRUMENTED = ("base", "cpu", "rpc")  # as INSTRUMENTED in benchmarks/gpu/make_kit.py


def build(built: Path, proof: dict[str, Any], options: Options, may_build: bool = True) -> Path:
    """The folder with the program for the finished build of ggml in `built`, whose build.json is
    `proof`; made if it is missing and `may_build`. Raises BuildError."""
    label = proof["label"]
    if sys.platform != "linux":
        raise BuildError(f"{PROGRAM} is built on Linux only, and this is {sys.platform}")
    if proof["portable"]:
        raise BuildError(
            f"{PROGRAM} is not built for portable builds, such as {proof['key']}: make another "
            "without --portable"
        )
    digest = hashlib.sha256(Path(__file__).read_bytes() + json.dumps([
        proof["key"], {name: os.environ.get(name, "") for name in COMPILER_VARIABLES},
    ]).encode())  # fmt: skip
    final = options.cache / "op_tests" / f"{proof['key']}-{digest.hexdigest()[:8]}"
    if (final / PROOF).is_file():
        return final
    if not may_build:
        raise BuildError(f"{PROGRAM} of ggml {label} is not built")
    tools = toolchain.find_tools()
    with caches.Lock(options.cache) as lock, writing(f"building {PROGRAM}", options.cache):
        if (final / PROOF).is_file():
            return final  # the process that we waited for built this
        caches.sweep(options.cache)
        _upstream, source = llama._source(proof, options)  # as of libllama
        program = source / "tests" / f"{PROGRAM}.cpp"
        if not program.is_file():
            raise BuildError(f"the sources of {label} have no {PROGRAM}: {program} is missing")
        say(
            f"building {PROGRAM} of ggml {label}: about two minutes on two cores, once; it is "
            f"kept in {final}"
        )
        tree = Tree(options.cache / "trees" / f"op-tests-{final.name}",
                    options.cache / "logs" / f"op-tests-{final.name}.log", tools, lock)  # fmt: skip
        with caches.staged(final) as stage:
            _libraries(tree, source, proof, options.n_jobs, stage)
            _compile(tree, program, source / "ggml", built, stage)
            (stage / PROOF).write_text(
                json.dumps({"key": final.name, "build": proof["key"]}) + "\n", encoding="utf-8"
            )
        tree.finished()
        shutil.rmtree(tree.folder, ignore_errors=True)  # what is built never changes
    return final


def _libraries(tree: Tree, source: Path, proof: dict[str, Any], jobs: int, stage: Path) -> None:
    """Upstream's own libraries in place of the instrumented ones, compiled with the same flags."""
    names = [name for name in _INSTRUMENTED if name in ("base", *proof["backends"])]
    own = {name: value for name, value in proof["cmake"].items()
           if not name.startswith("GGML_") or name in (
               "GGML_NATIVE", "GGML_OPENMP", "GGML_LLAMAFILE", "GGML_CCACHE")}  # fmt: skip
    tree.configure(source, {
        **own, "BUILD_SHARED_LIBS": "ON", "GGML_CPU": "ON", "GGML_BUILD_TESTS": "OFF",
        "GGML_BUILD_EXAMPLES": "OFF", "GGML_RPC": "ON" if "rpc" in names else "OFF",
        "GGML_METAL": "OFF", "GGML_BLAS": "OFF", "LLAMA_CURL": "OFF", "LLAMA_OPENSSL": "OFF",
        **{f"LLAMA_BUILD_{part}": "OFF" for part in _NOT_NEEDED},
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON", "CMAKE_INSTALL_RPATH": "$ORIGIN",
        "GIT_EXE": "",  # as in build_ggml.py, so that a release is not "dirty"
    }, jobs)  # fmt: skip
    tree.compile([f"ggml-{name}" for name in names], jobs)
    made = [path for path in tree.build.rglob("libggml-*.so*") if path.is_file()]
    for path in made:
        shutil.copy2(path, stage / path.name, follow_symlinks=False)


def _compile(tree: Tree, program: Path, ggml: Path, built: Path, stage: Path) -> None:
    """The program, linked to the library of the build that knows all its backends."""
    registry = [*built.glob("libggml.so*")]
    base = [*stage.glob("libggml-base.so*")]
    if not registry or not base:
        raise BuildError(f"{built} has no libggml: build ggml again")
    with step(f"compiling {PROGRAM}"):
        done = subprocess.run(
            [tree.tools.cxx, "-std=c++17", "-O1", "-w", "-o", str(stage / PROGRAM), str(program),
             f"-I{ggml / 'include'}", f"-I{ggml / 'src'}", str(registry[0]), str(base[0]),
             "-lpthread", "-Wl,--allow-shlib-undefined"],
            capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        tree.log.write_text(done.stderr, encoding="utf-8")
        tree.failed()
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        raise BuildError(
            f"{program} does not compile: {lines[0] if lines else done.stderr[-500:]}\n"
            f"  log: {tree.log}"
        )

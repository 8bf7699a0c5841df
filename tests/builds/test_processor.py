"""A build for one processor: what it needs is written down, and refused where that is missing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py import builds
from ggml_py.boundary.ffi import BUILD
from ggml_py.builds import processor

from ..support import build_support  # noqa: F401  vendor/ is found

X86 = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="needs are written down on Linux, x86-64",
)
PACKAGE = Path(ggml.__file__).parent
# Upstream's names for what its CPU backend was compiled with, and the kernel's.
UPSTREAM = {
    "SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma",
    "BMI2": "bmi2", "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16", "AVX_VNNI": "avx_vnni",
    "AMX_INT8": "amx_int8",
}  # fmt: skip


@X86
def test_the_record_is_what_upstream_says_it_was_compiled_with():
    if BUILD["portable"]:
        pytest.skip("a portable build asks the processor")
    compiled = ggml.device("CPU").features
    assert len(BUILD["processor"]) > 5
    assert processor.lacking(BUILD) == []
    needed = {name for name in UPSTREAM if UPSTREAM[name] in BUILD["processor"]}
    assert needed == {name for name in UPSTREAM if name in compiled}


@X86
@pytest.mark.parametrize(
    ("flags", "needs"),
    [
        ([], []),
        (["-msse4.2"], ["pni", "popcnt", "sse4_1", "sse4_2", "ssse3"]),
        (["-march=x86-64-v2", "-mavx"], ["avx", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"]),
    ],
)
def test_needs_follow_from_the_flags_of_all_objects(tmp_path, flags, needs):
    from vendor import processor as maker

    words = "/usr/bin/cc -O3 -o a.o -c"
    commands = [
        {"file": "a.c", "command": f"{words} a.c"},
        {"file": "b.cpp", "command": f"{words} {' '.join(flags)} b.cpp"},
        {"file": "c.cu", "command": f"{words} -mavx512f c.cu"},
    ]
    (tmp_path / "compile_commands.json").write_text(json.dumps(commands))
    assert maker.needed(tmp_path, "cc") == needs


@pytest.fixture
def package(tmp_path):
    """`package(*needs)`: a copy of ggml_py whose build needs these features, too."""

    def make(*needs):
        target = tmp_path / "ggml_py"
        shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("lib", "__pycache__"))
        folder = target / "native" / "lib" / BUILD["key"]
        folder.mkdir(parents=True)
        for path in BUILD["folder"].iterdir():
            (folder / path.name).symlink_to(path)
        record = {k: v for k, v in BUILD.items() if k != "folder"}
        record["processor"] = [*BUILD.get("processor", ()), *needs]
        (folder / "build.json").unlink()
        (folder / "build.json").write_text(json.dumps(record))
        return tmp_path

    return make


def python(folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "GGML_PY_UPSTREAM")},
    )  # fmt: skip


@X86
def test_a_build_for_another_processor_is_refused_before_it_is_loaded(package):
    folder = package("avx1024", "amx_all")
    done = python(folder, "-c", "import ggml_py; print(ggml_py.Plan.__name__); ggml_py.devices()")
    assert done.returncode == 1  # and not a signal
    assert done.stdout == "Plan\n"  # saved plans can be read
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ggml_py.errors.LoadError: build ")
    assert "lacks avx1024, amx_all. Build it on this machine" in last
    assert "portable=true" in last
    done = python(folder, "-m", "ggml_py", "devices")
    assert done.returncode == 1
    assert "lacks avx1024, amx_all" in done.stderr
    assert "Traceback" not in done.stderr


@X86
def test_that_copy_works_where_nothing_is_missing(package):
    done = python(package(), "-c", "import ggml_py; print(len(ggml_py.devices()) > 0)")
    assert done.stdout == "True\n", done.stderr


@X86
def test_the_build_that_fits_is_preferred_to_a_newer_one(package, monkeypatch):
    lib = package() / "ggml_py" / "native" / "lib"
    newer = lib / f"{BUILD['key']}9"
    shutil.copytree(lib / BUILD["key"], newer, symlinks=True)
    record = json.loads((newer / "build.json").read_text())
    record |= {"key": newer.name, "built_at": "9999", "processor": ["avx1024"]}
    (newer / "build.json").write_text(json.dumps(record))
    monkeypatch.setattr(builds, "LIB_DIR", lib)
    assert [build["key"] for build in builds.builds()] == [newer.name, BUILD["key"]]
    assert builds.select(None)["key"] == BUILD["key"]
    assert builds.select(BUILD["label"])["key"] == BUILD["key"]
    assert builds.select(newer.name)["key"] == newer.name  # who names it gets the error


def test_another_processor_is_told_by_its_own_list(tmp_path, monkeypatch):
    older = tmp_path / "cpuinfo"
    older.write_text(
        "processor\t: 0\nmodel name\t: Old One\nflags\t\t: fpu sse4_2 avx\n\n"
        "processor\t: 1\nmodel name\t: Old One\nflags\t\t: fpu sse4_2 avx avx2\n"
    )
    build = {"key": "0.26.0-12345678", "processor": ["avx", "avx2", "fma"]}
    monkeypatch.setattr(processor, "CPUINFO", older)
    with pytest.raises(ggml.LoadError, match=r"build 0\.26\.0-12345678 .* Old One lacks avx2, fma"):
        processor.check(build)
    processor.check({"key": "a portable one"})
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")  # a system without the file
    processor.check(build)


# --- AMX, which GCC compiles wrongly

_CUT = '__asm__ volatile ("ldtilecfg\\t%X0" :: "m" (*((const void **)__config)));'
_WHOLE = '__asm__ volatile ("ldtilecfg\\t%X0" :: "m" (*(const _tile *) __config));'


@pytest.mark.parametrize(
    ("flags", "header", "is_left_out"),
    [("flags : avx2 amx_tile", _CUT, True), ("flags : avx2 amx_tile", _WHOLE, False),
     ("flags : avx2", _CUT, False), ("flags : avx2 amx_tile", None, False)],
)  # fmt: skip
def test_amx_is_left_out_where_the_compiler_drops_its_configuration(
    tmp_path, monkeypatch, flags, header, is_left_out
):
    from vendor import identity, toolchain

    path = tmp_path / "amxtileintrin.h"
    if header is not None:
        path.write_text(header)
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\necho {path}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("CFLAGS", "-O2")
    monkeypatch.setattr(toolchain, "cpu_identity", lambda: flags)
    found = identity.common_flags(identity.Options())
    assert ("-mno-amx-tile" in found.get("CMAKE_CXX_FLAGS", "")) == is_left_out
    assert found.get("CMAKE_C_FLAGS", "-O2").startswith("-O2")  # the user's own stay
    assert "CMAKE_C_FLAGS" not in identity.common_flags(identity.Options(portable=True))


@X86
def test_this_build_computes_with_its_own_instructions(tmp_path):
    """A prompt of a quantised model: it died of SIGILL where AMX was compiled wrongly."""
    code = (
        "import ggml_py as ggml, numpy as np\n"
        "from ggml_py.models import load\n"
        "from ggml_py.models.synthetic import LlamaSpec, write_llama\n"
        "write_llama('m.gguf', LlamaSpec(n_layer=1))\n"
        "with load('m.gguf') as m: print(np.isfinite(m.eval(list(range(64)))).all())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=False, cwd=tmp_path)  # fmt: skip
    assert done.stdout.strip() == "True", (done.returncode, done.stderr[-500:])

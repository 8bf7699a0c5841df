"""Finds out which processor features a build needs, by asking the compiler about its flags.

Code compiled with `-march=native` ends the process with SIGILL on a processor that lacks one of its
instructions. `build.json` lists the needed features by their names in /proc/cpuinfo, and
`ggml_py/builds/processor.py` checks them before it loads the build.
"""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from vendor import toolchain

# The compiler's macro -> the kernel's name. Compilers emit these instructions by themselves, or
# ggml's kernels use them if the macro is defined. Instructions that code must name explicitly (SHA,
# AES, RDSEED) are not listed, nor those that Linux does not list in /proc/cpuinfo (AVX-IFMA).
_KERNEL = {
    "SSE3": "pni", "SSSE3": "ssse3", "SSE4_1": "sse4_1", "SSE4_2": "sse4_2", "POPCNT": "popcnt",
    "LZCNT": "abm", "BMI": "bmi1", "BMI2": "bmi2", "MOVBE": "movbe", "ADX": "adx",
    "PCLMUL": "pclmulqdq", "F16C": "f16c", "FMA": "fma", "FMA4": "fma4", "XOP": "xop",
    "TBM": "tbm", "AVX": "avx", "AVX2": "avx2", "AVXVNNI": "avx_vnni", "GFNI": "gfni",
    "VPCLMULQDQ": "vpclmulqdq", "AVX512F": "avx512f", "AVX512CD": "avx512cd",
    "AVX512BW": "avx512bw", "AVX512DQ": "avx512dq", "AVX512VL": "avx512vl",
    "AVX512IFMA": "avx512ifma", "AVX512VBMI": "avx512vbmi", "AVX512VBMI2": "avx512_vbmi2",
    "AVX512VNNI": "avx512_vnni", "AVX512BITALG": "avx512_bitalg",
    "AVX512VPOPCNTDQ": "avx512_vpopcntdq", "AVX512BF16": "avx512_bf16",
    "AVX512FP16": "avx512_fp16", "AMX_TILE": "amx_tile", "AMX_INT8": "amx_int8",
    "AMX_BF16": "amx_bf16",
}  # fmt: skip


def _features(cc: str, flags: Sequence[str]) -> set[str]:
    """The features that code compiled with these flags may use."""
    done = subprocess.run([cc, *flags, "-dM", "-E", "-x", "c", "/dev/null"],
                          capture_output=True, text=True, check=False)
    macros = {line.split()[1] for line in done.stdout.splitlines() if line.count(" ") > 1}
    return {name for macro, name in _KERNEL.items() if f"__{macro}__" in macros}


def needed(build_tree: Path, cc: str) -> list[str]:
    """The features that the objects of a CMake tree need. Empty except on Linux on x86-64."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return []
    commands = json.loads((build_tree / "compile_commands.json").read_text(encoding="utf-8"))
    given = {tuple(word for word in shlex.split(one["command"]) if word.startswith("-m"))
             for one in commands if one["file"].endswith((".c", ".cpp"))}
    features = set().union(*(_features(cc, flags) for flags in given))
    # If the kernel hides a feature of this processor, its absence in /proc/cpuinfo proves nothing.
    hidden = _features(cc, ["-march=native"]) - set(toolchain.cpu_identity().split())
    return sorted(features - hidden)

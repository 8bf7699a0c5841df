"""Reads a scheduler's private struct with code compiled from upstream's own definition of it.

The structs and macros are cut out of ggml-backend.cpp, so the offsets do not depend on our code.
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path

from ggml_py.boundary.ffi import BUILD, ffi

from .build_support import caches as cache

COMPILER = shutil.which("c++")


def source() -> Path | None:
    """Upstream's ggml/ folder of the release that was built; None if it no longer exists."""
    release = BUILD["label"]
    found = (cache.default_folder() / "sources").glob(f"{release}-*/ggml/src/ggml-backend.cpp")
    return next((path.parent.parent for path in sorted(found)), None)


def _struct(text: str, name: str) -> str:
    return re.search(rf"^struct {name} {{\n.*?^}};\n", text, re.S | re.M)[0]


def declared(text: str, name: str) -> list[str]:
    """The fields of a struct, parsed from its definition."""
    body = re.sub(r"//[^\n]*", "", _struct(text, name)).partition("{")[2]
    return re.findall(r"(\w+)(?:\[\w+\])*\s*;", body)


STRUCTS = ("ggml_backend_sched", "ggml_backend_sched_split", "ggml_cgraph", "ggml_hash_set")
_COMPOUND = {"backends", "bufts", "hash_set", "graph", "events"}


class Oracle:
    """The compiled reader."""

    def __init__(self, ggml: Path, folder: Path) -> None:
        text = (ggml / "src" / "ggml-backend.cpp").read_text()
        impl = (ggml / "src" / "ggml-impl.h").read_text()
        where = (text, text, impl, impl)
        self.declared = {n: declared(t, n) for n, t in zip(STRUCTS, where, strict=True)}
        ours = _struct(text, "ggml_backend_sched").replace("{\n", "{\n    void * trace;\n", 1)
        macros = re.findall(r"^#define (?:hash_id|tensor_\w+)\(.*\n", text, re.M)
        limits = re.findall(r"^#define GGML_SCHED_MAX_\w+ .*\n", text, re.M)
        scalars = [n for n in self.declared["ggml_backend_sched"] if n not in _COMPOUND]
        defines = {"SCALARS": [f"SCALAR({n})" for n in scalars], "LAYOUT": []}
        for struct, names in self.declared.items():
            defines["LAYOUT"] += [f"PLACE({struct}, {name})" for name in names]
        lists = "".join(f"#define {name} {' '.join(all_)}\n" for name, all_ in defines.items())
        read = Path(__file__).with_suffix(".h").read_text()
        program = folder / "oracle_sched.cpp"
        program.write_text(
            '#include "ggml-impl.h"\n#include "ggml-backend-impl.h"\n#include "ggml-alloc.h"\n'
            "#include <cstdarg>\n#include <cstddef>\n#include <cstdio>\n#include <string>\n"
            + "".join(limits) + _struct(text, "ggml_backend_sched_split") + ours
            + "".join(macros) + lists + read
        )  # fmt: skip
        library = folder / "oracle_sched.so"
        subprocess.run(
            [COMPILER, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-I", ggml / "include",
             "-Wl,--unresolved-symbols=ignore-all", "-I", ggml / "src", program, "-o", library],
            check=True,
        )  # fmt: skip
        self._lib = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL | 1)
        self._lib.read_sched.restype = self._lib.layout.restype = ctypes.c_char_p
        self._lib.slot_of.restype = ctypes.c_longlong

    def read(self, sched):
        """The current values of all fields, with pointers as numbers."""
        at = ctypes.c_void_p(int(ffi.cast("uintptr_t", sched.ptr)))
        return json.loads(self._lib.read_sched(at))

    def layout(self):
        """struct.field -> (offset, size)."""
        return {k: tuple(v) for k, v in json.loads(self._lib.layout()).items() if k}

    def slot_of(self, sched, tensor):
        """The tensor's slot in the hash set; -1 if it has none."""
        at = (ctypes.c_void_p(int(ffi.cast("uintptr_t", p))) for p in (sched.ptr, tensor.ptr))
        return self._lib.slot_of(*at)

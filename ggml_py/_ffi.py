"""The one door to the compiled module: finds the build, loads it, installs guard and log.

A build is a folder ``native/lib/<key>/`` with ``build.json`` (written last, so a folder without it
is not whole). By default the newest instrumented build of the release that `enums.py` was generated
from is taken; ``GGML_PY_UPSTREAM`` names another: a ggml version, ``b<llama.cpp build>``, the
version of the package it came from, a label (``0.26.0-pristine``) or a key. One per process.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from . import _interpreter, _log, enums
from .errors import LoadError, NotBuiltError

# Sanitizers that must be first in a process: name, library, a function of it.
_RUNTIMES = (("address", "libasan.so", "__asan_init"), ("thread", "libtsan.so", "__tsan_init"))
# What a CUDA build finds by its rpath, and the packages that bring it.
_CUDA = {"libcublas": "nvidia-cublas", "libcudart": "nvidia-cuda-runtime"}

LIB_DIR = Path(__file__).parent / "native" / "lib"


def builds() -> list[dict[str, Any]]:
    """The whole builds beside this package, newest first; each has its `folder`."""
    found = []
    for manifest in LIB_DIR.glob("*/build.json"):
        build = json.loads(manifest.read_text())
        build["folder"] = manifest.parent
        found.append(build)
    return sorted(found, key=lambda b: str(b.get("built_at", "")), reverse=True)


def _names(build: dict[str, Any]) -> set[str]:
    names = {str(build[k]) for k in ("key", "label", "ggml_version", "version")}
    return names | {f"b{build['llama_build']}"} if build["llama_build"] else names


def _special(build: dict[str, Any]) -> bool:
    return bool(build["pristine"] or build["debug"] or build.get("sanitize"))


def select(wanted: str | None) -> dict[str, Any]:
    """The build that `wanted` names, or the default one. Raises `NotBuiltError`."""
    present = builds()
    if not present:
        raise NotBuiltError(
            f"ggml_py has no native library yet (nothing whole under {LIB_DIR}). Build it: "
            "`python build_ggml.py` in the source tree, or `pip install .`. (An installed ggml_py "
            "is hidden by the source tree while Python runs in that folder: run it elsewhere)"
        )
    if wanted:
        exact = [b for b in present if wanted in (b["key"], b["label"])]
        matching = exact or [b for b in present if wanted in _names(b)]
        if not matching:
            have = ", ".join(sorted({b["label"] for b in present}))
            raise NotBuiltError(
                f"GGML_PY_UPSTREAM={wanted}: no such build here. Present: {have}. "
                f"Make it with `ggml-py build --upstream {wanted}`"
            )
        return min(matching, key=_special)
    return min(present, key=lambda b: (_special(b), b["ggml_version"] != enums.UPSTREAM))


def _check_sanitizers(build: dict[str, Any]) -> None:
    """A sanitizer's runtime that is loaded with its library, and not before, ends the process."""
    import ctypes

    for name, library, sign in _RUNTIMES:
        if name in build["sanitize"] and not hasattr(ctypes.CDLL(None), sign):
            raise LoadError(
                f"build {build['key']} needs the runtime of its sanitizer before Python starts: "
                f"LD_PRELOAD=$(cc -print-file-name={library}) python ... (`make sanitize` does it)"
            )


def _load(name: str, path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise NotBuiltError(f"{path} cannot be loaded: the build is damaged, build again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _replace(module: ModuleType, path: Path) -> ModuleType:
    """The same module with the content of `path`: others may have imported it already."""
    spec = importlib.util.spec_from_file_location(module.__name__, path)
    if spec is None or spec.loader is None:
        raise NotBuiltError(f"{path} cannot be loaded: the build is damaged, build again")
    for name in [name for name in vars(module) if not name.startswith("__")]:
        delattr(module, name)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _blas_without_threads() -> Iterator[None]:
    """OpenBLAS starts a thread for each processor when it is loaded, and they spin beside whatever
    is imported next. The BLAS backend starts those that it needs itself."""
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def _open(build: dict[str, Any]) -> Any:
    path = build["folder"] / "_ggml.abi3.so"
    if build.get("sanitize"):
        _check_sanitizers(build)
    try:
        with _blas_without_threads():
            return _load("ggml_py._ggml", path)
    except ImportError as error:
        raise NotBuiltError(
            f"the native library of build {build['key']} does not load: {error}. {_remedy(error)}"
        ) from error


def _remedy(error: ImportError) -> str:
    name, _, what = str(error).partition(": ")
    package = next((p for stem, p in _CUDA.items() if name.startswith(stem)), None)
    if package is None or "cannot open" not in what:
        return "It was built for another machine or is damaged; build again."
    major = name.rpartition(".")[2]
    package += "" if int(major) >= 13 else f"-cu{major}"
    return (
        f"It was built with CUDA {major}, which has to be here too: install that toolkit, or "
        f"`python -m pip install '{package}=={major}.*'` where ggml_py is installed"
    )


_interpreter.check()
if sys.modules.get("ggml_py._ggml", ...) is None:
    raise NotBuiltError("the native module of ggml_py is blocked in this process")
BUILD = select(os.environ.get("GGML_PY_UPSTREAM"))
_module = _open(BUILD)
ffi = _module.ffi
lib = _module.lib
NULL = ffi.NULL

lib.gp_guard_install()
_log.install(ffi, lib)
if BUILD["portable"]:
    with _blas_without_threads():
        lib.ggml_backend_load_all_from_path(str(BUILD["folder"]).encode())


def text(value: Any) -> str:
    """A C string as str; "" for NULL."""
    return ffi.string(value).decode("utf-8", "replace") if value != NULL else ""


# Numbers and ops differ between releases: this one's own take the place of the committed ones.
if BUILD["ggml_version"] != enums.UPSTREAM:
    from ._release import Release

    _release = Release(BUILD["label"])
    lib = _release.fit_lib(lib)
    _release.fit_enums(_replace(enums, BUILD["folder"] / "enums.py"))
    _release.offer_ops(BUILD["folder"] / "ops.py")

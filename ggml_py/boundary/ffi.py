"""The only access to the compiled module: loads the build, installs the guard and the log.

A process has one build, which `builds.select` finds when this module is imported. Its enum numbers
must match those of `ggml_py.enums`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import enums
from .. import log as _log
from ..builds import generated, select
from ..builds import processor as _processor
from ..builds.default_enums import UPSTREAM
from ..errors import LoadError, NotBuiltError
from . import interpreter as _interpreter

# Sanitizers that must be loaded first in a process: name, library, one of its functions.
_RUNTIMES = (("address", "libasan.so", "__asan_init"), ("thread", "libtsan.so", "__tsan_init"))
# Libraries that a CUDA build finds by its rpath, and the packages that contain them.
_CUDA = {"libcublas": "nvidia-cublas", "libcudart": "nvidia-cuda-runtime"}


def _check_sanitizers(build: dict[str, Any]) -> None:
    """Raises `LoadError` if a sanitizer's runtime is missing: loaded later, it ends the process."""
    import ctypes

    for name, library, sign in _RUNTIMES:
        if name in build["sanitize"] and not hasattr(ctypes.CDLL(None), sign):
            raise LoadError(
                f"build {build['key']} needs its sanitizer's runtime before Python starts: "
                f"LD_PRELOAD=$(cc -print-file-name={library}) python ... (`make sanitize` does it)"
            )


def load(name: str, path: Path) -> ModuleType:
    """Loads module `name` of the package from a file of a build."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise NotBuiltError(f"{path} cannot be loaded: the build is damaged, rebuild it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _check_numbers(build: dict[str, Any]) -> None:
    """Raises `LoadError` if the enums were imported before GGML_PY_UPSTREAM was set or this build
    was made, so their numbers differ."""
    if generated(build, "enums.py", enums.FILE) != enums.FILE:
        raise LoadError(
            f"ggml_py.enums was imported with the numbers of {enums.FILE}; build {build['key']} "
            "has others: set GGML_PY_UPSTREAM before importing anything of ggml_py"
        )


# OpenBLAS is loaded with these settings, unless the user set others. While it loads it starts no
# threads: by default it starts one per processor, and they spin while the next modules are
# imported. The BLAS backend starts its threads later. After a product they sleep at once (by
# default they spin for 2^26 ticks, some 25 ms), because the CPU backend computes the next nodes on
# the same cores.
_OPENBLAS = {"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_THREAD_TIMEOUT": "4"}


@contextlib.contextmanager
def openblas_settings() -> Iterator[None]:
    """Sets them while the library is loaded: it reads them at that time."""
    ours = {name: value for name, value in _OPENBLAS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def _open(build: dict[str, Any]) -> Any:
    path = build["folder"] / "_ggml.abi3.so"
    if build.get("sanitize"):
        _check_sanitizers(build)
    if "libggml_py_record" in os.environ.get("LD_PRELOAD", ""):
        raise NotBuiltError(
            "this process is recorded as another program's (`ggml-py record`, LD_PRELOAD): ggml_py "
            "records itself, `with ggml_py.record(path):`"
        )
    try:
        with openblas_settings():
            return load("ggml_py._ggml", path)
    except ImportError as error:
        raise NotBuiltError(
            f"the native library of build {build['key']} does not load: {error}. {_remedy(error)}"
        ) from error


def _remedy(error: ImportError) -> str:
    name, _, what = str(error).partition(": ")
    package = next((p for stem, p in _CUDA.items() if name.startswith(stem)), None)
    if package is None or "cannot open" not in what:
        return "It was built for another machine or is damaged; rebuild it."
    major = name.rpartition(".")[2]
    package += "" if int(major) >= 13 else f"-cu{major}"
    return (
        f"It was built with CUDA {major}, which must be installed here too: install that toolkit, "
        f"or run `python -m pip install '{package}=={major}.*'` where ggml_py is installed"
    )


_interpreter.check()
BUILD = select(os.environ.get("GGML_PY_UPSTREAM"))
if sys.modules.get("ggml_py._ggml", ...) is None:
    raise NotBuiltError("the native module of ggml_py is blocked in this process")
_processor.check(BUILD)
_check_numbers(BUILD)
_module = _open(BUILD)
ffi = _module.ffi
lib = _module.lib
NULL = ffi.NULL

lib.gp_guard_install()
lib.gp_mapped_install()
_log.install(ffi, lib)
if BUILD["portable"]:
    with openblas_settings():
        lib.ggml_backend_load_all_from_path(str(BUILD["folder"]).encode())


def text(value: Any) -> str:
    """A C string as str; "" for NULL."""
    return ffi.string(value).decode("utf-8", "replace") if value != NULL else ""


def own_pointer(kind: type, ptr: Any) -> Any:
    """A new cdata equal to `ptr`, with no other reference. Raises TypeError if `ptr` is not a C
    pointer, as when a user calls a class of native objects."""
    if not isinstance(ptr, ffi.CData) or not ptr:
        got = "NULL" if isinstance(ptr, ffi.CData) else type(ptr).__name__
        raise TypeError(
            f"{kind.__name__}: expected a native pointer, got {got}. "
            f"help(ggml_py.{kind.__name__}) says how to get one"
        )
    return ffi.cast(ffi.typeof(ptr), ptr)


_OWNERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by address


def sole_pointer(handle: Any, ptr: Any) -> Any:
    """Makes `handle` the owner of `ptr` and returns it. Raises TypeError if another open handle
    owns it: both would free it."""
    address = int(ffi.cast("uintptr_t", own_pointer(type(handle), ptr)))
    other = _OWNERS.get(address)
    if other is not None and not getattr(other, "_closed", True):
        raise TypeError(f"{type(handle).__name__}: {other!r} owns that pointer; use it instead")
    _OWNERS[address] = handle
    return ptr


# In another release, a name that it lacks raises an error that says so.
if BUILD["ggml_version"] != UPSTREAM:
    from .release import Release

    _release = Release(BUILD["label"])
    lib = _release.fit_lib(lib)
    _release.fit_enums(enums)

"""Registries: the loaded backends, each with its devices."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from .. import log as _log
from ..boundary import module as _module
from ..boundary.ffi import NULL, ffi, lib, openblas_settings, text
from ..boundary.module import InModule, Module, forget_module
from ..enums import BackendDevType
from ..errors import ArgumentError, BusyError, LoadError
from ..typed import typed
from .device import Device

_GPUS = (BackendDevType.GPU, BackendDevType.IGPU)
_loaded: dict[Path, Registry] = {}  # 0.9.4 would register a module again
_PATIENCE = 5.0  # seconds that `unload` waits for calls on other threads


class Registry(InModule):
    """One loaded backend ("CPU", "CUDA", "RPC"); get it from `registries` or `load_backend`. A
    static object, never closed."""

    __slots__ = ()

    def __init__(self, ptr: Any) -> None:
        super().__init__(ptr, ptr)

    def _words(self) -> str:
        return f"{self.name}: {', '.join(d.name for d in self.devices) or 'no devices'}"

    @property
    def name(self) -> str:
        """C: ggml_backend_reg_name"""
        return text(lib.ggml_backend_reg_name(self.ptr))

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices; empty if the hardware is missing. C: ggml_backend_reg_dev_get"""
        count = lib.ggml_backend_reg_dev_count(self.ptr)
        return tuple(Device(lib.ggml_backend_reg_dev_get(self.ptr, i)) for i in range(count))

    def unload(self) -> None:
        """Unloads a backend that `load_backend` loaded: removes its devices and closes its library.

        Its Device, Registry and BufferType objects raise `ClosedError` from then on. Raises
        `ArgumentError` while one of its backends, buffers, events, thread pools or allocators is
        open. It also raises that for backends that cannot be unloaded: one that came with the
        build, one with GPUs (threads of their drivers may still run its code, as
        ggml-backend-reg.cpp says), and RPC once it has the devices of a server. Raises `BusyError`
        if a call on another thread does not end.
        C: ggml_backend_unload
        """
        with _module.REGISTERING:
            self._unload(ffi.cast("ggml_backend_reg_t", self.ptr))  # a cast is not held as a call's

    def _unload(self, native: Any) -> None:
        file = next((f for f, registry in list(_loaded.items()) if registry == self), None)
        gpus = [d for d in self.devices if d.type in _GPUS]
        why = self._module.keep
        if file is None:
            why = "it was not loaded with load_backend"
        elif gpus:
            why = f"threads of the driver of {gpus[0]!r} may still run its code"
        if why or file is None:
            raise ArgumentError(f"registry {self.name} cannot be unloaded: {why}")
        module, name = self._module, self.name
        module.gone = f"its backend {name} ({file}) was unloaded"  # new calls are refused
        try:
            still = _wait_for_calls(module, name)
        except BaseException:
            module.gone = ""
            raise
        if still:
            module.gone = ""
            raise ArgumentError(
                f"registry {name} has open objects, close them before you unload it: "
                + ", ".join(sorted(map(repr, still)))
            )
        del _loaded[file]
        forget_module(native)
        lib.ggml_backend_unload(native)


def _wait_for_calls(module: Module, name: str) -> list[Any]:
    """Waits until no call runs in it and nothing of it is open. Returns its open objects if there
    are any. Calls on its devices and buffer types are short, even opening a device and freeing."""
    end = time.monotonic() + _PATIENCE
    while module.is_called() or not module.open.is_empty():
        if still := module.open.still():
            return still
        if time.monotonic() > end:
            raise BusyError(
                f"registry {name} is in the middle of a call on another thread, or a `ptr` of one "
                "of its devices or buffer types is still held: wait until that is over, then "
                "unload it"
            )
        time.sleep(1e-4)
    return []


def registries() -> tuple[Registry, ...]:
    """The loaded backends, in the order of loading. C: ggml_backend_reg_get"""
    with _module.REGISTERING:
        n = lib.ggml_backend_reg_count()
        return tuple(Registry(lib.ggml_backend_reg_get(i)) for i in range(n))


@typed
def load_backend(path: str | os.PathLike[str]) -> Registry:
    """Loads a backend module (a library built with GGML_BACKEND_DL) and adds its devices.

    Loading a module twice gives the same registry; `Registry.unload` removes it. The module must
    come from the same ggml release as this build, because they share structs. Raises `LoadError`
    for a file that is missing, is not a backend module, or does not run on this CPU.
    C: ggml_backend_load
    """
    try:
        file = Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
        raise LoadError(f"backend module {os.fspath(path)!r}: {error}") from None
    with _module.REGISTERING:  # so that two threads do not load it twice
        _module._LOADING[:] = [True]
        if file not in _loaded:
            _loaded[file] = _load(file)
        return _loaded[file]


def _load(file: Path) -> Registry:
    if not file.is_file():
        raise LoadError(f"backend module {file}: no such file")
    mark = _log.mark()
    with openblas_settings():  # if this is BLAS
        ptr = lib.ggml_backend_load(os.fsencode(file))
    if ptr == NULL:
        reason = "; ".join(_log.since(mark)) or "it does not run on this machine (its score is 0)"
        raise LoadError(
            f"backend module {file}: {reason}. Expected a library built with GGML_BACKEND_DL "
            "from the same ggml release"
        )
    return Registry(ptr)

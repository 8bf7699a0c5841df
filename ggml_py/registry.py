"""Registries: the backends that are loaded, each with its devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import _log
from ._device import Device
from ._ffi import NULL, lib, text
from .errors import LoadError

_loaded: dict[Path, Registry] = {}  # 0.9.4 would register a module again


class Registry:
    """One backend that is loaded ("CPU", "CUDA", "RPC"). A static object, never closed."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: Any) -> None:
        self.ptr = ptr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registry) and bool(self.ptr == other.ptr)

    def __hash__(self) -> int:
        return hash(self.ptr)

    def __repr__(self) -> str:
        names = ", ".join(d.name for d in self.devices) or "no devices"
        return f"<Registry {self.name}: {names}>"

    @property
    def name(self) -> str:
        """C: ggml_backend_reg_name"""
        return text(lib.ggml_backend_reg_name(self.ptr))

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices; none where the hardware is missing. C: ggml_backend_reg_dev_get"""
        count = lib.ggml_backend_reg_dev_count(self.ptr)
        return tuple(Device(lib.ggml_backend_reg_dev_get(self.ptr, i)) for i in range(count))


def registries() -> tuple[Registry, ...]:
    """The backends that are loaded, in the order of loading. C: ggml_backend_reg_get"""
    return tuple(Registry(lib.ggml_backend_reg_get(i)) for i in range(lib.ggml_backend_reg_count()))


def load_backend(path: str | os.PathLike[str]) -> Registry:
    """Loads a backend module (a library built with GGML_BACKEND_DL) and adds its devices.

    Loading a module twice gives the same registry. There is no unloading: buffers, buffer types
    and upstream's own threads would go on using code that is gone (ggml-backend-reg.cpp says so).
    The module has to come from the same ggml release as this build: it runs on its structs.
    Raises `LoadError` for a file that is missing, is no module, or does not run on this CPU.
    C: ggml_backend_load
    """
    file = Path(path).resolve()
    if file in _loaded:
        return _loaded[file]
    if not file.is_file():
        raise LoadError(f"backend module {file}: no such file")
    mark = _log.mark()
    ptr = lib.ggml_backend_load(os.fsencode(file))
    if ptr == NULL:
        reason = "; ".join(_log.since(mark)) or "it does not run on this machine (its score is 0)"
        raise LoadError(
            f"backend module {file}: {reason}. Expected a library built with GGML_BACKEND_DL "
            "from the same ggml release"
        )
    _loaded[file] = Registry(ptr)
    return _loaded[file]

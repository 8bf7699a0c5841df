"""Owners of libllama's objects, and how they are made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .. import log as _log
from ..backends.device import Device
from ..boundary.ffi import NULL
from ..boundary.ffi import lib as ggml
from ..boundary.handle import Handle
from ..errors import ModelError
from .library import Library
from .params import Params


class LlamaHandle(Handle):
    """Owns a llama_model."""

    __slots__ = ("devices",)
    devices: list[Device]  # it has their pointers


class ContextHandle(Handle):
    """Owns a llama_context."""

    __slots__ = ()


def load_model(library: Library, path: Path, params: Any, devices: list[Device]) -> LlamaHandle:
    """Loads a model. Raises `ModelError` with libllama's reason. C: llama_model_load_from_file"""
    lib, mark = library.lib, _log.mark()
    ptr = lib.llama_model_load_from_file(os.fsencode(path), params[0])
    if ptr == NULL:
        raise ModelError(f"llama.cpp does not load it: {_reason(mark)}")
    handle = LlamaHandle(ptr, lib.llama_model_free)
    handle.devices = devices
    return handle


def new_context(library: Library, model: LlamaHandle, params: Params) -> ContextHandle:
    """Makes a context. Raises `ModelError` with libllama's reason. C: llama_init_from_model"""
    ffi, lib, mark = library.ffi, library.lib, _log.mark()
    used = [d.ptr for d in params.accelerators]
    params.context.abort_callback = ffi.cast("ggml_abort_callback", ggml.gp_interrupt_callback())
    lib.gpl_use_accelerators(ffi.new("ggml_backend_dev_t[]", [*used, NULL]), len(used))
    ptr = lib.llama_init_from_model(model.ptr, params.context[0])
    if ptr == NULL:
        raise ModelError(f"llama.cpp makes no context of it: {_reason(mark)}")
    return ContextHandle(ptr, lib.llama_free, model)


def _reason(mark: int) -> str:
    """What libllama logged as warnings and errors, without the names of its functions."""
    said = [line.partition(": ")[2] or line for line in _log.since(mark)]
    return "; ".join(dict.fromkeys(said)) or "it gives no reason"

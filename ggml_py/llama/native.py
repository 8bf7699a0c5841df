"""Owners of libllama's objects, and how they are made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import log as _log
from ..backends.device import Device
from ..boundary.ffi import NULL
from ..boundary.ffi import lib as ggml
from ..boundary.handle import Handle, in_use, reading
from ..errors import ModelError
from ..scheduler.borrowed import BorrowedScheduler
from .library import Library
from .params import Params


class LlamaHandle(Handle):
    """Owns a llama_model."""

    __slots__ = ("devices",)
    devices: list[Device]  # it has their pointers


class ContextHandle(Handle):
    """Owns a llama_context."""

    __slots__ = ("_library", "_scheduler")

    def __init__(self, library: Library, ptr: Any, model: LlamaHandle) -> None:
        super().__init__(ptr, library.lib.llama_free, model)
        self._library = library
        self._scheduler: BorrowedScheduler | None = None

    def _words(self) -> str:
        return "model's context"

    @property
    def scheduler(self) -> BorrowedScheduler:
        """The scheduler that it plans and computes on. C++: llama_context::get_sched"""
        lib, state = self._library.lib, self._library.ffi.new("struct gpl_context_state *")
        with reading(self):
            if self._scheduler is None or self._scheduler.closed:
                lib.gpl_read_state(self.ptr, state)
                backends = [lib.gpl_backend(self.ptr, i) for i in range(state.n_backends)]
                self._scheduler = BorrowedScheduler(lib.gpl_sched(self.ptr), backends, self)
            return self._scheduler

    @contextmanager
    def using(self, doing: str) -> Iterator[None]:
        """Around calls that plan or compute: libllama may replace its scheduler in them."""
        scheduler = self._scheduler
        lent = (scheduler,) if scheduler is not None and not scheduler.closed else ()
        try:
            with in_use(doing, self), in_use("planning", *lent):
                yield
        finally:
            if lent and not self.closed and self._library.lib.gpl_sched(self.ptr) != lent[0].ptr:
                lent[0].close()


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
    return ContextHandle(library, ptr, model)


def _reason(mark: int) -> str:
    """What libllama logged as warnings and errors, without the names of its functions."""
    said = [line.partition(": ")[2] or line for line in _log.since(mark)]
    return "; ".join(dict.fromkeys(said)) or "it gives no reason"

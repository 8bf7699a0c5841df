"""Owners of libllama's objects, and how they are made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import log as _log
from ..backends.device import Device
from ..backends.threadpool import ThreadPool
from ..boundary.address_space import lack
from ..boundary.ffi import NULL
from ..boundary.ffi import lib as ggml
from ..boundary.handle import Handle
from ..boundary.mapped import mappings, watch_mapping
from ..boundary.uses import in_use, reading
from ..errors import ModelError
from ..memory.shortfalls import Shortfall
from ..scheduler.borrowed import BorrowedScheduler
from .library import Library
from .params import Params


class LlamaHandle(Handle):
    """Owns a llama_model."""

    __slots__ = ("devices",)
    _shown_as = "LlamaModel"
    devices: list[Device]  # it has their pointers


class ContextHandle(Handle):
    """Owns a llama_context."""

    __slots__ = ("_library", "_scheduler", "probes")
    _shown_as = "LlamaModel"

    def __init__(self, library: Library, ptr: Any, probes: Any, *needs: Handle) -> None:
        """`probes`: what libllama's probes refused when it made the context."""
        super().__init__(ptr, library.lib.llama_free, *needs)
        self._library = library
        self.probes = library.ffi.gc(probes, library.lib.gpl_probes_free)
        self._scheduler: BorrowedScheduler | None = None

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
        with in_use(doing, self):  # while another thread can neither close nor replace it
            scheduler = self._scheduler
            lent = (scheduler,) if scheduler is not None and not scheduler.closed else ()
            try:
                with in_use("planning", *lent):
                    yield
            finally:
                if lent and self._library.lib.gpl_sched(self.ptr) != lent[0].ptr:
                    lent[0].close()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the model's path in front of errors."""
    try:
        yield
    except ModelError as error:
        if str(error).startswith(str(path)):
            raise
        raise ModelError(f"{path}: {error}") from None


@contextmanager
def lacking(found: Callable[[], Iterable[Shortfall]]) -> Iterator[None]:
    """Adds what devices lack to the reasons why libllama loads no model, or makes no context."""
    try:
        yield
    except ModelError as error:
        said = "; ".join(one.text for one in found())
        raise ModelError(f"{error}. {said}") if said else error from None


def load_model(
    library: Library, path: Path, params: Any, devices: list[Device], paths: Sequence[Path] = ()
) -> LlamaHandle:
    """Loads a model; `paths` are its files, if its weights are to be read.

    Mapped files are watched: reading what one of them has lost meanwhile raises
    `DamagedFileError`. Raises `ModelError` with libllama's reason. C: llama_model_load_from_file
    """
    lib, mark = library.lib, _log.mark()
    before = set(mappings(paths))
    ptr = lib.llama_model_load_from_file(os.fsencode(path), params[0])
    if ptr == NULL:
        why = _reason(mark)
        if "mmap failed" in why:
            why += lack(sum(file.stat().st_size for file in paths or (path,)))
        raise ModelError(f"llama.cpp does not load it: {why}")
    watched = [watch_mapping(found) for found in mappings(paths) if found not in before]

    def free(model: Any) -> None:
        for each in watched:
            ggml.gp_mapped_remove(each)
        lib.llama_model_free(model)

    handle = LlamaHandle(ptr, free)
    handle.devices = devices
    return handle


def new_context(library: Library, model: LlamaHandle, params: Params) -> ContextHandle:
    """Makes a context. Raises `ModelError` with libllama's reason. C: llama_init_from_model"""
    ffi, lib, mark = library.ffi, library.lib, _log.mark()
    params.context.abort_callback = ffi.cast("ggml_abort_callback", ggml.gp_interrupt_callback())
    params.choose_accelerators()
    lib.gpl_probes_begin()
    ptr = lib.llama_init_from_model(model.ptr, params.context[0])
    if ptr == NULL:
        raise ModelError(f"llama.cpp makes no context of it: {_reason(mark)}")
    return ContextHandle(library, ptr, lib.gpl_probes_take(), model)


def give_threads(library: Library, context: ContextHandle, params: Params) -> ThreadPool:
    """Threads that it computes with from now on, kept from one compute to the next; otherwise ggml
    starts them for each. They sleep at once if another device has threads of its own here, whatever
    it computes (`models/file/threads.py` chooses for each graph). Closing them closes the context.
    C: llama_attach_threadpool"""
    n = max(params.context.n_threads, params.context.n_threads_batch)
    poll = 0 if any(device.has_cpu_threads for device in params.devices) else 50
    pool = ThreadPool(n, poll=poll, paused=True)
    context._depend(pool)
    library.lib.llama_attach_threadpool(context.ptr, pool.ptr, pool.ptr)
    return pool


def _reason(mark: int) -> str:
    """What libllama logged as warnings and errors, without the names of its functions."""
    said = [line.partition(": ")[2] or line for line in _log.since(mark)]
    return "; ".join(dict.fromkeys(said)) or "it gives no reason"
